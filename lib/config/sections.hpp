#pragma once
#include <filesystem>

#include "config/values.hpp"

// The parts of a configuration, one reader each. A reader fills its part of the RunConfig, notes marks,
// and leaves the default where the value is wrong (which is then among the problems).

namespace kvreplay {

struct Source {  // what every reader needs
  const Registry& methods;
  const std::vector<std::string>& measures;  // columns that `metrics:` may name; empty: anything
  std::filesystem::path base;                // relative paths start here
  bool names_traces = true;                  // false: they are open already
  std::filesystem::path at(const std::string& given) const;
};

// An empty `label` means that everything comes from the command line.
RunConfig read_config(const std::string& text, const std::string& label, const Source& source,
                      const std::vector<std::string>& overrides, Problems& problems);
void read_root(RunConfig& config, const Node& root, const Source& source, Problems& problems);

void read_traces(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems);
void read_select(RunConfig& config, const Node* node, Problems& problems);
void read_replay(RunConfig& config, const Node* node, Problems& problems);
void read_methods(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems);
void read_budget(RunConfig& config, const Node* node, const Mark& key, Problems& problems);
void read_seeds(RunConfig& config, const Node* node, Problems& problems);
void read_metrics(RunConfig& config, const Node* node, const Source& source, Problems& problems);
void read_run(RunConfig& config, const Node* node, Problems& problems);
void read_output(RunConfig& config, const Node* node, const Source& source, Problems& problems);

// As run_config.hpp says.
std::vector<SelectedLayer> select(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems);

}  // namespace kvreplay
