#include "results/folder.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/errors.hpp"
#include "results/arrays.hpp"
#include "results/columns.hpp"
#include "results/consensus.hpp"
#include "results/notes.hpp"
#include "results/output_files.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Removes files whose name passes. Other files may belong to the user.
template <class IsOurs>
void remove_files(const fs::path& dir, IsOurs is_ours) {
  if (!fs::is_directory(dir)) return;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.is_regular_file() && is_ours(entry.path().filename().string())) found.push_back(entry.path());
  for (const fs::path& file : found) fs::remove(file);
}

bool is_log(const std::string& name) { return name.ends_with(".jsonl"); }
bool is_arrays_file(const std::string& name) { return name.ends_with(kArraysExtension); }
bool is_final_file(const std::string& name) {
  const std::vector<std::string> kinds = all_kinds();
  const auto gathers = [&](const std::string& kind) { return name == kind + ".h5"; };
  return name == kTableFile || name == kSegmentsFile || name == kConsensusFile || name == kMetaFile ||
         std::any_of(kinds.begin(), kinds.end(), gathers);
}
json describe_columns() {
  json all = json::object();
  for (const Column& column : columns()) all[column.name] = json::parse(column_facts(column).text());
  return all;
}

json counts(const Keys& plan, const Shards& shards) {
  int64_t ok = 0, failed = 0;
  for (const std::string& key : plan) {
    const auto found = shards.cells.find(key);
    if (found == shards.cells.end()) continue;
    ++(found->second.ok ? ok : failed);
  }
  return {{"planned", plan.size()}, {"ok", ok}, {"failed", failed}, {"missing", int64_t(plan.size()) - ok - failed}};
}

// Accepts names that pass `is_ours`, and temporary names of such files that a killed run left.
auto with_temporaries(bool (*is_ours)(const std::string&)) {
  return [is_ours](const std::string& name) { return is_ours(name) || is_ours(final_name(name)); };
}

}  // namespace

void in_directory(const fs::path& dir, const std::function<void()>& work) {
  try {
    work();
  } catch (const fs::filesystem_error& problem) {
    throw OutputError(fmt::format("{}: cannot be used for output ({}). Choose another directory with -o", dir.string(),
                                  problem.code().message()));
  }
}

bool holds_table(const fs::path& dir) {
  std::error_code ignored;
  return fs::is_regular_file(dir / kTableFile, ignored);
}

Keys keys_of(const std::vector<Cell>& plan) {
  Keys keys;
  for (const Cell& cell : plan) keys.push_back(cell.key);
  return keys;
}

SharesOfCells shares_of(const std::vector<Cell>& plan) {
  SharesOfCells shares;
  for (const Cell& cell : plan)
    if (!cell.shares.empty()) shares.emplace(cell.key, shares_text(cell.shares));
  return shares;
}

void forget_results(const fs::path& dir) {
  in_directory(dir, [&] {
    remove_files(dir / "shards", is_log);
    remove_files(dir / "attempts", is_log);
    remove_files(dir / "cells", is_arrays_file);
    remove_files(dir, with_temporaries(is_final_file));
  });
}

ResultsFolder::ResultsFolder(const fs::path& dir, const SaveOptions& save, const std::string& own_build)
    : dir_(dir), save_(save) {
  in_directory(dir, [&] { shards_ = read_shards(dir, own_build); });
  const std::vector<std::string> kinds = kinds_of(save);
  ArraysReader reader(dir / "cells");
  const auto is_there = [&](const std::string& text) {
    const auto arrays = ArraysAt::parse(text);
    return arrays && reader.holds(*arrays, kinds);
  };
  for (auto& [key, cell] : shards_.cells) {
    // A removed file may have been computed again, and a later run may have saved more kinds.
    const auto there =
        kinds.empty() ? cell.arrays.end() : std::find_if(cell.arrays.begin(), cell.arrays.end(), is_there);
    if (there != cell.arrays.end()) std::iter_swap(cell.arrays.begin(), there);
    if (cell.ok && (kinds.empty() || there != cell.arrays.end())) done_.insert(key);
  }
}

int32_t ResultsFolder::failures(const std::string& key) const {
  const auto found = shards_.cells.find(key);
  return found == shards_.cells.end() ? 0 : found->second.failures;
}

Keys ResultsFolder::others(const Keys& plan) const {
  const std::unordered_set<std::string> planned(plan.begin(), plan.end());
  std::vector<std::tuple<fs::path, uint64_t, std::string>> found;
  for (const auto& [key, cell] : shards_.cells)
    if (planned.count(key) == 0) found.emplace_back(shards_.files[cell.at.file], cell.at.offset, key);
  std::sort(found.begin(), found.end());
  Keys keys;
  for (auto& [file, offset, key] : found) keys.push_back(std::move(key));
  return keys;
}

void ResultsFolder::each_row(const Keys& plan, const RowVisitor& visit) const {
  each_line(plan, [&](const CellLine& line) { visit(line.fields); });
}

void ResultsFolder::each_line(const Keys& plan, const std::function<void(const CellLine&)>& visit) const {
  LineReader lines(shards_);
  for (const std::string& key : plan) {
    const auto found = shards_.cells.find(key);
    if (found != shards_.cells.end()) visit(lines.read(found->second.at));
  }
}

void ResultsFolder::gather(const Keys& plan, const std::string& kind) const {
  std::vector<CellArrays> cells;
  for (const std::string& key : plan)
    if (done_.count(key) != 0) cells.push_back({key, *ArraysAt::parse(shards_.cells.at(key).arrays.front())});
  ArraysReader reader(dir_ / "cells");
  gather_arrays(dir_ / (kind + ".h5"), kind, cells, reader);
}

void ResultsFolder::append_segments(const CellLine& line, std::optional<TextFile>& csv) const {
  if (!csv) {
    Fields names;
    for (const Column& column : segment_columns()) names.emplace_back(column.name);
    csv.emplace(dir_ / kSegmentsFile);
    csv->append(csv_line(names));
  }
  for (const Fields& row : line.segments) csv->append(csv_line(row));
}

Notes ResultsFolder::write_tables(const Keys& plan, const std::string& meta, const RowVisitor& visit,
                                  const SharesOfCells& shares, const Registry& methods) const {
  for (const std::string& kind : kinds_of(save_)) gather(plan, kind);
  TextFile csv(dir_ / kTableFile);
  csv.append(csv_line(column_names()));
  std::optional<TextFile> segments;
  std::map<std::string, int64_t> computed_by;
  const std::vector<std::string> names = column_names();
  const size_t share = size_t(std::find(names.begin(), names.end(), kShareColumn) - names.begin());
  const size_t key = size_t(std::find(names.begin(), names.end(), "key") - names.begin());
  SeenCells seen(methods);
  Consensus consensus;
  each_line(plan, [&](const CellLine& line) {
    Fields fields = line.fields;
    const auto asked = shares.find(fields[key]);
    fields[share] = asked == shares.end() ? "" : asked->second;
    csv.append(csv_line(fields));
    if (!line.segments.empty()) append_segments(line, segments);
    seen.add(fields);
    if (save_.consensus && done_.count(fields[key]) != 0) consensus.add(fields, dir_ / "consensus.h5");
    if (visit) visit(fields);
    ++computed_by[line.path + " " + line.build];
  });
  csv.publish();
  if (segments) segments->publish();
  if (save_.consensus) publish_text(dir_ / kConsensusFile, consensus.csv());
  json all = json::parse(meta);
  all["computed_by"] = computed_by;
  all["columns"] = describe_columns();
  all["cells"] = counts(plan, shards_);
  // A note that holds for the present heads may not hold when the missing ones are added.
  const Notes notes = all["cells"]["missing"] == 0 ? notes_of(seen) : Notes();
  all["notes"] = json::parse(notes_json(notes));
  publish_text(dir_ / kMetaFile, all.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  return notes;
}

void ResultsFolder::add(const std::string& key, const Published& line) {
  shards_.add(key, line);
  if (line.ok) done_.insert(key);
}

uint32_t ResultsFolder::add_file(const fs::path& file) {
  shards_.files.push_back(file);
  return uint32_t(shards_.files.size() - 1);
}

}  // namespace kvreplay
