#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "exact/head_stream.hpp"

// Budgets that the heads of a layer, or of several layers, share are divided before the replay. Every sharing head is
// scored on the prompt, and the rule returns tokens for each. From then on a cell has a budget like any other cell.
// Heads that exchange scores (hook `hear`) do so at the same time.

namespace kvreplay {

// A cell that gets a share of the budget, and the index of its head among the heads that were scored.
struct Receiver {
  Cell* cell;
  size_t head;
};

// Every head of some layers of a trace, for any prompt. layers: see HeadSource::layers.
std::vector<Place> heads_of(const std::vector<Place>& layers);
// Index of the cell's head among `heads`.
size_t place_of(const Cell& cell, const std::vector<Place>& heads);

// Sets a cell's share of a budget. Throws ConfigError if its method cannot work with it.
void give(Cell& cell, int32_t tokens);

// Prompt tokens that all heads together hold beyond one budget per head.
double excess_tokens(const std::vector<int32_t>& tokens, const Cell& like);

// The head holds the first and the newest tokens at every step, whichever method cuts the other heads. It is replayed
// as StreamingLLM; results show the cell's configured method.
void stream_ends(Cell& cell, Protect ends);

// Gives access to the heads of a run.
template <class Real>
struct HeadSource {
  std::function<HeadStream<Real>(const HeadRequest&)> load;
  // (layer, kv heads) that a prompt of a trace holds; kv_head is their number.
  std::function<std::vector<Place>(size_t trace, const std::string& prompt)> layers;
  // Most tokens that a window or chunk shows, in the order of `layers`; 0: there is none. Needed by cells of the
  // allocator windows.
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
