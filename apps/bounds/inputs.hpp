#pragma once
#include <optional>
#include <string>
#include <vector>

#include "apps/bounds/rows.hpp"
#include "apps/command_line.hpp"

// Collects the inputs of `kvreplay bounds`: options with lists of values, and traces.

namespace kvreplay::app {

// Names of all inputs in the order of columns, constants last.
std::vector<std::string> bound_input_names();
// Text of an input for output: a number, or the name of a BUZZ variant.
std::string bound_input_text(const std::string& name, double value);

struct BoundChoices {
  std::vector<std::string> papers;
  std::map<std::string, std::string> lists;  // lists from the command line, by input: "0.1,0.2"
  std::map<std::string, Option> inputs;      // options that may be used
  std::vector<std::string> constants;        // NAME=VALUE
  std::string trace, prompt, layers, kv_heads, tokens, delta_rel;
  bool csv = false, json = false;
};
void add_bound_options(Command& command, BoundChoices& choices);

// One set of inputs of one paper.
struct BoundCase {
  std::optional<int32_t> layer, kv_head;  // set for a measured head
  BoundInputs inputs;
};
// The chosen papers. Throws ConfigError.
std::vector<const BoundPaper*> chosen_papers(const BoundChoices& choices);
// All combinations of the lists, for every measured head if there is a trace; one list a paper. Throws ConfigError that
// names the option, the value and the remedy, or TraceError.
std::vector<std::vector<BoundCase>> bound_cases(const BoundChoices& choices,
                                                const std::vector<const BoundPaper*>& papers);

}  // namespace kvreplay::app
