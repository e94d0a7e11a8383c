#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "exact/head_stream.hpp"
#include "replay/runner.hpp"

// Budgets that are shared over the heads of a layer, or over layers, are settled before the replay: every
// head that shares states its prompt scores, and the rule answers with tokens for each. After that a cell
// knows its own number and is replayed like any other.

namespace kvreplay {

// Where a head is read, for the council and for the replay.
template <class Real>
using LoadHead = std::function<HeadStream<Real>(size_t trace, const HeadRequest&)>;
// (layer, kv heads) that a prompt of a trace holds.
struct HeldLayer {
  int32_t layer, kv_heads;
};
using ListLayers = std::function<std::vector<HeldLayer>(size_t trace, const std::string& prompt)>;

// Cells by key that have no budget, with the reason; only with RunOptions::outlive_heads.
using WithoutBudget = std::map<std::string, std::string>;

// Fills in Cell::allocated where an allocator decides.
template <class Real>
WithoutBudget allocate_budgets(std::vector<Cell>& cells, const RunOptions& options,
                               const LoadHead<Real>& load, const ListLayers& layers);

}  // namespace kvreplay
