#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "catalog/method.hpp"
#include "core/step.hpp"
#include "replay/lane_memory.hpp"
#include "replay/tile_output.hpp"

namespace kvreplay {

// The CPU's replay of one policy: core/step.hpp, with logits from the shared strip and outputs deferred
// to the end of the tile.
template <class P, class Real>
class LaneOf final : public Lane<Real> {
 public:
  LaneOf(const P& policy, const LaneOrder& order) : policy_(policy), order_(order) {}

  PromptNeeds needs() const override {
    if constexpr (HasNeeds<P>) return policy_.needs(order_.scene);
    else return {};
  }
  bool observes() const override { return Observes<P, Real> && order_.axes.phase == Phase::stream; }
  int32_t attended_bound(int32_t tokens) const override {
    if constexpr (Chooses<P, Real>) return order_.scene.budget + 1;
    else return cache_.size() + tokens;
  }
  bool heads_differ() const override {
    if constexpr (requires { policy_.per_head; }) return policy_.per_head;
    else return order_.axes.gqa_level == GqaLevel::query;
  }
  const LaneLedger& ledger() const override { return ledger_; }
  const LaneLists& lists() const override { return lists_; }

  void bind(const HeadStream<Real>& stream, int32_t first_head, bool audit,
            const SaveOptions& save) override {
    stream_ = &stream;
    first_head_ = first_head;
    save_ = save;
    memory_.allocate(stream, order_.scene.shape, layout(), audit);
    cache_ = BasicCache<Real>(memory_.storage());
    cache_.clear(team_);
    column_of_.resize(size_t(stream.tokens));
    rules_ = {order_.axes.phase == Phase::stream, order_.axes.order == Order::evict_then_attend,
              stream.window, order_.axes.gqa_aggregate};
    if constexpr (Chooses<P, Real>) lists_.attended.resize(size_t(order_.scene.shape.heads));
    if constexpr (HasState<P>) policy_.state = memory_.state();
    if constexpr (HasDraws<P>) policy_.draws = order_.draws;
  }

  void read_prompt(const double* column_sums) override {
    const auto start = Clock::now();
    memory_.reveal(0, stream_->prompt);
    const auto& s = memory_.storage();
    const double* sums =
        column_sums == nullptr ? nullptr : column_sums + int64_t(first_head_) * stream_->prompt;
    const Prompt<Real> prompt({s.keys, s.values, sums, stream_->prompt, s.shape, order_.axes.gqa_aggregate});
    replay_prompt(team_, policy_, cache_, prompt, rules_);
    close_step(stream_->prompt - 1);
    ledger_.select_s += seconds_since(start);
  }

  void replay(const Tile<Real>& tile, LaneWorkspace<Real>& w, LaneTile<Real>& result) override {
    const auto start = Clock::now();
    result.resize(heads(), int32_t(tile.rows.size()), cache_.shape().v_dim);
    output_.open(cache_, tile, heads(), w, column_of_);
    reserve(w, cache_.size() + tile.end - tile.begin);
    int32_t row = 0;
    for (int32_t t = tile.begin; t < tile.end; ++t) {
      const bool has_row = row < result.rows && tile.rows[size_t(row)] == t;
      step({*this, tile, result, has_row ? row : -1, t}, w);
      row += has_row ? 1 : 0;
    }
    output_.close(stream_->values.data(), w, result);
    ledger_.attend_s += seconds_since(start);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  int32_t heads() const { return order_.scene.shape.heads; }

  // How this cache's query heads see one row of the tile: what core/step.hpp calls an evaluator.
  struct StripHeads {
    LaneOf& lane;
    const Tile<Real>& tile;
    LaneTile<Real>& result;
    int32_t row, token;

    QueryView<Real> view(int32_t h) const {
      const HeadStream<Real>& s = *lane.stream_;
      const int32_t head = lane.first_head_ + h;
      const Rotation<Real> rotation =
          lane.order_.axes.positions == Positions::cache ? s.rotate() : Rotation<Real>{};
      const Real sink = s.sink_logits.empty() ? -Real(INFINITY) : s.sink_logits[size_t(head)];
      return {{s.query(head, token), size_t(s.shape.dim)}, s.rule, rotation, token, nullptr, sink};
    }
    StripGather<Real> source(int32_t h, const QueryView<Real>& v) const {
      const int32_t head = lane.first_head_ + h;
      return {tile.strip_row(head, row), tile.shift[size_t(tile.at(head, row))], {v}};
    }
    auto sink(int32_t h) const { return lane.output_.sink(h, row, result); }
    void done(int32_t h, Normaliser tau, const BasicCache<Real>& cache, const uint8_t* chosen) const {
      lane.measure(*this, h, tau, cache, chosen);
    }
  };

  void step(StripHeads heads, LaneWorkspace<Real>& w) {
    const int32_t t = heads.token, row = heads.row;
    memory_.reveal(t, t + 1);
    const auto& s = memory_.storage();
    const Token<Real> token({s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
                            {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)}, t);
    const bool attends = row >= 0 && (observes() || heads.tile.scored[size_t(row)] != 0);
    const StepScratch<Real> scratch{w.e.data(), w.coefficients.data(), w.group.data(), w.by_head.data(),
                                    w.chosen.data()};
    const int32_t attended = replay_step(team_, policy_, cache_, token, rules_, heads, scratch, attends);
    ledger_.peak_attended = std::max<int64_t>(ledger_.peak_attended, attended);
    close_step(t);
  }

  // core/step.hpp calls this through done(), before the eviction: cache is C_t.
  void measure(const StripHeads& at, int32_t h, Normaliser tau, const BasicCache<Real>& cache,
               const uint8_t* chosen) {
    if (!(tau.sum > 0) || !std::isfinite(tau.sum))
      throw LaneError("the denominator at token " + std::to_string(at.token) +
                      " is zero or not finite: nothing left to attend to");
    if (at.tile.scored[size_t(at.row)] == 0) return;
    if (save_.kept && chosen != nullptr) save_attended(cache, chosen, lists_.attended[size_t(h)]);
    const RowRanking* ranking = ranking_of(at.tile, first_head_ + h, at.row);
    at.result.measures[at.result.at(h, at.row)] =
        measure_row(at.tile, first_head_ + h, at.row, cache, chosen, tau, ranking);
  }
  const RowRanking* ranking_of(const Tile<Real>& tile, int32_t head, int32_t row) const {
    if (!heads_differ()) return tile.ranking.empty() ? nullptr : &tile.ranking[size_t(row)];
    return tile.head_ranking.empty() ? nullptr : &tile.head_ranking[size_t(head)][size_t(row)];
  }

  // S_t stands: after the prompt, and after every step.
  void close_step(int32_t t) {
    const int64_t rows = cache_.size();
    account(rows, t);
    check(rows);
    memory_.poison_evicted();
    const bool first_list = lists_.kept.off.size() == 1;
    if (save_.kept && !P::info.reads_full_cache && t >= stream_->prompt - 1 &&
        (rules_.streaming || first_list))
      save_kept();
  }
  void account(int64_t rows, int32_t t) {
    ledger_.peak_kept = std::max(ledger_.peak_kept, rows);
    ledger_.evictions = cache_.evictions();
    if (t >= stream_->prompt - 1) ledger_.kept_sum += rows, ledger_.kept_steps += 1;
    int64_t aux = P::info.implied_layout ? 0 : 4 * rows;
    if (observes()) aux += 8 * rows;
    ledger_.peak_aux_bytes = std::max(ledger_.peak_aux_bytes, aux);
    if constexpr (requires { policy_.weight_floats(int32_t{}); })
      if (ledger_.evictions > 0) ledger_.weight_floats = policy_.weight_floats(int32_t(rows));
  }
  // Promises that types cannot enforce.
  void check(int64_t rows) const {
    if (cache_.broken_promises() > 0) throw LaneError("the policy brought back a token that it had evicted");
    const bool bounded = P::info.takes_budget && !P::info.reads_full_cache && rules_.streaming;
    if (bounded && rows > order_.scene.budget)
      throw LaneError("the policy holds " + std::to_string(rows) + " tokens, more than its budget of " +
                      std::to_string(order_.scene.budget));
  }
  void save_kept() {
    for (int32_t i = 0; i < cache_.size(); ++i)
      if (cache_.verbatim(i)) {
        lists_.kept.flat.push_back(cache_.token(i));
        if (cache_.weighted())
          lists_.num.push_back(double(cache_.num(i))), lists_.den.push_back(double(cache_.den(i)));
      }
    lists_.kept.off.push_back(int64_t(lists_.kept.flat.size()));
  }
  static void save_attended(const BasicCache<Real>& cache, const uint8_t* chosen, TokenLists& lists) {
    for (int32_t i = 0; i < cache.size(); ++i)
      if (chosen[i] != 0) lists.flat.push_back(cache.token(i));
    lists.off.push_back(int64_t(lists.flat.size()));
  }

  Layout layout() const {
    if constexpr (HasLayout<P>) return policy_.layout(order_.scene);
    else return {};
  }
  void reserve(LaneWorkspace<Real>& w, int32_t rows) const {
    const size_t n = size_t(rows + 1), choosers = Chooses<P, Real> ? size_t(heads()) : 0;
    if (w.e.size() < n) w.e.resize(n), w.coefficients.resize(n), w.group.resize(n);
    if (w.by_head.size() < choosers * n) w.by_head.resize(choosers * n), w.chosen.resize(choosers * n);
  }

  P policy_;
  LaneOrder order_;
  SerialTeam team_;
  LaneMemory<Real> memory_;
  BasicCache<Real> cache_;
  TileOutput<Real> output_;
  StepRules rules_;
  const HeadStream<Real>* stream_ = nullptr;
  int32_t first_head_ = 0;
  SaveOptions save_;
  std::vector<int32_t> column_of_;
  LaneLedger ledger_;
  LaneLists lists_;
};

}  // namespace kvreplay
