#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "results/folder.hpp"

// The plan of a sweep as a file that nobody changes: OUT/plan-<name>.jsonl. Its first line holds the resolved
// configuration and the units of work, each further line one cell. The name is the hash of the cells, so that
// the same sweep has the same name whatever its paths, its device and its threads.

namespace kvreplay {

// Cells that are replayed by one worker: of one kv head, which share its tensors and the exact pass, or of a
// whole layer where some method decides for all of its heads.
struct SweepUnit {
  Place place;                  // its trace is one of Manifest::traces; the first kv head
  size_t first = 0, cells = 0;  // of the plan
  double cost = 0;              // operations, roughly

  double cell_cost() const { return cost / double(cells); }
  // Its part of the keys of the plan.
  std::span<const std::string> keys_in(const Keys& plan) const { return std::span(plan).subspan(first, cells); }
};

struct SweepTrace {
  std::filesystem::path path;
  std::string trace_id, model;
};

struct Manifest {
  std::string name;               // 16 hex digits
  std::string run_name;           // of the configuration
  std::string config;             // resolved, with absolute paths: JSON
  std::string device, precision;  // as it says
  std::string unreachable;        // shares of the cache that methods do not reach: a JSON list, or ""
  SaveOptions save;
  bool whole_traces = false;  // some cell looks at all layers, or at other prompts
  bool every_row = false;     // RunOptions::every_row
  int64_t bytes_peak = 0;     // of a worker, about, with one thread
  std::vector<SweepTrace> traces;
  std::vector<SweepUnit> units;    // in the order of the plan
  std::vector<std::string> cells;  // one line of JSON each, starting with the key

  Keys keys() const;
  double cost() const;
};

// Shares of the cache for which a cell's budget was asked, of its line.
std::vector<double> shares_in(const std::string& line);

// `config` names its files by absolute paths.
Manifest make_manifest(const RunConfig& config, const std::vector<TraceInfo>& traces, const std::vector<Cell>& plan);

// The configuration with absolute paths, wherever it is read again.
RunConfig with_absolute_paths(RunConfig config);

// A directory holds one plan. Publishes the file; one of the same name is replaced, whose paths may differ.
// Throws ConfigError where the directory holds another plan, OutputError where it cannot be written.
std::filesystem::path write_manifest(const std::filesystem::path& dir, const Manifest& manifest);
// Throws ConfigError: there is none, there are several, or it was changed.
Manifest read_manifest(const std::filesystem::path& dir);
// Removes the plan of a directory, if there is one.
void forget_manifest(const std::filesystem::path& dir);

}  // namespace kvreplay
