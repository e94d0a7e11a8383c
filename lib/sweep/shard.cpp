#include "sweep/shard.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace kvreplay {

namespace {

bool is_open(CellState state) { return state == CellState::missing || state == CellState::failed; }

}  // namespace

CellState state_of(const std::string& key, const ResultsFolder& folder) {
  if (folder.done().count(key) != 0) return CellState::ok;
  const int32_t failures = folder.failures(key);
  if (failures == 0) return CellState::missing;
  return failures < kMostAttempts ? CellState::failed : CellState::parked;
}

SweepStatus status_of(const Manifest& manifest, const ResultsFolder& folder) {
  SweepStatus status;
  const Keys keys = manifest.keys();
  status.cells = int64_t(keys.size());
  for (const SweepUnit& unit : manifest.units)
    for (const std::string& key : unit.keys_in(keys)) {
      const CellState state = state_of(key, folder);
      status.ok += state == CellState::ok;
      status.failed += state == CellState::failed;
      status.parked += state == CellState::parked;
      status.missing += state == CellState::missing;
      status.stale += state == CellState::ok && !folder.shards().cells.at(key).own_build;
      if (is_open(state)) status.cost_left += unit.cell_cost();
    }
  status.repeated = int64_t(folder.shards().repeats.size());
  status.damaged = int64_t(folder.shards().unreadable_lines);
  return status;
}

std::vector<int32_t> missing_shards(const Manifest& manifest, const ResultsFolder& folder, int32_t count) {
  const Keys keys = manifest.keys();
  const std::vector<int32_t> shard_of = shards_of_units(manifest.units, count);
  std::set<int32_t> open;
  for (size_t u = 0; u < manifest.units.size(); ++u)
    for (const std::string& key : manifest.units[u].keys_in(keys))
      if (is_open(state_of(key, folder))) open.insert(shard_of[u]);
  return {open.begin(), open.end()};
}

namespace {

constexpr int32_t kManyShards = 1'000'000;

}  // namespace

Shard parse_shard(const std::string& text) {
  const std::string_view whole = text;
  const size_t slash = whole.find('/');
  const auto index = parse_number<int32_t>(whole.substr(0, slash));
  const auto count = slash == whole.npos ? std::nullopt : parse_number<int32_t>(whole.substr(slash + 1));
  if (index && count && *count >= 1 && *count <= kManyShards && *index >= 0 && *index < *count) return {*index, *count};
  throw ConfigError(fmt::format("--shard {}: must be i/N with i from 0 to N-1, for example 0/20", text));
}

// Lays all costs end to end; a unit belongs to the shard that contains the middle of its cost.
std::vector<int32_t> shards_of_units(const std::vector<SweepUnit>& units, int32_t count) {
  double total = 0;
  for (const SweepUnit& unit : units) total += std::max(unit.cost, 1.0);
  std::vector<int32_t> shards;
  double before = 0;
  for (const SweepUnit& unit : units) {
    const double cost = std::max(unit.cost, 1.0);
    shards.push_back(std::min(count - 1, int32_t((before + cost / 2) / total * count)));
    before += cost;
  }
  return shards;
}

std::vector<size_t> units_of(const std::vector<SweepUnit>& units, const Shard& shard) {
  const std::vector<int32_t> of_unit = shards_of_units(units, shard.count);
  std::vector<size_t> mine;
  for (size_t u = 0; u < units.size(); ++u)
    if (of_unit[u] == shard.index) mine.push_back(u);
  return mine;
}

std::string ranges_text(const std::vector<int32_t>& numbers) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    ranges.push_back(end - i == 1 ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return join(ranges, ",");
}

}  // namespace kvreplay
