#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "exact/query_selection.hpp"

// Budgets that the heads of a layer, or of several layers, share are divided before the replay. Every sharing head is
// scored on the prompt, and the rule returns tokens for each. From then on a cell has a budget like any other cell.
// Heads that exchange scores (hook `hear`) do so at the same time.

namespace kvreplay {

// Gives access to the heads of a run.
template <class Real>
struct HeadSource {
  std::function<HeadStream<Real>(const HeadRequest&)> load;
  // (layer, kv heads) that a prompt of a trace holds; kv_head is their number.
  std::function<std::vector<Place>(size_t trace, const std::string& prompt)> layers;
  // Sliding windows in the order of `layers`, 0: none. Needed by cells of the allocator windows.
  std::function<std::vector<int32_t>(size_t trace, const std::string& prompt)> windows = nullptr;
};

struct SharingOptions {
  int jobs = 1;            // threads over kv heads
  bool audit = false;      // as RunOptions::audit
  QuerySelection queries;  // rows by which oracles score the prompt
  std::function<bool()> stop;
  bool continue_on_head_failure = false;
};

// Keys of cells that have no budget, with the reason; filled only with continue_on_head_failure.
using WithoutBudget = std::map<std::string, std::string>;

// Sets the share of every cell whose budget is shared.
template <class Real>
WithoutBudget share_budgets(std::vector<Cell>& cells, const SharingOptions& options, const HeadSource<Real>& heads);

// For a catch block: returns why a head is lost, if the other heads go on. Rethrows errors that concern more than one
// head.
std::string head_failure_reason(bool others_go_on);

}  // namespace kvreplay
