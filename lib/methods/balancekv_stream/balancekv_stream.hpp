#pragma once
#include "core/policy.hpp"
#include "methods/balancekv_stream/merge_and_reduce.hpp"
#include "theory/balancekv.hpp"
#include "theory/walk.hpp"

namespace kvreplay {

// BalanceKV, Han et al. 2025, Algorithms 1 to 3. There is no budget: sizes are outputs.
//  1. Token j goes to the bucket i = ceil(log2 ||v_j||), 2^(i-1) < ||v_j|| <= 2^i; a zero value goes to none. Each
//     bucket, and the denominator with its pairs (k, 1), has a MergeAndReduce with its own counter.
//  2. It halves by SoftmaxBalance: the self-balancing walk with kernel expv and r_value = 2^i (1 in the denominator);
//     the smaller class stays (methods/balancekv_stream/merge_and_reduce.hpp).
//  3. Buckets with 2^i <= epsilon/(2n) exp(-r^2/sqrt(d)) max ||v|| are erased; the maximum is over the tokens so far.
//  4. Level l weighs 2^l, in the numerator over all buckets. A query attends after its token is appended.
// The theorem's t is e^32 to e^150 on real keys (bound_log10_tokens), so t, T, c and delta can be set.
struct BalanceKvStream {
  static constexpr MethodInfo info{
      .name = "balancekv_stream",
      .title = "MergeAndReduce of softmax walks",
      .source = "BalanceKV, Han et al. 2025, Algorithms 1-3, Theorems 3.1-3.5",
      .tier = 1,
      .memory = "both structures: keys of numerator and denominator, values of the numerator, one size per list",
      .deviation =
          "the bucket inequality is printed reversed, and the test uses p for j. Buckets are erased by an r of the "
          "prompt that grows with later keys; the sizes take the largest query of the trace (sees the future). Where "
          "the denominator drops a sink that the numerator keeps, outputs are 10^7 times too large.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .takes_budget = false,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt append extra_bytes spread report layout needs oracle_needs traits error_bound failure_text "
      "rng_arrays state rng"};
  int32_t batch = 256, levels = kDerived;
  double epsilon = 0.1, delta = kUnset, c = kUnset, r = kUnset;
  OnFail on_fail = OnFail::fail;
  bool centre_keys = false, bucket_erase = true;
  int32_t tokens = 0, dim = 0, v_dim = 0;
  double radius = 0, most_value = 0;  // max ||k||, ||q|| and max ||v|| so far
  double largest_query = 0;           // max ||q|| of the trace: the theorem bounds later queries too
  BalancedSums sums;
  std::span<double> state;  // state of the sums
  Rng rng;

  static void declare(auto& d) {
    using M = BalanceKvStream;
    d.integer("batch", &M::batch, {2, kManyTokens}, "t, tokens of a batch");
    d.integer("levels", &M::levels, {0, 60}, "T, levels above the batch", "ceil(log2(n/t))");
    d.real("epsilon", &M::epsilon, {1e-300, 1}, "target error: which buckets are erased");
    d.real("delta", &M::delta, {1e-300, 1}, "failure probability of the theorem", "1/n^2");
    d.real("c", &M::c, {1e-300, 1e300}, "bound of the walk's |y|", "30 ln(n/delta)");
    d.choice("on_fail", &M::on_fail, {"fail", "clamp", "coin"}, "what happens when |y| > c");
    d.real("r", &M::r, {1e-300, 1e300}, "bound of ||k|| and ||q||", "measured maximum");
    d.boolean("centre_keys", &M::centre_keys, "subtract the mean prompt key in the walks; exact for softmax");
    d.boolean("bucket_erase", &M::bucket_erase, "erase buckets of negligible values");
  }
  void resolve(const MethodContext& context) {
    tokens = context.tokens, dim = context.shape.dim, v_dim = context.shape.v_dim;
    if (levels == kDerived) levels = int32_t(theory::merge_levels(tokens, batch));
    if (c == kUnset) c = theory::walk_constant(tokens, delta);
    sums.batch = batch, sums.levels = levels, sums.scale = context.scale, sums.rule = {c, on_fail};
    largest_query = context.largest_query_norm;
  }
  OracleNeeds oracle_needs() const { return {.largest_query_norm = r == kUnset}; }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {  // slot 0: denominator, 2048 + i: bucket i
    return {{"U uniforms", RngStream::sign_walk, levels, s.tokens, MergeAndReduce::kSlots}};
  }
  Layout layout(const MethodContext& s) const {
    const int64_t doubles = BalancedSums::doubles(whole_batch(), s.shape.dim, s.shape.v_dim);
    return {.state_doubles = doubles, .scores = true, .weights = true, .split = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = r == kUnset}; }
  void extra_bytes(ExtraBytes& charged, const auto& cache, const Team auto& team) const {
    const auto fed = [&](int32_t slot) { return state[size_t(dim + slot)] > 0; };
    charged.weight_floats = int64_t(team.count(MergeAndReduce::kSlots, fed)) * (levels + 1);
    // A row that belongs to both structures is stored in both.
    const auto twice = [&](int32_t i) { return cache.num(i) != 0 && cache.den(i) != 0; };
    charged.key_floats = int64_t(team.count(cache.size(), twice)) * dim;
  }
  void report(auto& extras, const auto&) const {
    const auto asked = theory::BalanceKv::of(epsilon, promised_bound(), tokens, dim, v_dim);
    extras["theory_log10_t"] = asked.t.log10(), extras["bound_log10_tokens"] = asked.rows().log10();
  }
  // Theorem 3.1. A batch of n tokens is never halved, whatever t the theorem requires.
  ErrorBound error_bound() const {
    const auto asked = theory::BalanceKv::of(epsilon, promised_bound(), tokens, dim, v_dim);
    const double failure = delta == kUnset ? std::pow(double(tokens), -2) : delta;
    const bool capped = batch < tokens && asked.t > batch;
    return {ErrorBound::Norm::frobenius, epsilon, 1 - failure, capped, spread()};
  }
  // Grows with the tokens seen.
  double spread() const { return theory::largest_logit(promised_bound(), dim); }
  static std::string failure_text(int32_t, int32_t token) {
    return "a walk failed at token " + std::to_string(token) + ": |y| > c; set a larger c, or on_fail clamp or coin";
  }

  // Feeds the prompt token by token; rows that have not been fed yet have no weight. With `replay.prompt: stream` there
  // is no prompt to read first: no centre, and r grows from the first key on.
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    bind();
    if (centre_keys)
      team.each(dim, [&](int32_t x) {
        double sum = 0;
        for (int32_t i = 0; i < prompt.size(); ++i) sum += double(prompt.key(i)[size_t(x)]);
        sums.centre[size_t(x)] = sum / prompt.size();
      });
    for (int32_t h = 0; r == kUnset && h < prompt.shape().heads; ++h) {
      const auto norm2 = [&](int32_t i) { return wide_dot(prompt.query(h, i), prompt.query(h, i)); };
      grow(radius, std::sqrt(team.largest(prompt.size(), norm2).score));
    }
    for (int32_t i = 0; i < cache.size(); ++i) grow(radius, std::sqrt(sums.key_product(cache, i, i)));
    cache.weigh_rows(team, 0, cache.size(), [](int32_t) { return RowWeights{0, 0}; });
    for (int32_t i = 0; i < cache.size(); ++i) feed(team, cache, i);
    evict_unheld(team, cache);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    bind();
    cache.push(token);
    const int32_t row = cache.size() - 1;
    grow(radius, std::sqrt(sums.key_product(cache, row, row)));
    feed(team, cache, row);
    if (team.count(cache.size(), [&](int32_t i) { return !sums.held(cache, i); }) > 0) evict_unheld(team, cache);
  }

 private:
  int32_t whole_batch() const { return batch < tokens ? batch : tokens; }
  void bind() { sums.bind(state, whole_batch(), dim), sums.rng = rng; }
  double bound() const { return r != kUnset ? r : radius; }
  double promised_bound() const { return r != kUnset ? r : radius > largest_query ? radius : largest_query; }
  static void grow(double& most, double x) { most = x > most ? x : most; }
  void evict_unheld(const Team auto& team, auto& cache) const {
    cache.retain(team, [&](int32_t i) { return sums.held(cache, i); });
  }
  // Step 3 in logarithms: i ln 2 <= ln(epsilon/(2n)) - r^2/sqrt(d) + ln max ||v||.
  void feed(const Team auto& team, auto& cache, int32_t row) {
    grow(most_value, sums.feed(team, cache, row));
    if (!bucket_erase || most_value == 0) return;
    const double r2 = bound() * bound() / std::sqrt(double(dim));
    sums.erase_buckets(team, cache, (std::log(epsilon / (2.0 * tokens)) - r2 + std::log(most_value)) / std::log(2.0));
  }
};

}  // namespace kvreplay
