#include "sweep/status.hpp"

#include <set>

#include "sweep/shard.hpp"

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

}  // namespace kvreplay
