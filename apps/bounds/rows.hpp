#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

// What `kvreplay bounds` says of each paper: one row a quantity, from the functions of lib/theory.

namespace kvreplay::app {

// What a paper's formulas are given, by name: "n", "epsilon", ... (bound_inputs.hpp); constants as "c_t".
using BoundInputs = std::map<std::string, double>;

struct BoundRow {
  std::string quantity;
  // log10 of the value: none for 0, and where the quantity does not exist. The value itself only below 10^15.
  std::optional<double> log10, value;
  std::string unit;
  std::optional<double> probability;  // with which the theorem holds, where it says so
  std::string note;
};

// Which norm a paper calls r, where a trace is measured.
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
