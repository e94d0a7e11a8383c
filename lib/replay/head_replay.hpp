#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "exact/sparse_rows.hpp"
#include "measures/accumulator.hpp"
#include "measures/scored_norms.hpp"
#include "replay/device_caches.hpp"
#include "replay/fixed_sets.hpp"
#include "replay/lane.hpp"
#include "replay/runner.hpp"
#include "replay/score_slots.hpp"
#include "replay/sliding_sets.hpp"
#include "trace/kept_lists.hpp"

namespace kvreplay {

// All cells of one kv head (or of one layer, where its kv heads decide together), replayed together: tile
// after tile, the exact pass once, then every cache.
template <class Real>
class HeadReplay {
 public:
  HeadReplay(const HeadStream<Real>& stream, const RunOptions& options);
  // One decision: a cell, or with gqa.level layer the cells of the selected kv heads.
  void add(const std::vector<const Cell*>& cells);
  void add(const Cell& cell) { add(std::vector<const Cell*>{&cell}); }
  using Stop = std::function<bool()>;
  using Report = std::function<void(const Cell&, const CellResult&)>;
  // Reports every cell that was finished; a stopped run reports none of those in flight.
  void run(const Stop& stop, const Report& report);
  // Instead of a run: what each decision (of one cache) says when budgets are shared, in the order of add();
  // no scores where it streams the prompt.
  std::vector<HeadScores> head_scores();

 private:
  // A cache, and what stands in for its own replay.
  struct Evaluator {
    Shortcut shortcut;
    size_t id = 0;                            // among fixed_ or sliding_
    std::unique_ptr<ScoreSlots<Real>> slots;  // of `scores`
  };
  // One cache for the group or the layer, or with gqa.level query one for each query head.
  struct Replayed {
    std::vector<const Cell*> cells;
    std::vector<std::unique_ptr<Lane<Real>>> lanes;
    std::vector<Evaluator> evaluators;                 // of each lane
    std::vector<std::unique_ptr<Accumulator>> errors;  // of each cell
    std::vector<std::vector<double>> uniforms;
    KeptLists lists;  // that it is given
    std::string failure;
    bool on_device = false;
    bool chained = false;  // and there by the text of its policy, from the first token on
    bool cut = false;      // or its prompt is cut there
    bool alive() const { return failure.empty(); }
    bool streams_prompt() const { return cells.front()->prompt_streams || lanes.front()->streams_prompt(); }
  };
  std::vector<uint8_t> scored_tokens() const;
  std::vector<int32_t> scored_rows() const;
  void replay_tiles(const Stop& stop);
  void inject(Replayed& r, LaneOrder& order);
  void read_lists(Replayed& r, const LaneOrder& order, int32_t caches) const;
  std::vector<size_t> by_falling_budget() const;
  std::vector<std::vector<double>> column_sums(const PromptPass& pass);
  std::vector<double> sums_of_future();
  void sum_prompt();
  template <class F>
  void each_prompt(F f);
  void read_prompts();
  void next_tile(int32_t begin, int32_t end, Tile<Real>& tile) const;
  bool has_strip(int32_t t) const { return (every_row_ && !solo_) || scored_[size_t(t)] != 0; }
  std::vector<int32_t> rows_from(int32_t t) const;
  void fill_tile(Tile<Real>& tile);
  void rank(Tile<Real>& tile);
  void choose_evaluators();
  Evaluator evaluator_of(const Replayed& r, Lane<Real>& lane);
  bool device_takes(const Replayed& r) const;
  bool device_runs(const Replayed& r, const Lane<Real>& lane) const;
  bool device_replays(const Replayed& r) const;
  void give_to_device(size_t decision);
  bool device_cuts(const Replayed& r) const;
  void order_chains(size_t decision, Lane<Real>& lane, const PromptSums& sums);
  void cut_on_device();
  void replay_on_device();
  void replay_chains();
  HeadDevice::Asked asked_of_device() const;
  // One row of a cache that a device computed.
  struct DeviceCell {
    const DeviceRows& rows;
    const DeviceRows::OfCache& cache;
    size_t row;  // in `rows`
    int32_t token;
    std::span<const ValueNorm> norms;
    int32_t first_head, heads;  // of the cache
    bool by_head;
  };
  // What a row of the cache looked at, by head.
  using About = std::function<ChainRow(int32_t head)>;
  void take(const DeviceRows& rows, const std::vector<int32_t>& tokens);
  void take_chains(const DeviceRows& rows, const std::vector<int32_t>& tokens);
  void take_row(Replayed& r, const DeviceCell& at, const About& about);
  ScoredRow scored_row_of(const DeviceCell& at, int32_t head, const ChainRow& about) const;
  double tiny_norm() const;
  size_t family_of(const Replayed& r, const Lane<Real>& lane, Shortcut::Kind kind);
  void step_sliding(const Tile<Real>& tile, Replayed& r);
  void replay_tile(const Tile<Real>& tile, Replayed& r);
  void replay_lane(const Tile<Real>& tile, const Replayed& r, size_t lane);
  CellResult result_of(Replayed& r, size_t cell) const;
  void keep_lists(const Replayed& r, CellResult& result) const;
  template <class F>
  void guarded(Replayed& r, F f);
  int32_t group() const { return stream_.shape.heads / stream_.shape.blocks; }

  const HeadStream<Real>& stream_;
  ExactAttention<Real> exact_;
  SparseRows<Real> sparse_;
  const RunOptions& options_;
  std::vector<Replayed> decisions_;
  bool every_row_;         // some method needs the probabilities of rows that are not scored
  bool solo_ = false;      // they come from its cache's own dot products: a strip would cost O(n) a row
  bool prefixes_ = false;  // some cell is cut once and is compared on the prompt alone
  LaneWatch watch_;
  std::vector<uint8_t> scored_;  // [tokens]
  int64_t scored_rows_ = 0;
  ScoredNorms<Real> norms_;
  std::unique_ptr<HeadDevice> device_;  // null: none
  DeviceCaches<Real> device_caches_;
  struct LaneId {
    size_t decision, lane;
  };
  std::vector<LaneId> device_lanes_, chain_lanes_;  // of each of its caches
  std::vector<ChainOrder> chains_;
  std::vector<int64_t> chain_tokens_;  // attended to, of each
  // Sums over rows of the prompt and of the future, which caches refer to while they begin.
  std::map<int32_t, std::vector<double>> prompt_sums_;  // by the first row that is summed
  std::vector<double> future_sums_;
  FixedSets<Real> fixed_;
  SlidingSets<Real> sliding_;
  using FamilyKey = std::tuple<Shortcut::Kind, const Method*, size_t, uint32_t, int32_t, int32_t>;
  std::map<FamilyKey, size_t> families_;
  LaneWorkspace<Real> workspace_;
  LaneTile<Real> lane_tile_;
};

// A cell that fails is reported as failed; the others go on.
template <class Real>
template <class F>
void HeadReplay<Real>::guarded(Replayed& r, F f) {
  if (!r.alive()) return;
  try {
    f();
  } catch (const LaneError& e) {
    r.failure = e.what();
    for (const Evaluator& evaluator : r.evaluators)
      if (evaluator.shortcut.kind == Shortcut::Kind::sliding) sliding_.leave(evaluator.id);
  }
}

// f(decision, lane, sums) for every cache that takes the prompt in one call.
template <class Real>
template <class F>
void HeadReplay<Real>::each_prompt(F f) {
  for (const size_t d : by_falling_budget())
    guarded(decisions_[d], [&] {
      for (const auto& lane : decisions_[d].lanes) {
        if (decisions_[d].streams_prompt()) continue;
        const auto at = prompt_sums_.find(lane->needs().column_sums_from);
        f(d, *lane,
          PromptSums{at == prompt_sums_.end() ? nullptr : at->second.data(),
                     future_sums_.empty() ? nullptr : future_sums_.data()});
      }
    });
}

}  // namespace kvreplay
