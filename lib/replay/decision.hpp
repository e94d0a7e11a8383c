#pragma once
#include <memory>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "evaluate/choice.hpp"
#include "evaluate/device_evaluator.hpp"
#include "measures/accumulator.hpp"
#include "replay/runner.hpp"
#include "trace/kept_lists.hpp"

namespace kvreplay {

// Cells that decide together: one cell, or with gqa.level layer the cells of the layer's selected kv heads. The group
// or the layer has one cache, or with gqa.level query one for each query head.
template <class Real>
struct Decision {
  std::vector<const Cell*> cells;
  std::vector<std::unique_ptr<CacheReplay<Real>>> caches;
  std::vector<std::unique_ptr<Evaluator<Real>>> evaluators;  // one for each cache that the CPU replays
  std::vector<Accumulator> errors;                           // one for each cell
  bool on_device = false;
  bool cache_for_each_kv_head = false;  // a layer is replayed together; else its heads share the caches
  int32_t first_measured = 0;           // first row that is measured; an oracle has looked at the rows before it
  std::string failure;                  // "" if nothing failed
  // Storage that the caches refer to.
  std::vector<std::vector<double>> uniforms;
  KeptLists lists;

  const Cell& cell() const { return *cells.front(); }
  // Whether a cache belongs to the cell of this number.
  bool is_replayed_by(size_t number, const CacheReplay<Real>& cache) const {
    return !cache_for_each_kv_head || cells[number]->place.kv_head == cache.first_head() / cache.heads();
  }
  bool alive() const { return failure.empty(); }
  bool streams_prompt() const { return cell().variant->prompt_streams || caches.front()->streams_prompt(); }
  void fail(const std::string& why) {
    failure = why;
    for (const auto& evaluator : evaluators) evaluator->leave();
  }
};

// scored: [tokens] 1 for tokens whose rows are scored.
template <class Real>
Decision<Real> make_decision(const std::vector<const Cell*>& cells, const HeadStream<Real>& stream,
                             const RunOptions& options, const std::vector<uint8_t>& scored, RowCodings<Real>& codings);
// Result of one of its cells, after all rows have been replayed.
template <class Real>
CellResult result_of(Decision<Real>& decision, size_t cell, const HeadStream<Real>& stream, const RunOptions& options);

}  // namespace kvreplay
