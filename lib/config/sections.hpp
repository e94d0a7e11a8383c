#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

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

// Reads one value, or a list without repetition. remedy: what to do about an empty list. nullopt: it is empty.
template <class T, class Read>
std::optional<std::vector<T>> read_distinct(RunConfig& config, const Node& node, const std::string& name,
                                            const std::string& remedy, Problems& problems, Read read) {
  config.marks[name] = node.mark;
  if (node.kind == Node::Kind::list && node.items.empty())
    return problems.error(node.mark, problems.words().key(name) + " is an empty list: " + remedy), std::nullopt;
  std::vector<T> chosen;
  for (const Node* item : one_or_many(node)) {
    const auto value = read(*item);
    if (!value) continue;
    if (std::find(chosen.begin(), chosen.end(), T(*value)) != chosen.end()) {
      problems.error(item->mark, fmt::format("{} is listed twice in {}", *value, problems.words().key(name)));
      continue;
    }
    config.marks[fmt::format("{}[{}]", name, chosen.size())] = item->mark;
    chosen.push_back(T(*value));
  }
  return chosen;
}

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
