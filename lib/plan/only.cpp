#include "plan/only.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/csv_rows.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"

namespace kvreplay {
namespace {

struct Named {
  const char* column;
  std::string (*field)(const Cell&);
};

template <class Number>
std::string field_of(const Number& value, bool given) {
  return given ? std::to_string(value) : "";
}

constexpr Named kColumns[] = {
    {"trace_id", [](const Cell& c) { return c.variant->trace->trace_id; }},
    {"prompt", [](const Cell& c) { return c.place.prompt; }},
    {"layer", [](const Cell& c) { return std::to_string(c.place.layer); }},
    {"kv_head", [](const Cell& c) { return std::to_string(c.place.kv_head); }},
    {"method", [](const Cell& c) { return c.method_name(); }},
    {"given", [](const Cell& c) { return c.variant->given; }},
    {"budget_tokens", [](const Cell& c) { return field_of(c.budget.tokens, !c.budget.none()); }},
    {"seed", [](const Cell& c) { return field_of(c.seed.value_or(0), c.seed.has_value()); }},
};

constexpr char kBetween = '\x1f';

size_t column_of(const std::string& name, const std::filesystem::path& file) {
  std::vector<std::string> known;
  for (const Named& named : kColumns) {
    if (name == named.column) return size_t(&named - kColumns);
    known.emplace_back(named.column);
  }
  throw ConfigError(fmt::format("{}:1: error: {} is no column that names cells{}. Columns are {}", file.string(),
                                name.empty() ? "\"\"" : name, did_you_mean(name, known), join(known)));
}

}  // namespace

CellFilter::CellFilter(const std::filesystem::path& file) : file_(file) {
  const std::vector<CsvRow> rows = read_csv(file);
  if (rows.empty()) throw ConfigError(file.string() + ":1: error: is empty: the first line names columns");
  std::vector<size_t> columns;
  for (const std::string& name : rows.front().fields) columns.push_back(column_of(name, file));
  std::map<std::vector<size_t>, std::unordered_map<std::string, int64_t>> patterns;
  for (const CsvRow& row : std::vector(rows.begin() + 1, rows.end())) {
    if (row.fields.size() != columns.size())
      throw ConfigError(fmt::format("{}:{}: error: has {} fields, the header {}", file.string(), row.line,
                                    row.fields.size(), columns.size()));
    std::vector<size_t> given;
    std::string values;
    for (size_t i = 0; i < columns.size(); ++i)
      if (!row.fields[i].empty()) given.push_back(columns[i]), values += row.fields[i] + kBetween;
    patterns[given].emplace(values, row.line);
  }
  for (auto& [given, lines] : patterns) patterns_.push_back({given, std::move(lines)});
}

std::vector<int64_t> CellFilter::lines_naming(const Cell& cell) const {
  std::vector<int64_t> lines;
  for (const Pattern& pattern : patterns_) {
    std::string values;
    for (const size_t column : pattern.columns) values += kColumns[column].field(cell) + kBetween;
    const auto found = pattern.lines.find(values);
    if (found != pattern.lines.end()) lines.push_back(found->second);
  }
  return lines;
}

std::vector<Cell> CellFilter::of(std::vector<Cell> plan) const {
  std::set<int64_t> idle;
  for (const Pattern& pattern : patterns_)
    for (const auto& [values, line] : pattern.lines) idle.insert(line);
  if (idle.empty()) throw ConfigError(file_.string() + ":1: error: has no row that names cells");
  std::erase_if(plan, [&](const Cell& cell) {
    const std::vector<int64_t> lines = lines_naming(cell);
    for (const int64_t line : lines) idle.erase(line);
    return lines.empty();
  });
  if (!idle.empty())
    throw ConfigError(
        fmt::format("{}:{}: error: names no cell of this configuration. Fields are written as in results.csv",
                    file_.string(), *idle.begin()));
  return plan;
}

}  // namespace kvreplay
