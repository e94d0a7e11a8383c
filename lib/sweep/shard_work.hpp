#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/run_config.hpp"
#include "sweep/manifest.hpp"

// Turns units of a manifest back into cells that the engine can replay. Opens only the prompts and layers of these
// units.

namespace kvreplay {

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
