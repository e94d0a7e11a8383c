#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/run_config.hpp"
#include "results/folder.hpp"
#include "sweep/manifest.hpp"

namespace kvreplay {

// The progress of a sweep.

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

// Cuts a plan into shards: neighbours in the plan stay together, and shards cost about the same.

struct Shard {
  int32_t index = 0, count = 1;
};

// "3/20": the fourth of twenty. Throws ConfigError.
Shard parse_shard(const std::string& text);

// Index of the shard of each unit, among `count` shards. A shard may be empty.
std::vector<int32_t> shards_of_units(const std::vector<SweepUnit>& units, int32_t count);
// Units of one shard, in the order of the plan.
std::vector<size_t> units_of(const std::vector<SweepUnit>& units, const Shard& shard);

// "0-3,7": the notation of job arrays. `numbers` must ascend.
std::string ranges_text(const std::vector<int32_t>& numbers);

// Turns units of a manifest back into cells that the engine can replay. Opens only the prompts and layers of these
// units.

struct ShardWork {
  RunConfig config;                                 // how the cells are replayed
  std::vector<std::filesystem::path> traces;        // Place::trace indexes these
  std::vector<Cell> cells;                          // in the order of the units
  std::unordered_map<std::string, size_t> unit_of;  // unit of each cell, by key
  // One line for each trace and prompt that could not be opened; their cells are missing. exit_code: that of the first
  // problem.
  std::vector<std::string> problems;
  int exit_code = 0;
};

struct ShardRequest {
  std::vector<size_t> units;           // units of the manifest, in the order of work
  std::vector<std::string> overrides;  // overrides of the configuration: device, jobs, output.dir
  // Returns the path to read a trace from, if it is not the planned one: a copy that holds what `scope` names.
  std::function<std::filesystem::path(const SweepTrace&, const TraceScope& scope)> place;
};

// Cells have the keys of the manifest: if a trace or a file has changed since, that is a problem and not another
// result.
ShardWork open_units(const Manifest& manifest, const ShardRequest& request, const Registry& methods,
                     const std::vector<std::string>& measures);

}  // namespace kvreplay
