#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

// The results of `kvreplay bounds` for each paper: one row a quantity, computed by the functions of lib/theory.

namespace kvreplay::app {

// Inputs of a paper's formulas by name: "n", "epsilon", ... (inputs.hpp); constants as "c_t".
using BoundInputs = std::map<std::string, double>;

struct BoundRow {
  std::string quantity;
  // log10 of the value: empty for 0, and if the quantity does not exist. `value` is set only below 10^15.
  std::optional<double> log10, value;
  std::string unit;
  std::optional<double> probability;  // with which the theorem holds, if it states one
  std::string note;
};

// The norm that a paper calls r, for measured traces.
enum class BoundNorm { none, scaled_query, key_and_query, key };

struct BoundPaper {
  const char* name;
  const char* title;
  BoundNorm r = BoundNorm::none;
  bool per_head = false;  // its inputs differ between heads of a trace
  std::vector<std::string> inputs;
  std::vector<BoundRow> (*rows)(const BoundInputs&);
};
const std::vector<BoundPaper>& bound_papers();

}  // namespace kvreplay::app
