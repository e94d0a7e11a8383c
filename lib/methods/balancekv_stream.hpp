#pragma once
#include <algorithm>

#include "core/merge_and_reduce.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// BalanceKV, Han et al. 2025, Algorithms 1 to 3 (BalanceKV, SoftmaxBalance, MergeAndReduce). No budget: sizes
// are outputs.
//  1. Token j goes to the bucket i = ceil(log2 ||v_j||), 2^(i-1) < ||v_j|| <= 2^i; a zero value to none. Each
//  bucket, and
//     the denominator with its pairs (k, 1), owns a MergeAndReduce with its own counter j: append to C^0; if
//     t divides j: p = j/t, l = 0; while p is an integer and l < T: C^(l+1) gains SoftmaxBalance(C^l), C^l is
//     emptied, l += 1, p /= 2.
//  2. SoftmaxBalance: the self-balancing walk with kernel expv and r_value = 2^i (1 in the denominator); the
//  smaller
//     class stays.
//  3. Buckets with 2^i <= epsilon/(2n) exp(-r^2/sqrt(d)) max ||v|| are erased; max ||v|| is over the tokens
//  so far.
//  4. Output: level l weighs 2^l; numerator over all buckets, denominator over its own levels. The query sees
//  its token.
// The theorem's t is e^32 to e^150 on real keys (bound_log10_tokens), so t, T, c and delta can be given. The
// union of both structures is one list of rows: num = 0 where a token left the numerator, den = 0 where it
// left the denominator.
struct BalanceKvStream {
  static constexpr MethodInfo info{
      .name = "balancekv_stream",
      .title = "MergeAndReduce of softmax walks",
      .source = "BalanceKV, Han et al. 2025, Algorithms 1-3, Theorems 3.1-3.5",
      .tier = 1,
      .memory =
          "both structures: keys of numerator and denominator, values of the numerator, one size a list",
      .deviation =
          "the bucket inequality is printed reversed, and the test uses p where j is meant. r is measured on "
          "the prompt and grows with later keys.",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .needs_linear_logits = true,
  };
  int32_t batch = 256, levels = kDerived;
  double epsilon = 0.1, delta = kUnset, c = kUnset, r = kUnset;
  OnFail on_fail = OnFail::fail;
  bool centre_keys = false, bucket_erase = true;
  int32_t tokens = 0, dim = 0, v_dim = 0;
  double scale = 1;
  double radius = 0, most_value = 0;  // max ||k||, ||q|| and max ||v|| so far
  MergeAndReduce structures;
  std::span<double> state;  // centre of the keys [dim], then of the structures
  Draws draws;

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
  void resolve(const Scene& scene) {
    tokens = scene.tokens, dim = scene.shape.dim, v_dim = scene.shape.v_dim, scale = scene.scale;
    if (levels == kDerived) levels = std::max(0, int32_t(std::ceil(std::log2(double(tokens) / batch))));
    if (c == kUnset) c = walk_constant(tokens, delta);
    structures.batch = batch, structures.levels = levels;
  }
  static bool random(const BalanceKvStream&) { return true; }
  Layout layout(const Scene& s) const {
    return {.state_doubles = s.shape.dim + MergeAndReduce::doubles(std::min(batch, tokens)),
            .scores = true,
            .weights = true,
            .split = true};
  }
  // r is also the queries'.
  PromptNeeds needs(const Scene&) const { return {.queries = r == kUnset}; }
  void charge(Charge& charged, const auto& cache) const {
    const auto first = state.begin() + dim, last = first + MergeAndReduce::kSlots;
    const auto used = std::count_if(first, last, [](double fed) { return fed > 0; });
    charged.weight_floats = used * (levels + 1);
    for (int32_t i = 0; i < cache.size(); ++i)  // a row of both structures is stored in both
      if (cache.num(i) != 0 && cache.den(i) != 0) charged.key_floats += dim;
  }
  // The theorem's t (constant 1) and what its structures hold: t (T + 1) pairs each, one for every possible
  // bucket.
  void report(auto& extras, const auto&) const {
    const double n = tokens, r2 = bound() * bound() / std::sqrt(double(dim)), logs = std::log(v_dim * n);
    const double ln_t = std::log(logs * logs * std::sqrt(double(v_dim)) / epsilon) + 2 * r2;
    const double T = std::max(0.0, std::ceil((std::log(n) - ln_t) / std::log(2.0)));
    const double buckets = 1 + (std::log(2 * n / epsilon) + r2) / std::log(2.0);
    extras["theory_log10_t"] = ln_t / std::log(10.0);
    extras["bound_log10_tokens"] = ln_t / std::log(10.0) + std::log10((T + 1) * (buckets + 1));
  }
  static std::string failure_text(int32_t, int32_t token) {
    return "a walk failed at token " + std::to_string(token) +
           ": |y| > c; give a larger c, or on_fail clamp or coin";
  }

  // The prompt, token by token; rows that are not fed yet have no weight. With `replay.prompt: stream` there
  // is no prompt to look at first: no centre, and r grows from the first key on.
  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    structures.state = state.subspan(size_t(dim));
    if (centre_keys)
      team.each(dim, [&](int32_t x) {
        double sum = 0;
        for (int32_t i = 0; i < prompt.size(); ++i) sum += double(prompt.key(i)[size_t(x)]);
        centre()[size_t(x)] = sum / prompt.size();
      });
    team.sync();
    for (int32_t h = 0; r == kUnset && h < prompt.shape().heads; ++h) {
      const auto norm2 = [&](int32_t i) { return wide_dot(prompt.query(h, i), prompt.query(h, i)); };
      grow(radius, std::sqrt(team.largest(prompt.size(), norm2).score));
    }
    for (int32_t i = 0; i < cache.size(); ++i) grow(radius, std::sqrt(key_product(cache, i, i)));
    for (int32_t i = 0; i < cache.size(); ++i) cache.weigh(team, i, 0, 0);
    for (int32_t i = 0; i < cache.size(); ++i) feed(team, cache, i);
    cache.retain(team, [&](int32_t i) { return structures.held(cache, i); });
  }
  template <class Real>
  KVR_FN void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    structures.state = state.subspan(size_t(dim));
    cache.push(team, token);
    const int32_t row = cache.size() - 1;
    grow(radius, std::sqrt(key_product(cache, row, row)));
    feed(team, cache, row);
    if (team.count(cache.size(), [&](int32_t i) { return !structures.held(cache, i); }) > 0)
      cache.retain(team, [&](int32_t i) { return structures.held(cache, i); });
  }

 private:
  static constexpr int32_t kBucketZero = 2048;  // slot of bucket i: i + 2048

  KVR_FN std::span<double> centre() const { return state.first(size_t(dim)); }
  KVR_FN double bound() const { return r != kUnset ? r : radius; }
  KVR_FN static void grow(double& most, double x) { most = x > most ? x : most; }
  KVR_FN double key_product(const auto& cache, int32_t a, int32_t b) const {
    return centred_dot(cache.key(a), cache.key(b), std::span<const double>(centre()));
  }
  KVR_FN static int32_t slot_of(double norm) {
    int exponent = 0;
    const double mantissa = std::frexp(norm, &exponent);
    return kBucketZero + (mantissa == 0.5 ? exponent - 1 : exponent);
  }

  KVR_FN void feed(const Team auto& team, auto& cache, int32_t row) {
    const double norm = std::sqrt(wide_dot(cache.value(row), cache.value(row)));
    const int32_t slot = norm > 0 ? slot_of(norm) : MergeAndReduce::kDenominator;
    team.sync();
    if (team.rank() == 0) cache.score(row) = slot;
    cache.weigh(team, row, norm > 0 ? 1 : 0, 1);
    merge(team, cache, MergeAndReduce::kDenominator);
    if (norm > 0) merge(team, cache, slot);
    grow(most_value, norm);
    if (bucket_erase && most_value > 0) erase(team, cache);
  }
  KVR_FN void merge(const Team auto& team, auto& cache, int32_t slot) {
    structures.append(team, cache, slot,
                      [&](int32_t n, int32_t level) { return balance(team, cache, slot, n, level); });
  }
  // SoftmaxBalance of n rows; false if it fails.
  KVR_FN bool balance(const Team auto& team, auto& cache, int32_t slot, int32_t n, int32_t level) {
    const bool ones = slot == MergeAndReduce::kDenominator;
    const auto row = [&](int32_t i) { return structures.row(i); };
    const auto key2 = [&](int32_t i) { return key_product(cache, row(i), row(i)); };
    const SoftmaxKernel expv{scale, team.largest(n, key2).score,
                             ones ? 1 : std::ldexp(1.0, 2 * (slot - kBucketZero))};
    const auto K = [&](int32_t i, int32_t j) {
      const double values = ones ? 1 : wide_dot(cache.value(row(i)), cache.value(row(j)));
      return expv(key_product(cache, row(i), row(j)), values);
    };
    const SelfBalancing rule{c, on_fail};
    const auto decide = [&](int32_t i, double y) {
      return rule.sign(y, draws.uniform(Structure::sign_walk, cache.token(row(i)), slot, level));
    };
    const int32_t failed =
        kernel_walk(team, n, K, decide, [&](int32_t i) -> double& { return structures.sign(i); });
    if (failed >= 0) cache.fail(team, 1, cache.token(row(failed)));
    return failed < 0;
  }
  // Step 3 in logarithms: i ln 2 <= ln(epsilon/(2n)) - r^2/sqrt(d) + ln max ||v||.
  KVR_FN void erase(const Team auto& team, auto& cache) {
    const double r2 = bound() * bound() / std::sqrt(double(dim));
    const double most = (std::log(epsilon / (2.0 * tokens)) - r2 + std::log(most_value)) / std::log(2.0);
    for (int32_t i = -1074; i <= most; ++i)
      structures.erase(team, cache, kBucketZero + i);  // from the smallest double
  }
};

}  // namespace kvreplay
