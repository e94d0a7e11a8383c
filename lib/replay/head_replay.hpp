#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "caches/prompt_reading.hpp"
#include "exact/sparse_rows.hpp"
#include "measures/exact_rows.hpp"
#include "replay/decision.hpp"

namespace kvreplay {

// Replays all cells of one kv head (or of one layer, if its kv heads decide together) at once: for each tile the exact
// pass once, then every cache.
template <class Real>
class HeadReplay {
 public:
  // more_rows: rows that branches behind this stream's score.
  HeadReplay(const HeadStream<Real>& stream, const RunOptions& options, int64_t more_rows = 0);
  // Adds one decision: a cell, or with gqa.level layer the cells of the selected kv heads.
  void add(const std::vector<const Cell*>& cells);
  void add(const Cell& cell) { add(std::vector<const Cell*>{&cell}); }
  using Stop = std::function<bool()>;
  using Report = std::function<void(const Cell&, const CellResult&)>;
  // One scored row of a cell. head: of the cell's query heads. out: [width].
  using OnRow = std::function<void(const Cell&, int32_t head, int32_t token, std::span<const Real> out)>;
  // A stopped run leaves cells unfinished.
  void run(const Stop& stop);
  // What run() does, for a stream whose last rows still have to arrive: the prompt, then the rows behind it up to
  // `end`, which have arrived. Such a replay has no device, and no report.
  void begin(const Stop& stop);
  void advance(int32_t end, const Stop& stop);
  void on_row(OnRow on_row) { on_row_ = std::move(on_row); }
  const std::vector<Decision<Real>>& decisions() const { return decisions_; }
  // Reports every cell, after run().
  void report(const Report& report);
  // Lets the decisions go on where those on the branch before ended, after run() of `before`.
  void go_on(HeadReplay& before);

 private:
  using Results = RowResults<Real>;
  HeadDevice::Asked asked_of_device() const;
  std::vector<size_t> by_falling_budget() const;
  void choose_ways();
  void sum_prompt(const Stop& stop);
  void read_prompts(const Stop& stop);
  void make_evaluators();
  void replay_on_device();
  void replay_tile(const Tile<Real>& tile, const Stop& stop);
  bool waits_for_cores(const Decision<Real>& d) const { return d.alive() && !d.on_device; }
  bool has_strip(int32_t t) const { return (every_row_ && !without_strips_) || scored_[size_t(t)] != 0; }
  void next_tile(int32_t begin, int32_t end, Tile<Real>& tile) const;
  std::vector<int32_t> rows_from(int32_t t) const;
  void fill_tile(Tile<Real>& tile);
  void note_residents(int32_t t);
  void rank(Tile<Real>& tile);
  void list_best(const Tile<Real>& tile);
  void rows(Decision<Real>& d, size_t cache, const Tile<Real>& tile, const std::vector<ExactRow>& exact);
  void take(Decision<Real>& d, size_t cache, const Results& results, const std::vector<ExactRow>& exact,
            double seconds);
  template <class F>
  void guarded(Decision<Real>& d, F work);
  // Identifies caches of one method at several budgets that have the same first token.
  using FamilyKey = std::tuple<FastPath::Kind, const Method*, size_t, uint32_t, int32_t, int32_t, bool>;
  FamilyKey family_of(const Decision<Real>& d, const CacheReplay<Real>& cache) const;

  const HeadStream<Real>& stream_;
  const RunOptions& options_;
  int64_t more_rows_;
  ExactAttention<Real> exact_;
  SparseRows<Real> sparse_;
  std::vector<uint8_t> scored_;  // [tokens]
  bool every_row_;               // some method needs the probabilities of rows that are not scored
  bool without_strips_ = false;  // those come from its cache's own dot products: a strip would cost O(n) a row
  bool prefixes_ = false;        // some cell is cut once and is compared on the prompt alone
  ScoredNorms<Real> norms_;
  MeasuredOutputs<Real> outputs_;
  EvaluationShared<Real> shared_;
  std::unique_ptr<DeviceEvaluator<Real>> device_;  // null: no device
  RowCodings<Real> codings_;
  std::vector<Decision<Real>> decisions_;
  PromptReading<Real> prompt_;
  std::map<FamilyKey, std::shared_ptr<ResidentFamily<Real>>> families_;
  Results results_;
  Tile<Real> tile_;
  int32_t next_ = 0;  // first token that has not been replayed
  OnRow on_row_;
  std::vector<std::vector<int32_t>> best_;  // [rows of the tile] tokens that a hot tier is asked for
};

}  // namespace kvreplay
