#pragma once
#include <algorithm>

#include "core/policy.hpp"
#include "core/walk.hpp"

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
  std::span<double> state;  // counters [kSlots], centre of the keys [dim], rows [t] and signs [t] of a walk
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
  }
  static bool random(const BalanceKvStream&) { return true; }
  Layout layout(const Scene& s) const {
    return {.state_doubles = kSlots + s.shape.dim + 2 * int64_t(std::min(batch, tokens)),
            .scores = true,
            .weights = true,
            .split = true};
  }
  // r is also the queries'.
  PromptNeeds needs(const Scene&) const { return {.queries = r == kUnset}; }
  void charge(Charge& charged, const auto& cache) const {
    const auto used = std::count_if(state.begin(), state.begin() + kSlots, [](double j) { return j > 0; });
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

  // The prompt, token by token. Rows that are not fed yet have no weight.
  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
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
    for (int32_t i = 0; i < cache.size(); ++i) grow(radius, key_norm(cache, i));
    for (int32_t i = 0; i < cache.size(); ++i) cache.weigh(team, i, 0, 0);
    for (int32_t i = 0; i < cache.size(); ++i) feed(team, cache, i);
    cache.retain(team, [&](int32_t i) { return held(cache, i); });
  }
  template <class Real>
  KVR_FN void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    cache.push(team, token);
    const int32_t row = cache.size() - 1;
    grow(radius, key_norm(cache, row));
    feed(team, cache, row);
    if (team.count(cache.size(), [&](int32_t i) { return !held(cache, i); }) > 0)
      cache.retain(team, [&](int32_t i) { return held(cache, i); });
  }

 private:
  static constexpr int32_t kDenominator = 0, kBucketZero = 2048, kSlots = 4096;  // slot of bucket i: i + 2048

  KVR_FN double& counter(int32_t slot) { return state[size_t(slot)]; }
  KVR_FN std::span<double> centre() const { return state.subspan(kSlots, size_t(dim)); }
  KVR_FN double& walk_row(int32_t i) { return state[size_t(kSlots + dim + i)]; }
  KVR_FN double& sign(int32_t i) { return walk_row((int32_t(state.size()) - kSlots - dim) / 2 + i); }
  KVR_FN double bound() const { return r != kUnset ? r : radius; }
  KVR_FN static void grow(double& most, double x) { most = x > most ? x : most; }
  KVR_FN static bool held(const auto& cache, int32_t row) {
    return cache.num(row) != 0 || cache.den(row) != 0;
  }
  KVR_FN double key_norm(const auto& cache, int32_t row) const {
    return std::sqrt(centred_dot(cache.key(row), cache.key(row), std::span<const double>(centre())));
  }
  KVR_FN static int32_t slot_of(double norm) {
    int exponent = 0;
    const double mantissa = std::frexp(norm, &exponent);
    return kBucketZero + (mantissa == 0.5 ? exponent - 1 : exponent);
  }
  // Weight of a row in the structure of a slot, 0 if it is not in it. The score of a row is the slot of its
  // bucket.
  KVR_FN static double weight(const auto& cache, int32_t row, int32_t slot) {
    if (slot == kDenominator) return double(cache.den(row));
    return cache.score(row) == slot ? double(cache.num(row)) : 0;
  }
  KVR_FN static void set_weight(const Team auto& team, auto& cache, int32_t row, int32_t slot, double w) {
    if (slot == kDenominator) cache.weigh(team, row, double(cache.num(row)), w);
    else cache.weigh(team, row, w, double(cache.den(row)));
  }

  KVR_FN void feed(const Team auto& team, auto& cache, int32_t row) {
    const double norm = std::sqrt(wide_dot(cache.value(row), cache.value(row)));
    const int32_t slot = norm > 0 ? slot_of(norm) : kDenominator;
    team.sync();
    if (team.rank() == 0) cache.score(row) = slot;
    cache.weigh(team, row, norm > 0 ? 1 : 0, 1);
    merge_and_reduce(team, cache, kDenominator);
    if (norm > 0) merge_and_reduce(team, cache, slot);
    grow(most_value, norm);
    if (bucket_erase && most_value > 0) erase(team, cache);
  }
  KVR_FN void merge_and_reduce(const Team auto& team, auto& cache, int32_t slot) {
    const int64_t j = int64_t(counter(slot)) + 1;
    team.sync();
    if (team.rank() == 0) counter(slot) = double(j);
    team.sync();
    if (j % batch != 0 || cache.failure() != 0) return;
    int64_t p = j / batch;
    for (int32_t level = 0; level < levels; ++level, p /= 2) {
      balance(team, cache, slot, level);
      if (p % 2 != 0) break;
    }
  }
  // SoftmaxBalance of one level; the smaller class moves up, the other leaves.
  KVR_FN void balance(const Team auto& team, auto& cache, int32_t slot, int32_t level) {
    const double w = std::ldexp(1.0, level);
    const auto here = [&](int32_t i) { return weight(cache, i, slot) == w; };
    const int32_t n = team.count(cache.size(), here);
    if (team.rank() == 0)
      for (int32_t i = 0, at = 0; i < cache.size(); ++i)
        if (here(i)) walk_row(at++) = i;
    team.sync();
    const auto row = [&](int32_t i) { return int32_t(walk_row(i)); };
    const auto keys = [&](int32_t i, int32_t j) {
      return centred_dot(cache.key(row(i)), cache.key(row(j)), std::span<const double>(centre()));
    };
    const auto values = [&](int32_t i, int32_t j) {
      return slot == kDenominator ? 1.0 : wide_dot(cache.value(row(i)), cache.value(row(j)));
    };
    const SoftmaxKernel expv{scale, team.largest(n, [&](int32_t i) { return keys(i, i); }).score,
                             slot == kDenominator ? 1 : std::ldexp(1.0, 2 * (slot - kBucketZero))};
    const SelfBalancing rule{c, on_fail};
    const auto decide = [&](int32_t i, double y) {
      return rule.sign(y, draws.uniform(Structure::sign_walk, cache.token(row(i)), slot, level));
    };
    const int32_t failed = kernel_walk(
        team, n, [&](int32_t i, int32_t j) { return expv(keys(i, j), values(i, j)); }, decide,
        [&](int32_t i) -> double& { return sign(i); });
    if (failed >= 0) return cache.fail(team, 1, cache.token(row(failed)));
    const double small = smaller_class(team, n, [&](int32_t i) { return sign(i); });
    for (int32_t i = 0; i < n; ++i) set_weight(team, cache, row(i), slot, sign(i) == small ? 2 * w : 0);
  }
  // Step 3 in logarithms: i ln 2 <= ln(epsilon/(2n)) - r^2/sqrt(d) + ln max ||v||.
  KVR_FN void erase(const Team auto& team, auto& cache) {
    const double floor = std::log(epsilon / (2.0 * tokens)) - bound() * bound() / std::sqrt(double(dim)) +
                         std::log(most_value);
    const auto negligible = [&](int32_t slot) { return (slot - kBucketZero) * std::log(2.0) <= floor; };
    if (!negligible(kBucketZero - 1074)) return;  // no double is that small
    for (int32_t i = 0; i < cache.size(); ++i)
      if (cache.num(i) != 0 && negligible(int32_t(cache.score(i))))
        cache.weigh(team, i, 0, double(cache.den(i)));
    team.each(kSlots, [&](int32_t slot) {
      if (slot != kDenominator && negligible(slot)) counter(slot) = 0;
    });
    team.sync();
  }
};

}  // namespace kvreplay
