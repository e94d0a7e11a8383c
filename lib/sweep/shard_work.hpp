#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/run_config.hpp"
#include "sweep/manifest.hpp"

// From units of a manifest back to cells that the engine can replay. Only the prompts and layers of these
// units are opened.

namespace kvreplay {

struct ShardWork {
  RunConfig config;                                 // how they are replayed
  std::vector<std::filesystem::path> traces;        // Place::trace indexes these
  std::vector<Cell> cells;                          // in the order of the units
  std::unordered_map<std::string, size_t> unit_of;  // of a cell, by key
  // What could not be opened, one line for each trace and prompt; its cells are missing. exit_code: of the
  // first.
  std::vector<std::string> problems;
  int exit_code = 0;
};

struct ShardRequest {
  std::vector<size_t> units;           // of the manifest, in the order of work
  std::vector<std::string> overrides;  // of the configuration: device, jobs, output.dir
  // Where the trace is read, if not where it was planned: a copy that holds what `scope` names.
  std::function<std::filesystem::path(const SweepTrace&, const TraceScope& scope)> place;
};

// Cells have the keys of the manifest: a trace or a file that has changed since is a problem, not another
// result.
ShardWork open_units(const Manifest& manifest, const ShardRequest& request, const Registry& methods,
                     const std::vector<std::string>& measures);

}  // namespace kvreplay
