#pragma once
#include <memory>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "evaluate/choice.hpp"
#include "evaluate/device_evaluator.hpp"
#include "measures/accumulator.hpp"
#include "measures/working_set.hpp"
#include "replay/branch_results.hpp"
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
  std::vector<WorkingSet> sets;                              // likewise
  bool on_device = false;
  bool cache_for_each_kv_head = false;  // a layer is replayed together; else its heads share the caches
  int32_t first_measured = 0;           // first row that is measured; an oracle has looked at the rows before it
  std::string failure;                  // "" if nothing failed
  std::vector<double> resident;         // tokens in each cache when the open segment began
  int32_t segment = -1;                 // first token of the segment whose rows are measured; -1: none yet
  std::vector<std::vector<BranchResult>> branches;  // [cells]: of the branches before this one
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

// scored: [tokens] 1 for tokens whose rows are scored. more_rows: rows that branches behind this one score.
template <class Real>
Decision<Real> make_decision(const std::vector<const Cell*>& cells, const HeadStream<Real>& stream,
                             const RunOptions& options, const std::vector<uint8_t>& scored, RowCodings<Real>& codings,
                             int64_t more_rows);
// Call when the first row after the prompt arrives.
template <class Real>
void hold_residents(Decision<Real>& decision);
// Ends a decision that is alive, after all rows. Call once, before its results are asked for.
template <class Real>
void close(Decision<Real>& decision);
// Result of one of its cells, after close().
template <class Real>
CellResult result_of(Decision<Real>& decision, size_t cell, const HeadStream<Real>& stream, const RunOptions& options);
// Bytes that the caches of one of its cells take now.
template <class Real>
double bytes_held(const Decision<Real>& decision, size_t cell, const HeadStream<Real>& stream);
// Lets a decision on one branch go on where the decision on the branch before it ended: its rows are added to the
// others. The caches start anew, from the same context. stream: the one that `before` was made for.
template <class Real>
void go_on(Decision<Real>& decision, Decision<Real>& before, const HeadStream<Real>& stream, const RunOptions& options);
// The rows that follow belong to a segment.
template <class Real>
void open_segment(Decision<Real>& decision, const Turns::Segment& segment);

}  // namespace kvreplay
