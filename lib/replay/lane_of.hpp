#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "catalog/method.hpp"
#include "core/step.hpp"
#include "formats/formatter.hpp"
#include "replay/lane_memory.hpp"
#include "replay/tile_output.hpp"

namespace kvreplay {

template <class P>
bool policy_observes(const P& policy, const Axes& axes) {
  if constexpr (requires { policy.observes(); }) return policy.observes() && axes.phase == Phase::stream;
  else return Observes<P, float> && axes.phase == Phase::stream;
}
template <class P>
bool policy_streams_prompt(const P& policy) {
  if constexpr (requires { policy.streams_prompt(); }) return policy.streams_prompt();
  else return false;
}

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
  bool observes() const override { return policy_observes<P>(policy_, order_.axes); }
  bool streams_prompt() const override { return policy_streams_prompt(policy_); }
  int32_t attended_bound(int32_t tokens) const override {
    if constexpr (requires { policy_.read_bound(); }) return policy_.read_bound();
    else return cache_.size() + tokens;
  }
  bool heads_differ() const override {
    if (order_.axes.gqa_level == GqaLevel::query) return true;
    if constexpr (requires { policy_.per_head; }) return policy_.per_head;
    else return false;
  }
  const LaneLedger& ledger() const override { return ledger_; }
  const LaneLists& lists() const override { return lists_; }

  void bind(const HeadStream<Real>& stream, int32_t first_head, bool audit,
            const SaveOptions& save) override {
    stream_ = &stream;
    first_head_ = first_head;
    save_ = save;
    layout_ = layout();
    formatter_ = Formatter<Real>(order_.axes.row_format, stream.stored_bytes, layout_.split);
    memory_.allocate(stream, order_.scene.shape, layout_, audit);
    cache_ = BasicCache<Real>(memory_.storage());
    cache_.clear(team_);
    column_of_.resize(size_t(stream.tokens));
    rules_ = {order_.axes.phase == Phase::stream, order_.axes.order == Order::evict_then_attend,
              stream.window, order_.axes.gqa_aggregate};
    if (chooses()) lists_.attended.resize(size_t(order_.scene.shape.heads));
    if constexpr (HasState<P>) policy_.state = memory_.state();
    if constexpr (HasDraws<P>) policy_.draws = order_.draws;
  }

  void observe_prompt(int32_t t, const HeadProbabilities& p) override {
    const auto start = Clock::now();
    if constexpr (ObservesPrompt<P>)
      policy_.observe_prompt(
          team_, t, {p.values + int64_t(first_head_) * p.rows, heads(), p.rows, order_.axes.gqa_aggregate});
    ledger_.select_s += seconds_since(start);
  }

  void read_prompt(const PromptSums& sums) override {
    const auto start = Clock::now();
    memory_.reveal(0, stream_->prompt);
    kvreplay::read_prompt(team_, policy_, cache_, prompt_view(sums), rules_);
    const int32_t all = unprotected();
    if constexpr (Evicts<P, Real>) policy_.evict(team_, cache_);
    reweight(all);
    close_step(stream_->prompt - 1);
    ledger_.select_s += seconds_since(start);
  }

  Testimony testify(const PromptSums& sums) override {
    Testimony t;
    if constexpr (ScoresPrompt<P>) {
      memory_.reveal(0, stream_->prompt);
      kvreplay::read_prompt(team_, policy_, cache_, prompt_view(sums), rules_);
      for (int32_t i = 0; i < cache_.size(); ++i)
        t.scores.push_back(is_protected(i) ? INFINITY : cache_.score(i));
      if constexpr (requires { policy_.testify(t.extras); }) policy_.testify(t.extras);
    }
    return t;
  }

  void replay(const Tile<Real>& tile, LaneWorkspace<Real>& w, LaneTile<Real>& result) override {
    const auto start = Clock::now();
    result.resize(heads(), int32_t(tile.rows.size()), cache_.shape().v_dim);
    output_.open(cache_, tile, heads(), w, column_of_);
    // A token that can be held several times may bring more rows than one.
    reserve(w, layout_.extra_rows > 0 ? cache_.capacity() : cache_.size() + tile.end - tile.begin);
    int32_t row = 0;
    for (int32_t t = tile.begin; t < tile.end; ++t) {
      const bool has_row = row < result.rows && tile.rows[size_t(row)] == t;
      step({*this, tile, result, has_row ? row : -1, t}, w);
      row += has_row ? 1 : 0;
    }
    output_.close(*stream_, w, result);
    ledger_.attend_s += seconds_since(start);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  int32_t heads() const { return order_.scene.shape.heads; }
  bool chooses() const {
    if constexpr (Chooses<P, Real>) return chooses_now(policy_);
    else return false;
  }
  bool holds_all() const {
    if constexpr (requires { policy_.holds_all(); }) return policy_.holds_all();
    else return P::info.reads_full_cache;
  }
  bool implied_layout() const {
    if constexpr (requires { policy_.implied_layout(); }) return policy_.implied_layout();
    else return P::info.implied_layout;
  }
  Prompt<Real> prompt_view(const PromptSums& sums) const {
    const HeadStream<Real>& s = *stream_;
    const auto& held = memory_.storage();
    typename Prompt<Real>::View view{};
    view.keys = held.keys, view.values = held.values;
    view.key_block = held.key_block, view.value_block = held.value_block;
    view.tokens = s.tokens, view.size = s.prompt, view.shape = held.shape;
    view.aggregate = order_.axes.gqa_aggregate, view.scale = double(s.rule.scale);
    if (sums.columns != nullptr) view.column_sums = sums.columns + int64_t(first_head_) * s.prompt;
    const bool by_row = order_.axes.gqa_aggregate == Aggregate::max && heads() == s.shape.heads;
    if (sums.columns != nullptr && by_row) view.column_max_sums = sums.columns + int64_t(heads()) * s.prompt;
    if (sums.future != nullptr) view.future_sums = sums.future + int64_t(first_head_) * s.tokens;
    if (needs().queries) {
      view.queries = s.query(first_head_, 0);
      view.query_head = int64_t(s.query_rows) * s.shape.dim;
    }
    if (!s.classes.empty()) view.classes = s.classes.data();
    view.positions = s.positions.data();
    view.rope = {s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
    return Prompt<Real>(view);
  }
  // At the end of the prompt: rows that no selection may drop (convention C16).
  bool is_protected(int32_t row) const {
    if constexpr (ScoresPrompt<P>) {
      const Protect protect = policy_.protection();
      return cache_.token(row) < protect.sinks || cache_.token(row) >= stream_->prompt - protect.recent;
    }
    return false;
  }
  int32_t unprotected() const {
    return team_.count(cache_.size(), [&](int32_t i) { return !is_protected(i); });
  }
  // Kept prompt tokens that nothing protects stand for all such tokens (axis `reweight`).
  void reweight(int32_t all) {
    const int32_t kept = unprotected();
    if (order_.axes.reweight == Reweight::none || kept == 0 || kept == all) return;
    for (int32_t i = 0; i < cache_.size(); ++i)
      if (!is_protected(i)) cache_.weigh(team_, i, double(all) / kept, double(all) / kept);
    reweighted_ = true;
  }

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
      return {{s.query(head, token), size_t(s.shape.dim)},
              s.rule,
              rotation,
              token,
              nullptr,
              sink,
              s.shape.block_of(head) - s.shape.block_of(lane.first_head_)};
    }
    StepQueries<Real> queries_of_step() const {
      const HeadStream<Real>& s = *lane.stream_;
      return {s.query(lane.first_head_, token),
              int64_t(s.query_rows) * s.shape.dim,
              lane.heads(),
              s.shape.dim,
              token,
              double(s.rule.scale)};
    }
    StripGather<Real> source(int32_t h, const QueryView<Real>& v) const {
      const int32_t head = lane.first_head_ + h;
      return {tile.strip_row(head, row), tile.shift[size_t(tile.at(head, row))], {v}};
    }
    void opens(const BasicCache<Real>&) const { lane.open_step(token); }
    auto sink(int32_t h) const { return lane.output_.sink(h, row, result); }
    void done(int32_t h, Normaliser tau, const BasicCache<Real>& cache, const uint8_t* chosen) const {
      lane.measure(*this, h, tau, cache, chosen);
    }
  };

  void step(StripHeads heads, LaneWorkspace<Real>& w) {
    const int32_t t = heads.token, row = heads.row;
    memory_.reveal(t, t + 1);
    const auto& s = memory_.storage();
    const Token<Real> token(
        {s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
        {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)}, t,
        stream_->classes.empty() ? TokenClass::plain : TokenClass(stream_->classes[size_t(t)]));
    const bool attends = row >= 0 && (observes() || heads.tile.scored[size_t(row)] != 0);
    const StepScratch<Real> scratch{w.e.data(), w.coefficients.data(), w.group.data(), w.by_head.data(),
                                    w.chosen.data()};
    replay_step(team_, policy_, cache_, token, rules_, heads, scratch, attends);
    close_step(t);
  }

  // C_t stands: its newest row is exact.
  void open_step(int32_t t) {
    if (t < stream_->prompt) return;
    ledger_.peak_attended = std::max<int64_t>(ledger_.peak_attended, cache_.size());
    take_peak(formatter_.payload_bytes(cache_));
  }

  // core/step.hpp calls this through done(), before the eviction: cache is C_t.
  void measure(const StripHeads& at, int32_t h, Normaliser tau, const BasicCache<Real>& cache,
               const uint8_t* chosen) {
    if (!(tau.sum > 0) || !std::isfinite(tau.sum))
      throw LaneError("the denominator at token " + std::to_string(at.token) +
                      " is zero or not finite: nothing left to attend to");
    if (at.tile.scored[size_t(at.row)] == 0) return;
    const std::span<const int32_t> tokens = attended_tokens(cache, chosen);
    if (save_.kept && chosen != nullptr) save_attended(tokens, lists_.attended[size_t(h)]);
    ledger_.attended_sum += int64_t(tokens.size()), ledger_.attended_rows += 1;
    const RowRanking* ranking = ranking_of(at.tile, first_head_ + h, at.row);
    at.result.measures[at.result.at(h, at.row)] =
        measure_row(at.tile, first_head_ + h, at.row, tokens, tau, ranking);
  }
  const RowRanking* ranking_of(const Tile<Real>& tile, int32_t head, int32_t row) const {
    if (!heads_differ()) return tile.ranking.empty() ? nullptr : &tile.ranking[size_t(row)];
    return tile.head_ranking.empty() ? nullptr : &tile.head_ranking[size_t(head)][size_t(row)];
  }

  // S_t stands, after the prompt and after every step: it is pruned, then coded.
  void close_step(int32_t t) {
    const int64_t rows = cache_.size();
    check(rows);
    formatter_.settle(cache_);
    if (!formatter_.failure().empty()) throw LaneError(formatter_.failure());
    if (t >= stream_->prompt - 1) account(rows, t);
    memory_.poison_evicted();
    const bool first_list = lists_.kept.off.size() == 1;
    if (save_.kept && !holds_all() && t >= stream_->prompt - 1 && (rules_.streaming || first_list))
      save_kept();
  }
  void account(int64_t rows, int32_t) {
    ledger_.peak_kept = std::max(ledger_.peak_kept, rows);
    ledger_.evictions = cache_.evictions();
    ledger_.quantised = formatter_.quantised();
    ledger_.kept_sum += rows, ledger_.kept_steps += 1;
    Charge charge;
    if constexpr (requires { policy_.charge(charge, cache_); }) policy_.charge(charge, cache_);
    if (reweighted_) charge.weight_floats += 1;
    const auto& shape = cache_.shape();
    weight_bytes_ = 4 * charge.weight_floats / shape.blocks;
    coded_bytes_ = charge.code_bytes - formatter_.exact_bytes(charge.coded_floats);
    ledger_.quantised += charge.coded_rows;
    take_peak(formatter_.payload_bytes(cache_) + formatter_.exact_bytes(charge.key_floats));
    int64_t aux = implied_layout() ? 0 : 4 * rows;
    if (observes()) aux += 8 * rows;
    aux = (aux + charge.aux_bytes + formatter_.exact_bytes(charge.sketch_floats)) / shape.blocks +
          formatter_.sketch_bytes(cache_);
    ledger_.peak_aux_bytes = std::max(ledger_.peak_aux_bytes, aux);
    if constexpr (requires { policy_.report(ledger_.extras, cache_); })
      policy_.report(ledger_.extras, cache_);
  }
  void take_peak(int64_t bytes) {
    ledger_.peak_bytes = std::max(ledger_.peak_bytes, bytes + weight_bytes_ + coded_bytes_);
  }
  // Promises that types cannot enforce.
  void check(int64_t rows) const {
    if (cache_.broken_promises() > 0) throw LaneError("the policy brought back a token that it had evicted");
    if (cache_.failure() > 0) throw LaneError(failure_text());
    if (bounded() && rows > bound())
      throw LaneError("the policy holds " + std::to_string(rows) + " tokens, more than its budget of " +
                      std::to_string(bound()));
  }
  bool bounded() const { return P::info.takes_budget && !holds_all() && order_.axes.phase == Phase::stream; }
  // Most rows after a step, where a method's own rule is not the budget.
  int64_t bound() const {
    if constexpr (requires { policy_.bound(order_.scene); }) return policy_.bound(order_.scene);
    else return order_.scene.budget;
  }
  std::string failure_text() const {
    if constexpr (requires { P::failure_text(1, 0); })
      return P::failure_text(cache_.failure(), cache_.failed_at());
    else return "the method failed at " + std::to_string(cache_.failed_at());
  }
  // Every resident token once, ascending; its weights summed over the rows that hold it.
  void save_kept() {
    std::map<int32_t, std::pair<double, double>> weights;
    for (int32_t i = 0; i < cache_.size(); ++i)
      if (const int32_t token = cache_.token(i); token >= 0) {
        weights[token].first += double(cache_.num(i));
        weights[token].second += double(cache_.den(i));
      }
    for (const auto& [token, w] : weights) {
      lists_.kept.flat.push_back(token);
      if (cache_.weighted()) lists_.num.push_back(w.first), lists_.den.push_back(w.second);
    }
    lists_.kept.off.push_back(int64_t(lists_.kept.flat.size()));
  }
  static void save_attended(std::span<const int32_t> tokens, TokenLists& lists) {
    lists.flat.insert(lists.flat.end(), tokens.begin(), tokens.end());
    lists.off.push_back(int64_t(lists.flat.size()));
  }
  // The tokens that a row of C_t attends to, each once.
  std::span<const int32_t> attended_tokens(const BasicCache<Real>& cache, const uint8_t* chosen) {
    if (chosen == nullptr && !layout_.split) return cache.tokens();
    attended_.clear();
    for (int32_t i = 0; i < cache.size(); ++i) {
      const bool counts = cache.num(i) != 0 || cache.den(i) != 0;
      if (cache.token(i) >= 0 && counts && (chosen == nullptr || chosen[i] == kRead))
        attended_.push_back(cache.token(i));
    }
    if (!layout_.split) return attended_;
    std::sort(attended_.begin(), attended_.end());
    attended_.erase(std::unique(attended_.begin(), attended_.end()), attended_.end());
    return attended_;
  }

  Layout layout() const {
    Layout layout;
    if constexpr (HasLayout<P>) layout = policy_.layout(order_.scene);
    layout.weights = layout.weights || order_.axes.reweight != Reweight::none;
    if (order_.axes.row_format.kind == RowFormat::Kind::source) return layout;
    layout.coded = true;
    const int64_t most = stream_->tokens + layout.extra_rows;
    layout.own_rows += int32_t(bounded() ? std::min(most, bound()) : most);
    return layout;
  }
  void reserve(LaneWorkspace<Real>& w, int32_t rows) const {
    const size_t n = size_t(rows + 1),
                 by_head = Chooses<P, Real> || ObservesHeads<P, Real> ? size_t(heads()) : 0;
    if (w.e.size() < n) w.e.resize(n), w.coefficients.resize(n), w.group.resize(n);
    if (w.by_head.size() < by_head * n) w.by_head.resize(by_head * n), w.chosen.resize(by_head * n);
  }

  P policy_;
  LaneOrder order_;
  SerialTeam team_;
  LaneMemory<Real> memory_;
  BasicCache<Real> cache_;
  TileOutput<Real> output_;
  Formatter<Real> formatter_;
  Layout layout_;
  int64_t weight_bytes_ = 0, coded_bytes_ = 0;
  bool reweighted_ = false;
  StepRules rules_;
  const HeadStream<Real>* stream_ = nullptr;
  int32_t first_head_ = 0;
  SaveOptions save_;
  std::vector<int32_t> column_of_, attended_;
  LaneLedger ledger_;
  LaneLists lists_;
};

}  // namespace kvreplay
