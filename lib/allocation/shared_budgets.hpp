#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "exact/query_selection.hpp"

// Budgets that are shared over the heads of a layer, or over layers, are divided before the replay: every head that
// shares states its prompt scores, and the rule answers with tokens for each. After that a cell knows its own share
// and is replayed like any other. Heads that hear each other do so on the way.

namespace kvreplay {

// Where the heads of a run are read.
template <class Real>
struct HeadSource {
  std::function<HeadStream<Real>(const HeadRequest&)> load;
  // (layer, kv heads) that a prompt of a trace holds; kv_head is the number of them.
  std::function<std::vector<Place>(size_t trace, const std::string& prompt)> layers;
  // Their sliding windows, in the order of `layers`, 0: none. For cells of the allocator windows.
  std::function<std::vector<int32_t>(size_t trace, const std::string& prompt)> windows = nullptr;
};

struct SharingOptions {
  int jobs = 1;            // threads over kv heads
  bool audit = false;      // as RunOptions
  QuerySelection queries;  // for oracles, which score the prompt by them
  std::function<bool()> stop;
  bool outlive_heads = false;
};

// Cells by key that have no budget, with the reason; only with outlive_heads.
using WithoutBudget = std::map<std::string, std::string>;

// Gives every cell whose budget is shared its share.
template <class Real>
WithoutBudget share_budgets(std::vector<Cell>& cells, const SharingOptions& options, const HeadSource<Real>& heads);

// For a catch block: why a head is lost where the others go on. What is wrong with more than the head is thrown on.
std::string why_head_is_lost(bool others_go_on);

}  // namespace kvreplay
