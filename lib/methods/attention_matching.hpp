#pragma once
#include <cmath>
#include <map>

#include "core/linear.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// Attention matching, the variant by highest attention keys: B keys of the prompt, with masses and values
// fitted so that attention over them does what attention over all prompt tokens did.
//  1. Training queries: the prompt's, rotated as if they stood at positions P..P+511, so that they look back
//  on it.
//  2. Score of a key: root mean square over the queries of its attention probability; the top B stay.
//  3. Masses w: ridge least squares of E_S w to the row sums of E, clipped to exp(+-clip), then 2 projected
//  gradient
//     steps with step 1 / largest eigenvalue. E = exp(l - row maximum).
//  4. Values C: ridge least squares of softmax(l_S + ln w) C to the exact outputs.
//  5. Store (k, ln w, C). Later tokens are kept.
// Unmodified prompt queries attend to their own future, and training on them fails: `train: prompt` shows it.
struct AttentionMatching {
  static constexpr MethodInfo info{
      .name = "attention_matching",
      .title = "fitted masses and values on the highest attention keys",
      .source = "attention-matching compaction, highest attention keys",
      .tier = 3,
      .memory = "B prompt tokens and every later one, one bias a prompt token",
      .deviation =
          "values are fitted with ridge * trace / B. train: future sees the future and is for analyses only.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .any_positions = false,
      .needs_linear_logits = true,
  };
  enum class Train { reroped, prompt, future };
  double ridge = 1e-4, clip = 3;
  Train train = Train::reroped;
  int32_t max_queries = 50000;
  int32_t budget = 0;
  std::span<double> state;  // error on the training queries, then Work

  static void declare(auto& d) {
    d.real("ridge", &AttentionMatching::ridge, {0, 1e300}, "regularisation, relative to the mean diagonal");
    d.real("clip", &AttentionMatching::clip, {1e-300, 700}, "largest absolute bias");
    d.choice("train", &AttentionMatching::train, {"reroped", "prompt", "future"},
             "queries that are matched: the prompt's at later positions or as they are; the decode rows' "
             "(sees the "
             "future, analysis only)");
    d.integer("max_queries", &AttentionMatching::max_queries, {1, kManyTokens},
              "most training queries; of more every ceil-th is taken");
  }
  void resolve(const Scene& scene) {
    budget = scene.budget;
    if (scene.shape.blocks > 1)
      throw ParameterError("gqa.level",
                           "attention_matching fits each kv head by itself; use gqa.level kv or query");
    if (train == Train::future && scene.tokens == scene.prompt)
      throw ParameterError("train", "there is no row after the prompt to train on; use reroped");
  }
  PromptNeeds needs(const Scene&) const { return {.queries = true, .rotary = train == Train::reroped}; }
  Layout layout(const Scene& scene) const {
    if (scene.prompt <= budget) return {.state_doubles = 1};
    const int64_t N =
        queries(scene.shape.heads, train == Train::future ? scene.tokens - scene.prompt : scene.prompt);
    const int64_t P = scene.prompt, B = budget, d = scene.shape.dim, dv = scene.shape.v_dim;
    return {.state_doubles = 1 + N * (dv + 2) + d + P + dv + 2 * B * B + B * (dv + 4),
            .scores = true,
            .weights = true,
            .own_rows = budget};
  }
  void charge(Charge& c, const auto& cache) const { c.weight_floats = cache.evictions() > 0 ? budget : 0; }
  void report(std::map<std::string, double>& extras, const auto& cache) const {
    if (cache.evictions() > 0) extras["train_error"] = state[0];
  }
  static std::string failure_text(int32_t what, int32_t) {
    return std::string("the ") + (what == 1 ? "masses" : "values") +
           " have no unique least-squares solution; give a larger ridge";
  }

  // The cut is made here, where the queries are.
  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    if (cache.size() <= budget) return;
    Fit<Real> fit{prompt, cache, carve(prompt, cache.size())};
    watch(team, fit);
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = 0; });
    choose_top(
        team, cache.size(), budget, [&](int32_t i) { return cache.score(i); },
        [&](int32_t i, bool yes) { cache.mark(i) = yes ? 1 : 0; });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    if (!fit_masses(team, fit)) return cache.fail(team, 1, 0);
    if (!fit_values(team, fit)) return cache.fail(team, 2, 0);
    store(team, fit);
  }

 private:
  struct Work {
    int32_t N, dv;
    std::span<double> top, sum, targets;  // of each training query: maximum, sum, exact output
    std::span<double> query, e, out;      // of one training query
    std::span<double> gram, factor, w, right, scratch, values;
    KVR_FN std::span<double> target(int32_t i) const {
      return targets.subspan(size_t(i) * size_t(dv), size_t(dv));
    }
    KVR_FN std::span<double> value(int32_t i) const {
      return values.subspan(size_t(i) * size_t(dv), size_t(dv));
    }
  };
  template <class Real>
  struct Fit {
    const Prompt<Real>& prompt;
    BasicCache<Real>& cache;
    Work work;
  };
  KVR_FN int64_t queries(int64_t heads, int64_t rows) const {
    const int64_t all = heads * rows, step = (all + max_queries - 1) / max_queries;
    return (all + step - 1) / step;
  }
  KVR_FN int32_t rows(const auto& prompt) const {
    return train == Train::future ? prompt.future_tokens() - prompt.size() : prompt.size();
  }
  KVR_FN Work carve(const auto& prompt, int32_t keys) const {
    Carver cut{state.data() + 1};
    const HeadShape s = prompt.shape();
    const int64_t N = queries(s.heads, rows(prompt)), B = budget, dv = s.v_dim;
    return {int32_t(N), s.v_dim,    cut(N),     cut(N), cut(N * dv), cut(s.dim), cut(keys),
            cut(dv),    cut(B * B), cut(B * B), cut(B), cut(B),      cut(2 * B), cut(B * dv)};
  }

  // Step 1: training query i, head after head.
  template <class Real>
  KVR_FN void place_query(const Team auto& team, const Fit<Real>& fit, int32_t i) const {
    const Prompt<Real>& prompt = fit.prompt;
    const int32_t n = rows(prompt);
    const int64_t all = int64_t(prompt.shape().heads) * n, step = (all + max_queries - 1) / max_queries;
    const int32_t head = int32_t(i * step / n), row = int32_t(i * step % n);
    const auto q =
        train == Train::future ? prompt.future_query(head, prompt.size() + row) : prompt.query(head, row);
    const std::span<double> to = fit.work.query;
    team.each(int32_t(q.size()), [&](int32_t c) { to[size_t(c)] = double(q[size_t(c)]); });
    if (train != Train::reroped) return;
    // From its own position to one behind the prompt: both rotations in one.
    const int32_t by = prompt.position(prompt.size() - 1) + 1 + row % 512 - prompt.position(row);
    const RopeView rope = prompt.rope();
    team.each(rope.pairs, [&](int32_t p) {
      const size_t a = rope.interleaved ? 2 * size_t(p) : size_t(p),
                   b = rope.interleaved ? a + 1 : a + size_t(rope.pairs);
      const double c = std::cos(by * rope.inv_freq[p]), s = std::sin(by * rope.inv_freq[p]), x = to[a],
                   y = to[b];
      to[a] = x * c - y * s;
      to[b] = x * s + y * c;
    });
  }
  // Logits of training query i over the rows of the cache.
  template <class Real>
  KVR_FN void logits(const Team auto& team, const Fit<Real>& fit, int32_t i) const {
    place_query(team, fit, i);
    const Work& w = fit.work;
    team.each(fit.cache.size(), [&](int32_t j) {
      const auto key = fit.cache.key(j);
      w.e[size_t(j)] = fit.prompt.scale() * dot(key.data(), w.query.data(), int32_t(key.size()));
    });
  }
  // Step 2: maximum, sum and exact output of every training query, and the score of every key.
  template <class Real>
  KVR_FN void watch(const Team auto& team, const Fit<Real>& fit) const {
    const Work& w = fit.work;
    const int32_t n = fit.cache.size();
    team.each(n, [&](int32_t j) { fit.cache.score(j) = 0; });
    for (int32_t i = 0; i < w.N; ++i) {
      logits(team, fit, i);
      const double top = team.largest(n, [&](int32_t j) { return w.e[size_t(j)]; }).score;
      team.each(n, [&](int32_t j) { w.e[size_t(j)] = std::exp(w.e[size_t(j)] - top); });
      const double sum = team.sum(n, [&](int32_t j) { return w.e[size_t(j)]; });
      if (team.rank() == 0) w.top[size_t(i)] = top, w.sum[size_t(i)] = sum;
      team.each(n, [&](int32_t j) {
        const double p = w.e[size_t(j)] / sum;
        fit.cache.score(j) += p * p / w.N;
      });
      weighted_sum(
          team, n, [&](int32_t j) { return w.e[size_t(j)] / sum; },
          [&](int32_t j) { return fit.cache.value(j); }, w.target(i));
    }
    team.each(n, [&](int32_t j) { fit.cache.score(j) = std::sqrt(fit.cache.score(j)); });
  }
  // Step 3.
  template <class Real>
  KVR_FN bool fit_masses(const Team auto& team, const Fit<Real>& fit) const {
    const Work& w = fit.work;
    const int32_t B = budget;
    team.each(B * B, [&](int32_t i) { w.gram[size_t(i)] = 0; });
    team.each(B, [&](int32_t j) { w.right[size_t(j)] = 0; });
    for (int32_t i = 0; i < w.N; ++i) {
      logits(team, fit, i);
      team.each(B, [&](int32_t j) { w.e[size_t(j)] = std::exp(w.e[size_t(j)] - w.top[size_t(i)]); });
      add_outer(team, w.gram, w.e.subspan(0, size_t(B)));
      team.each(B, [&](int32_t j) { w.right[size_t(j)] += w.e[size_t(j)] * w.sum[size_t(i)]; });
    }
    complete(team, w.gram, B, ridge);
    team.each(B * B, [&](int32_t i) { w.factor[size_t(i)] = w.gram[size_t(i)]; });
    team.each(B, [&](int32_t j) { w.w[size_t(j)] = w.right[size_t(j)]; });
    if (!cholesky(team, w.factor, B)) return false;
    cholesky_solve(team, w.factor, B, w.w, 1);
    const auto clipped = [&](double x) { return std::fmin(std::fmax(x, std::exp(-clip)), std::exp(clip)); };
    team.each(B, [&](int32_t j) { w.w[size_t(j)] = clipped(w.w[size_t(j)]); });
    const double step = 1 / largest_eigenvalue(team, w.gram, B, w.scratch);
    for (int32_t round = 0; round < 2; ++round) {
      team.each(B, [&](int32_t j) {
        const double slope = dot(w.gram.data() + int64_t(j) * B, w.w.data(), B) - w.right[size_t(j)];
        w.scratch[size_t(j)] = clipped(w.w[size_t(j)] - step * slope);
      });
      team.each(B, [&](int32_t j) { w.w[size_t(j)] = w.scratch[size_t(j)]; });
    }
    return true;
  }
  // Probabilities of training query i over the rows with their masses.
  template <class Real>
  KVR_FN void probabilities(const Team auto& team, const Fit<Real>& fit, int32_t i) const {
    const Work& w = fit.work;
    logits(team, fit, i);
    const auto biased = [&](int32_t j) { return w.e[size_t(j)] + std::log(w.w[size_t(j)]); };
    const double top = team.largest(budget, biased).score;
    team.each(budget, [&](int32_t j) { w.e[size_t(j)] = std::exp(biased(j) - top); });
    const double sum = team.sum(budget, [&](int32_t j) { return w.e[size_t(j)]; });
    team.each(budget, [&](int32_t j) { w.e[size_t(j)] /= sum; });
  }
  // Step 4, and how well the training queries are matched (mean relative error).
  template <class Real>
  KVR_FN bool fit_values(const Team auto& team, const Fit<Real>& fit) {
    const Work& w = fit.work;
    const int32_t B = budget;
    team.each(B * B, [&](int32_t i) { w.factor[size_t(i)] = 0; });
    team.each(B * w.dv, [&](int32_t i) { w.values[size_t(i)] = 0; });
    for (int32_t i = 0; i < w.N; ++i) {
      probabilities(team, fit, i);
      add_outer(team, w.factor, w.e.subspan(0, size_t(B)));
      team.each(B, [&](int32_t j) {
        const auto to = w.value(j), y = w.target(i);
        const double p = w.e[size_t(j)];
        for (size_t c = 0; c < y.size(); ++c) to[c] += p * y[c];
      });
    }
    complete(team, w.factor, B, ridge);
    if (!cholesky(team, w.factor, B)) return false;
    cholesky_solve(team, w.factor, B, w.values, w.dv);
    double error = 0;
    for (int32_t i = 0; i < w.N; ++i) {
      probabilities(team, fit, i);
      weighted_sum(
          team, B, [&](int32_t j) { return w.e[size_t(j)]; }, [&](int32_t j) { return w.value(j); }, w.out);
      const double length = norm(w.target(i));
      if (length > 0) error += std::sqrt(squared_distance(w.out, w.target(i))) / length / w.N;
    }
    if (team.rank() == 0) state[0] = error;
    return true;
  }
  // Step 5.
  template <class Real>
  KVR_FN void store(const Team auto& team, const Fit<Real>& fit) const {
    for (int32_t j = 0; j < budget; ++j) {
      const auto key = fit.cache.key(j);
      fit.cache.rewrite(
          team, j, [&](int32_t, int32_t c) { return key[size_t(c)]; },
          [&](int32_t, int32_t c) { return Real(fit.work.value(j)[size_t(c)]); });
      fit.cache.weigh(team, j, fit.work.w[size_t(j)], fit.work.w[size_t(j)]);
    }
  }
};

}  // namespace kvreplay
