#include "apps/earlier_results.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/meta.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "plan/plan.hpp"

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRemedy = "Choose another directory with -o, or forget them with --force";

// results.meta.json; null if it is missing or cannot be read.
json meta_of(const fs::path& dir) {
  std::ifstream in(dir / kMetaFile);
  json meta = in ? json::parse(in, nullptr, false) : json();
  return meta.is_object() ? meta : json();
}

json member(const json& all, const char* section, const char* name) {
  const auto found = all.find(section);
  if (found == all.end() || !found->is_object()) return json();
  return found->value(name, json());
}

void add_difference(std::vector<std::string>& all, const std::string& what, const json& before, const json& now) {
  if (before != now) all.push_back(fmt::format("{} is {} there and {} here", what, before.dump(), now.dump()));
}

std::set<std::string> ids_of(const json& traces) {
  std::set<std::string> ids;
  for (const json& trace : traces)
    if (trace.is_object()) ids.insert(trace.value("trace_id", ""));
  return ids;
}

bool is_subset_either_way(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::includes(a.begin(), a.end(), b.begin(), b.end()) || std::includes(b.begin(), b.end(), a.begin(), a.end());
}

// Differences between two runs that forbid one table for both.
std::vector<std::string> differences(const json& meta, const Asked& asked) {
  std::vector<std::string> all;
  const json &before = meta["config"], now = json::parse(asked.config);
  for (const char* name : {"prefill", "prompt", "queries", "tokens", "needles"})
    add_difference(all, fmt::format("replay.{}", name), member(before, "replay", name), member(now, "replay", name));
  add_difference(all, "run.precision", member(before, "run", "precision"), member(now, "run", "precision"));
  const json ways[] = {member(before, "budget", "of"), member(now, "budget", "of")};
  if (!ways[0].is_null() && !ways[1].is_null()) add_difference(all, "budget.of", ways[0], ways[1]);
  add_difference(all, "metrics", before.value("metrics", json()), now.value("metrics", json()));
  add_difference(all, "engine_schema", meta.value("engine_schema", json()), kEngineSchema);
  if (!is_subset_either_way(ids_of(meta.value("traces", json::array())), ids_of(json::parse(asked.traces))))
    all.emplace_back("they are of another trace");
  return all;
}

// What identifies a cell for a reader of a table: its fields in the columns of identity, and its extent.
using Name = std::vector<std::string>;

Name name_of(const Fields& row) {
  Name name;
  for (size_t i = 0; i < columns().size(); ++i)
    if (columns()[i].identity) name.push_back(row[i]);
  for (const char* extent : {"n_prefill", "n_tokens"}) name.push_back(row[column_index(extent)]);
  return name;
}

Name name_of(const Cell& cell) {
  return {cell.variant->trace->trace_id,
          cell.place.prompt,
          std::to_string(cell.place.layer),
          std::to_string(cell.place.kv_head),
          cell.method().info.name,
          cell.budget.none() ? "" : std::to_string(cell.budget.tokens),
          cell.seed ? std::to_string(*cell.seed) : "",
          cell.variant->given,
          std::to_string(cell.extent.prompt_tokens),
          std::to_string(cell.extent.tokens)};
}

void refuse_same_names(const ResultsFolder& folder, const std::vector<Cell>& plan, const Keys& earlier) {
  std::set<Name> names;
  for (const Cell& cell : plan) names.insert(name_of(cell));
  size_t count = 0;
  std::string method;
  folder.each_row(earlier, [&](const Fields& row) {
    if (names.count(name_of(row)) == 0) return;
    ++count, method = row[column_index("method")];
  });
  if (count > 0)
    throw ConfigError(
        fmt::format("{}: error: holds {} cells of {} that were computed from another content of its text, its files "
                    "or the trace, under the names of this run's. {}",
                    folder.dir().string(), count, method, kRemedy));
}

bool is_own_table(const std::string& first_line) {
  return first_line.starts_with("key,trace_id,") && first_line.find(",rel_err_out_mean,") != std::string::npos;
}

// The shares of both texts, each once, ascending.
std::string united(const std::string& own, const std::string& earlier) {
  std::set<double> all;
  for (const std::string& text : {own, earlier})
    for (const double share : shares_of_text(text)) all.insert(share);
  return shares_text({all.begin(), all.end()});
}

}  // namespace

Keys with_earlier(const ResultsFolder& folder, const std::vector<Cell>& plan, const Asked& asked) {
  Keys keys = keys_of(plan);
  const Keys earlier = folder.others(keys);
  if (earlier.empty()) return keys;
  const json meta = meta_of(folder.dir());
  if (!meta.contains("config"))
    throw ConfigError(fmt::format(
        "{}: error: holds {} cells of another plan that was never finished: no results.meta.json says what they "
        "answer. Finish it with the command that began it, choose another directory with -o, or forget it with --force",
        folder.dir().string(), earlier.size()));
  const std::vector<std::string> differing = differences(meta, asked);
  if (!differing.empty())
    throw ConfigError(fmt::format("{}: error: holds {} cells of another question ({}). {}", folder.dir().string(),
                                  earlier.size(), join(differing), kRemedy));
  refuse_same_names(folder, plan, earlier);
  keys.insert(keys.end(), earlier.begin(), earlier.end());
  return keys;
}

void refuse_foreign_table(const fs::path& out, bool force) {
  std::ifstream in(out / kTableFile);
  std::string head, row;
  if (!in || !std::getline(in, head)) return;
  const bool ours = is_own_table(head);
  if (ours && (force || !std::getline(in, row))) return;
  if (ours && !read_shards(out, "").cells.empty()) return;
  throw ConfigError(
      fmt::format("{}: error: is {}, and is not overwritten. Move it away{}, or choose another directory with -o",
                  (out / kTableFile).string(),
                  ours ? "a table without the shards that it was made from" : "no table of this program",
                  ours ? ", give it up with --force" : ""));
}

std::string with_earlier_records(const std::string& record, const ResultsFolder& folder, const Keys& plan) {
  json all = json::parse(record), earlier = json::array();
  const json meta = meta_of(folder.dir());
  if (meta.is_null() || folder.others(plan).empty()) return record;
  std::set<json> told = {all["config"]};  // configurations already added; a continued or repeated run adds none
  const auto add = [&](const json& one) {
    if (one.is_object() && told.insert(one.value("config", json())).second) earlier.push_back(one);
  };
  for (const json& one : meta.value("earlier_runs", json::array())) add(one);
  add({{"command_line", meta.value("command_line", "")},
       {"created_utc", meta.value("created_utc", "")},
       {"config", meta.value("config", json())}});
  all["earlier_runs"] = earlier;
  return all.dump();
}

// The key is the first column and the share the last, and neither is ever quoted: rows are read one at a time.
SharesOfCells with_earlier_shares(SharesOfCells own, const ResultsFolder& folder, const Keys& table) {
  std::ifstream rows(folder.dir() / kTableFile);
  std::string line;
  if (!std::getline(rows, line) || !line.starts_with("key,") || !line.ends_with(std::string(",") + kShareColumn))
    return own;  // no table, or one of an older version
  const std::set<std::string> shown(table.begin(), table.end());
  while (std::getline(rows, line)) {
    const std::string key = line.substr(0, line.find(',')), asked = line.substr(line.rfind(',') + 1);
    if (asked.empty() || shown.count(key) == 0) continue;
    const auto [known, is_new] = own.emplace(key, asked);
    if (!is_new) known->second = united(known->second, asked);
  }
  return own;
}

}  // namespace kvreplay::app
