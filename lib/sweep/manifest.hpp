#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "results/folder.hpp"

// The plan of a sweep as an immutable file OUT/plan-<name>.jsonl. The first line holds the resolved configuration and
// the units of work, each further line one cell. The name is the hash of the cells, so equal sweeps have the same name,
// whatever their paths, device and threads.

namespace kvreplay {

// Cells that one worker replays: those of one kv head, which share its tensors and the exact pass, or those of a whole
// layer if some method decides for all of its heads.
struct SweepUnit {
  Place place;                  // its trace indexes Manifest::traces; its kv head is the first one
  size_t first = 0, cells = 0;  // range in the plan
  double cost = 0;              // operations, roughly

  double cell_cost() const { return cost / double(cells); }
  // The keys of this unit within the keys of the plan.
  std::span<const std::string> keys_in(const Keys& plan) const { return std::span(plan).subspan(first, cells); }
};

struct SweepTrace {
  std::filesystem::path path;
  std::string trace_id, model;
};

struct Manifest {
  std::string name;               // 16 hex digits
  std::string run_name;           // name in the configuration
  std::string config;             // resolved, with absolute paths: JSON
  std::string device, precision;  // from the configuration
  std::string unreachable;        // shares of the cache that methods do not reach: a JSON list, or ""
  SaveOptions save;
  bool whole_traces = false;  // some cell looks at all layers, or at other prompts
  bool every_row = false;     // RunOptions::every_row
  int64_t bytes_peak = 0;     // memory of a worker with one thread, roughly
  std::vector<SweepTrace> traces;
  std::vector<SweepUnit> units;    // in the order of the plan
  std::vector<std::string> cells;  // one line of JSON each, starting with the key

  Keys keys() const;
  double cost() const;
};

// Shares of the cache that a cell's budget was asked for, from the cell's line.
std::vector<double> shares_in(const std::string& line);

// `config` must name its files by absolute paths.
Manifest make_manifest(const RunConfig& config, const std::vector<TraceInfo>& traces, const std::vector<Cell>& plan);

// The configuration with absolute paths, so that it can be read from any directory.
RunConfig with_absolute_paths(RunConfig config);

// Publishes the file. A directory holds one plan: one of the same name is replaced (its paths may differ). Throws
// ConfigError if the directory holds another plan, OutputError if it cannot be written.
std::filesystem::path write_manifest(const std::filesystem::path& dir, const Manifest& manifest);
// Throws ConfigError if there is no plan, if there are several, or if it was changed.
Manifest read_manifest(const std::filesystem::path& dir);
// Removes the plan of a directory, if there is one.
void forget_manifest(const std::filesystem::path& dir);

}  // namespace kvreplay
