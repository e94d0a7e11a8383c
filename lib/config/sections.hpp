#pragma once
#include <filesystem>

#include "config/values.hpp"

// Readers for the parts of a configuration. A reader fills its part of the RunConfig and records marks. A wrong value
// is added to the problems and leaves the default.

namespace kvreplay {

struct Source {  // what every reader needs
  const Registry& methods;
  const std::vector<std::string>& measures;  // columns that `metrics:` may name; empty: any
  std::filesystem::path base;                // relative paths start here
  bool names_traces = true;                  // false: traces are already open
  std::filesystem::path at(const std::string& given) const;
};

// An empty `label` means that the configuration is no file.
RunConfig read_config(const std::string& text, const std::string& label, const Source& source,
                      const std::vector<std::string>& overrides, Problems& problems);
void read_root(RunConfig& config, const Node& root, const Source& source, Problems& problems);

void read_traces(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems);
void read_select(RunConfig& config, const Node* node, Problems& problems);
void read_replay(RunConfig& config, const Node* node, Problems& problems);
void read_working_set(RunConfig& config, const Section& replay, Problems& problems);
// What a hot tier asks of the methods. Call after these were read.
void check_tier(const RunConfig& config, Problems& problems);
void read_methods(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems);
void read_budget(RunConfig& config, const Node* node, const Mark& key, Problems& problems);
void read_seeds(RunConfig& config, const Node* node, Problems& problems);
void read_metrics(RunConfig& config, const Node* node, const Source& source, Problems& problems);
void read_run(RunConfig& config, const Node* node, Problems& problems);
void read_output(RunConfig& config, const Node* node, const Source& source, Problems& problems);

// See run_config.hpp.
std::vector<SelectedLayer> select(RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems);
// Decides which bytes shares of the cache bound, if the configuration leaves it open.
void decide_bytes_of_shares(RunConfig& config, const std::vector<SelectedLayer>& selected);

}  // namespace kvreplay
