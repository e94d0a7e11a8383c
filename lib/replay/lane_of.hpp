#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "catalog/method.hpp"
#include "core/step.hpp"
#include "formats/formatter.hpp"
#include "replay/lane_account.hpp"
#include "replay/lane_lists.hpp"
#include "replay/lane_memory.hpp"
#include "replay/lane_prompt.hpp"
#include "replay/list_reading.hpp"
#include "replay/policy_traits.hpp"
#include "replay/row_watch.hpp"
#include "replay/solo_products.hpp"
#include "replay/tile_output.hpp"

namespace kvreplay {

// The CPU's replay of one policy: core/step.hpp, with logits from the shared strip and outputs deferred
// to the end of the tile.
template <class P, class Real>
class LaneOf final : public Lane<Real> {
 public:
  LaneOf(const P& policy, const LaneOrder& order) : policy_(policy), order_(order) {}

  PromptNeeds needs() const override {
    if constexpr (HasNeeds<P>) return policy_.needs(order_.context);
    else return {};
  }
  bool observes() const override { return traits::observes(policy_, order_.options); }
  bool streams_prompt() const override { return traits::streams_prompt(policy_); }
  int32_t attended_bound(int32_t tokens) const override {
    if constexpr (requires { policy_.max_rows_read(); }) return policy_.max_rows_read();
    else return cache_.size() + tokens;
  }
  bool heads_differ() const override { return traits::heads_differ(policy_, order_.options); }
  ErrorBound error_bound() const override { return traits::error_bound(policy_); }
  const LaneLedger& ledger() const override { return account_.ledger; }
  const LaneLists& lists() const override { return lists_; }

  void bind(const HeadStream<Real>& stream, int32_t first_head, const LaneWatch& watch) override {
    stream_ = &stream;
    first_head_ = first_head;
    asked_ = watch;
    watch_.bind(stream, watch, order_.options.phase == Phase::oneshot);
    rules_ = {order_.options.phase == Phase::stream, order_.options.order == Order::evict_then_attend,
              stream.window, order_.options.gqa_aggregate};
    if constexpr (HasGiven<P>) policy_.given = order_.given;
    layout_ = layout();
    formatter_ = Formatter<Real>(order_.options.row_format, stream.stored_bytes, layout_.split);
    if (traits::chooses(policy_)) lists_.attended.resize(size_t(order_.context.shape.heads));
    lists_.reading = reading_of(policy_, own_layout(), order_.options);
    if constexpr (HasRng<P>) policy_.rng = order_.rng;
    prompt_streams_ = watch.prompt_streams || traits::streams_prompt(policy_);
    if (prompt_streams_ || ObservesPrompt<P>) open_memory();
  }

  void observe_prompt(int32_t t, const HeadProbabilities& p) override {
    const auto start = Clock::now();
    if constexpr (ObservesPrompt<P>)
      policy_.observe_prompt(
          team_, t,
          {p.values + int64_t(first_head_) * p.rows, heads(), p.rows, order_.options.gqa_aggregate});
    account_.ledger.select_s += seconds_since(start);
  }

  void read_prompt(const PromptSums& sums, const Lane<Real>* larger) override {
    const auto start = Clock::now();
    if constexpr (SharesSelection<P>)
      if (const auto* other = dynamic_cast<const LaneOf*>(larger)) policy_.larger = &other->policy_;
    open_memory();
    memory_.reveal(0, stream_->prompt);
    const bool reweights = order_.options.reweight != Reweight::none;
    reweighted_ = replay_prompt(team_, policy_, cache_, prompt_view(sums), rules_, reweights);
    if constexpr (SharesSelection<P>) policy_.larger = nullptr;
    close_prompt();
    account_.ledger.select_s += seconds_since(start);
  }
  void forget_selection() override {
    if constexpr (SharesSelection<P>) policy_.state = {}, memory_.drop_state();
  }

  HeadScores head_scores(const PromptSums& sums) override {
    HeadScores t;
    if constexpr (ScoresPrompt<P>) {
      open_memory();
      memory_.reveal(0, stream_->prompt);
      kvreplay::read_prompt(team_, policy_, cache_, prompt_view(sums), rules_);
      for (int32_t i = 0; i < cache_.size(); ++i)
        t.scores.push_back(is_protected(policy_, cache_, i, stream_->prompt) ? INFINITY : cache_.score(i));
      if constexpr (requires { policy_.head_scores(t.extras); }) policy_.head_scores(t.extras);
    }
    return t;
  }

  Shortcut shortcut() const override {
    const bool as_recorded = layout_.own_rows == 0 && !layout_.split && layout_.extra_rows == 0 &&
                             !(order_.options.positions == Positions::cache && stream_->rotate().active());
    const bool own_way = Appends<P, Real> || traits::changes_logits(policy_);
    if (own_way || !as_recorded || asked_.audit || stream_->window > 0 || traits::chooses(policy_)) return {};
    if (!rules_.streaming) return {Shortcut::Kind::fixed, {}};
    if (layout_.weights) return {};
    if (!observes()) return {Shortcut::Kind::sliding, {}};
    if constexpr (HasScoreRule<P>) return by_scores();
    return {};
  }
  const BasicCache<Real>& cache() const override { return cache_; }
  int32_t first_head() const override { return first_head_; }
  int32_t heads() const override { return order_.context.shape.heads; }
  void step_alone(int32_t t) override {
    arrive_at(t);
    struct Nobody {
      LaneOf& lane;
      int32_t token;
      void opens(const BasicCache<Real>&) const { lane.open_step(token); }
    } nobody{*this, t};
    if constexpr (!Appends<P, Real>) advance(team_, policy_, cache_, token_at(t), rules_, nobody);
    close_step(t);
  }
  void arrive(int32_t t) override {
    arrive_at(t);
    cache_.push(team_, token_at(t));
    open_step(t);
  }
  void settle(int32_t t, int32_t evicted) override {
    if (memory_.storage().score != nullptr) {  // who keeps them elsewhere has taken them over
      memory_.drop_scores();
      cache_ = BasicCache<Real>(memory_.storage());
    }
    if (evicted >= 0) {
      const auto tokens = cache_.tokens();  // ascending, as they arrived
      cache_.drop(team_, int32_t(std::lower_bound(tokens.begin(), tokens.end(), evicted) - tokens.begin()));
    }
    close_step(t);
  }
  void count_attended(int64_t tokens, int64_t rows, double seconds) override {
    account_.ledger.attended_sum += tokens, account_.ledger.attended_rows += rows;
    account_.ledger.attend_s += seconds;
    report();
  }

  bool may_chain() const override {
    const auto injected = [](const InjectedArray& a) { return a.values != nullptr; };
    return std::is_same_v<Real, float> && !HasGiven<P> && !order_.options.row_format.by_block() &&
           !asked_.audit && asked_.needles.empty() &&
           std::none_of(order_.rng.injected, order_.rng.injected + Rng::kArrays, injected);
  }
  ChainOrder chain(const ChainPrograms& programs, const PromptSums& sums) override {
    ChainOrder order{};
    if constexpr (std::is_same_v<Real, float>) {
      open_memory();
      order.programs = programs;
      order.policy.resize(sizeof(P));
      std::memcpy(order.policy.data(), &policy_, sizeof(P));
      order.memory = memory_.storage(), order.state = memory_.state();
      order.rules = rules_, order.needs = needs();
      order.coder = {order_.options.row_format.kind, order_.options.row_format.group};
      const typename Prompt<Real>::View view = prompt_sums_of(reader(), *stream_, sums);
      order.column_sums = view.column_sums, order.column_max_sums = view.column_max_sums;
      order.future_sums = view.future_sums;
      order.first_head = first_head_;
      order.bound = traits::bounded(policy_, order_.options) ? traits::max_rows(policy_, order_.context) : -1;
      order.streams_prompt = prompt_streams_, order.observes = observes();
      order.by_head = Chooses<P, Real> || ObservesHeads<P, Real> || ObservesPrompt<P>;
      order.chooses = traits::chooses(policy_), order.heads_differ = heads_differ();
      order.reweights = order_.options.reweight != Reweight::none, order.split = layout_.split;
      order.moves = order_.options.positions == Positions::cache && stream_->rotate().active();
      order.prefix = asked_.prefix_error && order_.options.phase == Phase::oneshot;
      order.set = asked_.set_error, order.lists = asked_.save.kept;
    }
    return order;
  }
  void check_chain(const ChainEnd& end) const override {
    if (end.why == ChainEnd::denominator) throw LaneError(no_denominator(end.token));
    if (end.why == ChainEnd::returned) fail_return();
    if (end.why == ChainEnd::method) fail_method(end.code, end.at);
    if (end.why == ChainEnd::bound) fail_bound(end.at);
    if (end.why == ChainEnd::format) throw LaneError(row_format_refusal(end.at));
  }
  bool may_cut_elsewhere() const override {
    return SharesSelection<P> && needs().rows_from < 0 && may_chain();
  }
  void follow_cut(const ChainRecord& record, double seconds) override {
    take_over(record);
    close_prompt();
    account_.ledger.select_s += seconds;
  }
  void follow_chain(const ChainRecord& record, std::span<const uint8_t> scored) override {
    take_over(record);
    const int32_t first = stream_->tokens - int32_t(record.steps.size());
    for (size_t i = 0; i < record.steps.size(); ++i) {
      const int32_t t = first + int32_t(i);
      account_chain(t, record.steps[i], scored[size_t(t)] != 0);
      if (record.steps[i].weighs) lists_.reading.partial = true;
      if (asked_.ages) note_ages(t, record.steps[i].evictions);
    }
    if (cache_.written() > 0) lists_.reading.partial = true;
    if (!asked_.save.kept) return;
    if (!traits::holds_all(policy_)) list_kept(record, stream_->prompt - 1 - first, rules_.streaming, lists_);
    if (traits::chooses(policy_)) lists_.attended = record.attended;
  }

  void replay(const Tile<Real>& tile, LaneWorkspace<Real>& w, LaneTile<Real>& result) override {
    const auto start = Clock::now();
    result.clear(heads(), int32_t(tile.rows.size()), cache_.shape().v_dim);
    watch_.open(result);
    output_.open(cache_, tile, heads(), stream_->prompt, w, column_of_, size_t(stream_->tokens));
    if (has_products()) solo_.open(*stream_, tile, cache_, first_head_, w);
    // A token that can be held several times may bring more rows than one.
    reserve(w, layout_.extra_rows > 0 ? cache_.capacity() : cache_.size() + tile.end - tile.begin);
    int32_t row = 0;
    for (int32_t t = tile.begin; t < tile.end; ++t) {
      const bool has_row = row < result.rows && tile.rows[size_t(row)] == t;
      step({*this, tile, result, w, has_row ? row : -1, t});
      row += has_row ? 1 : 0;
    }
    output_.close(*stream_, w, result);
    report();
    account_.ledger.attend_s += seconds_since(start);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Not before it is needed: a cache that is cut takes the whole prompt for a moment only.
  void open_memory() {
    if (memory_.allocated()) return;
    memory_.allocate(*stream_, order_.context.shape, layout_, most_rows(rules_.streaming && prompt_streams_),
                     asked_.audit);
    cache_ = BasicCache<Real>(memory_.storage());
    cache_.clear(team_);
    if constexpr (HasState<P>) policy_.state = memory_.state();
  }
  // The prompt is read and cut.
  void close_prompt() {
    close_step(stream_->prompt - 1);
    report();
    if (shortcut().kind == Shortcut::Kind::fixed) keep_what_is_held();
  }
  // What a device left; the arrays hold it already.
  void take_over(const ChainRecord& record) {
    std::memcpy(static_cast<void*>(&policy_), record.policy.data(), sizeof(P));
    if constexpr (HasState<P>) policy_.state = memory_.state();
    reweighted_ = record.end.reweighted;
  }
  void keep_what_is_held() {
    memory_.shrink(size_t(cache_.size()) + size_t(stream_->tokens - stream_->prompt));
    cache_ = BasicCache<Real>(memory_.storage());
  }
  PromptReader reader() const { return {first_head_, heads(), order_.options.gqa_aggregate}; }
  Prompt<Real> prompt_view(const PromptSums& sums) const {
    return prompt_of(reader(), *stream_, sums, memory_.storage(), needs());
  }

  // How this cache's query heads see one row of the tile: what core/step.hpp calls an evaluator.
  struct StripHeads {
    LaneOf& lane;
    const Tile<Real>& tile;
    LaneTile<Real>& result;
    LaneWorkspace<Real>& w;
    int32_t row, token;

    QueryView<Real> view(int32_t h) const {
      const HeadStream<Real>& s = *lane.stream_;
      const int32_t head = lane.first_head_ + h;
      const Rotation<Real> rotation =
          lane.order_.options.positions == Positions::cache ? s.rotate() : Rotation<Real>{};
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
    TileSource<Real> source(int32_t h, const QueryView<Real>& v) const {
      const int32_t head = lane.first_head_ + h;
      if (row < 0) return {{nullptr, 0, {v}}, lane.has_products() ? &lane.solo_ : nullptr, h, w};
      return {{tile.strip_row(head, row), tile.shift[size_t(tile.at(head, row))], {v}}, nullptr, h, w};
    }
    void opens(const BasicCache<Real>& cache) const {
      lane.open_step(token);
      if (row < 0 && lane.has_products()) lane.solo_.see(cache);
    }
    auto sink(int32_t h) const { return lane.output_.sink(h, row, result); }
    void done(int32_t h, Normaliser tau, const BasicCache<Real>& cache, const uint8_t* chosen) const {
      lane.measure(*this, h, tau, cache, chosen);
    }
  };

  void step(StripHeads heads) {
    const int32_t t = heads.token, row = heads.row;
    LaneWorkspace<Real>& w = heads.w;
    arrive_at(t);
    const bool attends = observes() || (row >= 0 && heads.tile.scored[size_t(row)] != 0);
    const StepScratch<Real> scratch{w.e.data(), w.coefficients.data(), w.group.data(), w.by_head.data(),
                                    w.chosen.data()};
    replay_step(team_, policy_, cache_, token_at(t), rules_, heads, scratch, attends);
    close_step(t);
  }

  // For rows without a strip. An audit looks at nothing but the cache's own copy.
  bool has_products() const {
    return observes() && !memory_.audited() && !cache_.has_own_rows() && !cache_.weighted() &&
           !(order_.options.positions == Positions::cache && stream_->rotate().active());
  }
  void arrive_at(int32_t t) { memory_.reveal(t, t + 1); }
  Token<Real> token_at(int32_t t) const {
    const auto& s = memory_.storage();
    return {{s.keys + int64_t(t) * s.shape.dim, size_t(s.shape.dim)},
            {s.values + int64_t(t) * s.shape.v_dim, size_t(s.shape.v_dim)},
            t,
            stream_->classes.empty() ? TokenClass::plain : TokenClass(stream_->classes[size_t(t)])};
  }
  Shortcut by_scores() const {
    if constexpr (HasScoreRule<P>) {
      const Aggregate how = order_.options.gqa_aggregate;
      const std::optional<ScoreRule> rule = policy_.score_rule();
      if (rule && !rules_.evict_first && (how == Aggregate::sum || how == Aggregate::mean || heads() == 1) &&
          rule->protect.sinks + rule->protect.recent < rule->budget)
        return {Shortcut::Kind::scores, *rule};
    }
    return {};
  }

  // C_t stands: its newest row is exact.
  void open_step(int32_t t) {
    if (t >= stream_->prompt)
      account_.attended(cache_.size(), formatter_.payload(cache_), !traits::chooses(policy_));
  }

  // core/step.hpp calls this through done(), before the eviction: cache is C_t.
  void measure(const StripHeads& at, int32_t h, Normaliser tau, const BasicCache<Real>& cache,
               const uint8_t* chosen) {
    if (!(tau.sum > 0) || !std::isfinite(tau.sum)) throw LaneError(no_denominator(at.token));
    if (at.row < 0 || at.tile.scored[size_t(at.row)] == 0) return;
    const auto tokens = attended_tokens(cache, chosen, layout_.split, attended_);
    if (asked_.save.kept && chosen != nullptr) list_attended(cache, chosen, tokens, size_t(h), lists_);
    account_.ledger.attended_sum += int64_t(tokens.size()), account_.ledger.attended_rows += 1;
    const int32_t head = first_head_ + h;
    RowMeasure& m = at.result.measures[at.result.at(h, at.row)];
    m = measure_row(at.tile, head, at.row, tokens, tau, at.tile.ranking_of(heads_differ(), head, at.row));
    m.spread = error_bound().spread;
    auto view = at.view(h);
    view.rule.factor = Real(logit_factor(policy_, cache.size(), at.token));
    view.chosen = chosen;
    watch_.see({at.tile, h, head, at.row, cache, view, tokens, tau, at.w.e.data()}, output_, at.w, at.result);
    if (chosen == nullptr) return;
    const auto read = watch_.read(h, chosen, cache.size());
    if (h == heads() - 1) account_.read(formatter_.read_bytes(cache, read));
  }

  // S_t stands, after the prompt and after every step: it is pruned, then coded.
  void close_step(int32_t t) {
    check();
    if (cache_.written() > 0) lists_.reading.partial = true;
    formatter_.settle(cache_);
    if (!formatter_.failure().empty()) throw LaneError(formatter_.failure());
    if (t >= stream_->prompt - 1) account_step();
    if (asked_.ages) note_ages(t, cache_.evictions());
    memory_.poison_evicted();
    const bool first_list = lists_.kept.off.size() == 1;
    if (asked_.save.kept && !traits::holds_all(policy_) && t >= stream_->prompt - 1 &&
        (rules_.streaming || first_list))
      list_kept(cache_, lists_);
  }
  // evictions: so far.
  void note_ages(int32_t t, int32_t evictions) {
    auto& ages = account_.ledger.evicted_ages;
    const size_t before = ages.size(), left = size_t(evictions);
    if (left == before) return;
    if (ages.empty()) ages.reserve(left);  // a cut prompt is all that leaves some caches
    for (const int32_t token : cache_.left(int32_t(before)).first(left - before)) ages.push_back(t - token);
  }
  typename LaneAccount<Real>::Extras extras() const {
    return {!traits::implied_layout(policy_), observes(), reweighted_};
  }
  void account_step() {
    account_.kept({cache_.size(), cache_.shape().blocks, cache_.evictions(), formatter_.quantised(),
                   formatter_.payload(cache_), formatter_.sketch_bytes(cache_)},
                  formatter_, traits::extra_bytes(policy_, cache_), extras());
  }
  // The same from what a chain noted of a step.
  void account_chain(int32_t t, const ChainStep& s, bool scored) {
    const HeadShape shape = cache_.shape();
    if (t >= stream_->prompt) {
      account_.attended(s.attended.rows, formatter_.payload_of(shape, s.attended), !traits::chooses(policy_));
      if (traits::chooses(policy_) && scored) account_.read(formatter_.payload_of(shape, s.read).bytes);
    }
    if (t >= stream_->prompt - 1)
      account_.kept({s.kept.rows, shape.blocks, s.evictions, s.quantised,
                     formatter_.payload_of(shape, s.kept), formatter_.sketch_bytes_of(shape, s.kept)},
                    formatter_, s.extra_bytes, extras());
  }
  void report() {
    auto& extras = account_.ledger.extras;
    if constexpr (requires { policy_.report(extras, cache_); }) policy_.report(extras, cache_);
  }
  // Promises that types cannot enforce.
  void check() const {
    if (cache_.broken_promises() > 0) fail_return();
    if (cache_.failure() > 0) fail_method(cache_.failure(), cache_.failed_at());
    const bool bounded = traits::bounded(policy_, order_.options);
    if (bounded && cache_.size() > traits::max_rows(policy_, order_.context)) fail_bound(cache_.size());
  }
  [[noreturn]] static void fail_return() {
    throw LaneError("the policy brought back a token that it had evicted");
  }
  [[noreturn]] static void fail_method(int32_t code, int32_t at) {
    throw LaneError(traits::failure_text<P>(code, at));
  }
  [[noreturn]] void fail_bound(int32_t rows) const {
    throw LaneError("the policy holds " + std::to_string(rows) + " tokens, more than its budget of " +
                    std::to_string(traits::max_rows(policy_, order_.context)));
  }

  // Rows that the cache may hold at a time, besides those that are written: the prompt before its cut, and
  // what the policy promises afterwards with the token that has just come.
  int32_t most_rows(bool streams) const {
    if (Appends<P, Real> || !traits::bounded(policy_, order_.options)) return stream_->tokens;
    const int64_t most =
        std::max<int64_t>(streams ? 0 : stream_->prompt, traits::max_rows(policy_, order_.context));
    return int32_t(std::min<int64_t>(stream_->tokens, most + 1));
  }
  Layout own_layout() const {
    if constexpr (HasLayout<P>) return policy_.layout(order_.context);
    else return {};
  }
  // With what the axes ask for.
  Layout layout() const {
    Layout layout = own_layout();
    layout.weights = layout.weights || order_.options.reweight != Reweight::none;
    if (order_.options.row_format.kind == RowFormat::Kind::source) return layout;
    layout.coded = true;
    const int64_t most = stream_->tokens + layout.extra_rows;
    const bool bounded = traits::bounded(policy_, order_.options);
    layout.own_rows += int32_t(bounded ? std::min(most, traits::max_rows(policy_, order_.context)) : most);
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
  SoloProducts<Real> solo_;
  Formatter<Real> formatter_;
  Layout layout_;
  bool reweighted_ = false, prompt_streams_ = false;
  StepRules rules_;
  const HeadStream<Real>* stream_ = nullptr;
  int32_t first_head_ = 0;
  LaneWatch asked_;
  RowWatch<Real> watch_;
  std::vector<int32_t> column_of_, attended_;
  LaneAccount<Real> account_;
  LaneLists lists_;
};

}  // namespace kvreplay
