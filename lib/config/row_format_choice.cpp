#include "config/row_format_choice.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/csv_rows.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "formats/registry.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kMostPlaces = 4096;  // layers, or heads of a layer
const std::vector<std::string> kHeading = {"layer", "kv_head", "row_format"};

const Node* needed(Problems& problems, const Section& section, const Node& item, const char* key, const char* of) {
  const Node* node = section.find(key);
  if (node == nullptr) problems.error(item.mark, fmt::format("an entry of {} has no {}: add it", of, key));
  return node;
}

std::vector<int32_t> read_places(Problems& problems, const Section& rule, const char* key, double least) {
  std::vector<int32_t> places;
  const Node* list = rule.find(key);
  if (list == nullptr) return places;
  for (const Node* item : one_or_many(*list))
    if (const auto place = read_integer(problems, *item, key, {least, kMostPlaces})) places.push_back(int32_t(*place));
  if (places.empty() && list->kind == Node::Kind::list && list->items.empty())
    must_be(problems, *list, key, "a list that is not empty; leave it out for all");
  return places;
}

// Heads of a layer with equal formats become one rule.
void add_rule(RowFormat& to, int32_t layer, int32_t head, const RowFormat& format) {
  const std::string json = row_format_json(format);
  const auto same = std::find_if(to.rules.begin(), to.rules.end(), [&](const FormatRule& rule) {
    return rule.layers.front() == layer && row_format_json(rule.format) == json;
  });
  if (same == to.rules.end()) to.rules.push_back({{layer}, {head}, format});
  else same->heads.push_back(head);
}

}  // namespace

std::string aging_problem(const RowFormat& entry) {
  if (!entry.ages.empty() || !entry.rules.empty()) return "an entry of age is one format: leave out age and by in it";
  if (entry.full_precision.recent > 1 || entry.full_precision.sinks > 0 || entry.own_row_coded)
    return "full_precision and own_row hold for all entries of age: write them beside age";
  if (!entry.skip_layers.empty()) return "a layer is skipped at every age: leave out skip_layers in an entry of age";
  if (has_blocks(entry))
    return "kivi and gear code rows in groups, which do not grow old one by one: take another format";
  if (is_calibrated(entry))
    return "a format with constants from the prompt cannot be an entry of age: take another format, or another scale";
  return "";
}

void read_ages(Problems& problems, const Node& list, const ReadFormat& read, RowFormat& to) {
  if (list.kind != Node::Kind::list || list.items.empty())
    return must_be(problems, list, "age", "a list of entries, each with newer_than (but the last) and format");
  for (const Node& item : list.items) {
    const Section entry(&item, "age", {"newer_than", "format"}, problems);
    const bool last = &item == &list.items.back();
    const Node* limit = last ? entry.find("newer_than") : needed(problems, entry, item, "newer_than", "age");
    if (last && limit != nullptr)
      problems.error(limit->mark, "the last entry of age takes all rows that are older: leave out newer_than");
    else if (limit != nullptr)
      if (const auto tokens = read_integer(problems, *limit, "newer_than", {1, kManyTokens})) {
        if (!to.newer_than.empty() && *tokens <= to.newer_than.back())
          problems.error(limit->mark, fmt::format("newer_than is {} after {}, and the limits of age must rise", *tokens,
                                                  to.newer_than.back()));
        to.newer_than.push_back(int32_t(*tokens));
      }
    const Node* node = needed(problems, entry, item, "format", "age");
    const auto format = node != nullptr ? read(*node) : std::nullopt;
    if (!format) continue;
    if (const std::string why = aging_problem(*format); !why.empty()) problems.error(node->mark, why);
    to.ages.push_back(*format);
  }
}

void read_rules(Problems& problems, const Node& list, const ReadFormat& read, RowFormat& to) {
  if (list.kind != Node::Kind::list || list.items.empty())
    return must_be(problems, list, "by", "a list of rules, each with a format, and layers and heads where it holds");
  for (const Node& item : list.items) {
    const Section rule(&item, "by", {"layers", "heads", "format"}, problems);
    const std::vector<int32_t> layers = read_places(problems, rule, "layers", -kMostPlaces),
                               heads = read_places(problems, rule, "heads", 0);
    const Node* node = needed(problems, rule, item, "format", "by");
    const auto format = node != nullptr ? read(*node) : std::nullopt;
    if (!format) continue;
    if (!format->rules.empty()) problems.error(node->mark, "a rule of by names one format: leave out by in it");
    to.rules.push_back({layers, heads, *format});
  }
}

void read_rules_file(Problems& problems, const Mark& mark, const std::filesystem::path& file, const ReadFormat& read,
                     RowFormat& to) {
  std::vector<CsvRow> rows;
  try {
    rows = read_csv(file);
  } catch (const ConfigError& e) {
    return problems.error(mark, e.what());
  }
  const auto wrong = [&](int64_t line, const std::string& what) {
    problems.error(mark, fmt::format("{}, line {}: {}", file.string(), line, what));
  };
  if (rows.size() < 2 || rows.front().fields != kHeading)
    return wrong(rows.empty() ? 1 : rows.front().line,
                 "the heading must be layer,kv_head,row_format, and a row for each head must follow");
  std::map<std::pair<int32_t, int32_t>, RowFormat> formats;  // the order of the lines does not matter
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto& [line, fields] = rows[i];
    if (fields.size() != kHeading.size()) {
      wrong(line, fmt::format("{} fields instead of 3: put a map in quotes", fields.size()));
      continue;
    }
    const auto layer = parse_number<int32_t>(fields[0]), head = parse_number<int32_t>(fields[1]);
    if (!layer || !head || *layer < 0 || *head < 0) {
      wrong(line, "layer and kv_head must be whole numbers from 0 on");
      continue;
    }
    Problems own;
    const Node node = parse_yaml(fields[2], false, own);
    const auto format = own.any_error() ? std::nullopt : read(node);
    if (!format) wrong(line, "row_format must be a word or a map in quotes: see docs/row_formats.md");
    else if (!format->rules.empty()) wrong(line, "a row names one format: leave out by");
    else if (!formats.emplace(std::pair(*layer, *head), *format).second)
      wrong(line, fmt::format("layer {}, kv head {} has a second row: remove one", *layer, *head));
  }
  for (const auto& [place, format] : formats) add_rule(to, place.first, place.second, format);
}

}  // namespace kvreplay
