#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <unordered_map>

namespace kvreplay::app {
namespace {

constexpr const char* kMeans[] = {"rel_err_out_mean", "kept_mass_mean", "partition_err_mean",
                                  "peak_kept_tokens", "total_bytes"};
constexpr size_t kMeanCount = std::size(kMeans);

struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(const std::string& field) {
    if (field.empty()) return;
    sum += std::strtod(field.c_str(), nullptr);
    ++count;
  }
  std::string text() const {
    if (count == 0) return "-";
    const double mean = sum / double(count);
    return mean >= 1000 ? fmt::format("{:.0f}", mean) : fmt::format("{:.4g}", mean);
  }
};

struct Group {
  Mean means[kMeanCount];
  int64_t planned = 0, ok = 0, failed = 0;
};

using GroupKey = std::pair<size_t, int32_t>;  // instance, budget

std::map<GroupKey, Group> grouped(const std::vector<Cell>& plan, const ResultTable& rows) {
  std::unordered_map<std::string, GroupKey> group_of;
  std::map<GroupKey, Group> groups;
  for (const Cell& cell : plan) {
    const GroupKey key{cell.instance, cell.budget.value_or(0)};
    group_of[cell.key] = key;
    ++groups[key].planned;
  }
  size_t at[kMeanCount];
  for (size_t i = 0; i < kMeanCount; ++i) at[i] = column_index(kMeans[i]);
  for (const auto& row : rows) {
    Group& group = groups[group_of.at(row[column_index("key")])];
    const bool ok = row[column_index("status")] == "ok";
    ++(ok ? group.ok : group.failed);
    for (size_t i = 0; ok && i < kMeanCount; ++i) group.means[i].add(row[at[i]]);
  }
  return groups;
}

}  // namespace

size_t column_index(const std::string& name) {
  const auto& all = columns();
  return size_t(std::find_if(all.begin(), all.end(), [&](const Column& c) { return name == c.name; }) -
                all.begin());
}

std::string instance_text(const MethodInstance& instance) {
  std::string text = instance.method->info.name;
  for (const ParameterSpec& spec : instance.method->parameters) {
    const auto& value = instance.params.at(spec.name);
    if (value != spec.default_value)
      text += fmt::format(" {}={}", spec.name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  const Axes usual = instance.method->default_axes(instance.params);
  const nlohmann::json axes = to_json(instance.axes), defaults = to_json(usual);
  for (const auto& [name, value] : axes.items())
    if (!defaults.contains(name) || value != defaults.at(name))
      text += fmt::format(" {}={}", name, value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

std::string summary_table(const RunConfig& config, const std::vector<Cell>& plan, const ResultTable& table) {
  const auto groups = grouped(plan, table);
  const bool missing = std::any_of(groups.begin(), groups.end(), [](const auto& g) {
    return g.second.planned > g.second.ok + g.second.failed;
  });
  std::vector<std::vector<std::string>> rows = {{"method", "budget"}};
  rows[0].insert(rows[0].end(), std::begin(kMeans), std::end(kMeans));
  rows[0].insert(rows[0].end(), {"ok", "failed"});
  if (missing) rows[0].emplace_back("missing");
  for (const auto& [key, group] : groups) {
    const auto& [instance, budget] = key;
    const std::string name = instance_text(config.methods[instance]);
    std::vector<std::string> row = {name, budget > 0 ? std::to_string(budget) : "-"};
    for (const Mean& mean : group.means) row.push_back(mean.text());
    row.push_back(std::to_string(group.ok));
    row.push_back(std::to_string(group.failed));
    if (missing) row.push_back(std::to_string(group.planned - group.ok - group.failed));
    rows.push_back(std::move(row));
  }
  return aligned(rows);
}

namespace {

std::string padded(const std::vector<std::vector<std::string>>& rows, size_t left_columns) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += (i > 0 ? "  " : "") + (i < left_columns ? fmt::format("{:<{}}", row[i], widths[i])
                                                      : fmt::format("{:>{}}", row[i], widths[i]));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) { return padded(rows, 1); }
std::string left_aligned(const std::vector<std::vector<std::string>>& rows) { return padded(rows, SIZE_MAX); }

}  // namespace kvreplay::app
