#pragma once
#include <cstdint>
#include <vector>

#include "results/folder.hpp"
#include "sweep/manifest.hpp"

// The progress of a sweep.

namespace kvreplay {

constexpr int32_t kMostAttempts = 3;  // after so many attempts a failed cell is parked

enum class CellState { missing, ok, failed, parked };  // failed: will be tried again
CellState state_of(const std::string& key, const ResultsFolder& folder);

struct SweepStatus {
  int64_t cells = 0, ok = 0, failed = 0, parked = 0, missing = 0;
  int64_t stale = 0;     // those of `ok` that another build computed
  int64_t repeated = 0;  // lines beyond the first of a cell
  int64_t damaged = 0;   // lines that are ignored
  double cost_left = 0;  // operations, roughly
  bool complete() const { return missing + failed == 0; }
};

SweepStatus status_of(const Manifest& manifest, const ResultsFolder& folder);
// Those of `count` shards that hold a cell which is missing or will be tried again, ascending.
std::vector<int32_t> missing_shards(const Manifest& manifest, const ResultsFolder& folder, int32_t count);

}  // namespace kvreplay
