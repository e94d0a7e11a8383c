#pragma once
#include "core/rotary.hpp"
#include "core/selecting.hpp"
#include "methods/parts/leverage.hpp"

namespace kvreplay {

// CapKV (arXiv 2604.25975): the leverage of a token's value among the values that future queries are expected to read.
//  1. Un-rotate the prompt's queries, without the first `sinks`; mu = their mean per query head, rotated by the average
//     rotation over the `n_future` positions after the prompt.
//  2. w_j = exp(a_j - max a) for tokens after the sinks: variant kvpress a_j = tau cos(k_j, mu), paper a_j = scale
//     <k_j, mu>.
//  3. A = I + sum_j (w_j + eps) v_j v_j^T. The maximum in step 2 changes the weights relative to I, so it is part of
//     the method.
//  4. s_j = w_j v_j^T A^-1 v_j, mean over the group.
//  5. Keep the sinks and the top B - sinks; later tokens are kept.
struct CapKv : Selecting<4> {
  static constexpr MethodInfo info{
      .name = "capkv",
      .title = "leverage of values among those that queries are expected to read",
      .source = "CapKV, arXiv 2604.25975 (as kvpress runs it)",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "variant paper: the layer's scale of the logits replaces tau. gqa.agg sum means the group mean, which "
          "ranks alike.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection state"};
  enum class Variant { kvpress, paper };
  Variant variant = Variant::kvpress;
  double tau = 5, eps = 1e-6;
  int32_t n_future = 512;
  std::span<double> state;  // [heads, P] scores, then Work

  static void declare(auto& d) {
    d.choice("variant", &CapKv::variant, {"kvpress", "paper"},
             "tokens are weighted by cosines times tau, or by logits");
    d.real("tau", &CapKv::tau, {0, 1e6}, "sharpness of the weights (variant kvpress)");
    d.integer("n_future", &CapKv::n_future, {1, kManyTokens}, "positions at which queries are expected");
    d.real("eps", &CapKv::eps, {0, 1e300}, "added to every weight in A");
    protect<CapKv>(d);
  }
  Layout layout(const MethodContext& context) const {
    const int64_t scores = int64_t(context.shape.heads) * context.prompt_tokens;
    return {.state_doubles = scores + work_doubles(context.shape), .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const HeadShape shape = prompt.shape();
    const int32_t first = held_sinks(cache, sinks), rows = cache.size() - first;
    if (rows <= 0 || prompt.size() <= sinks) return;
    const Work w = carve(shape, prompt.rope().pairs);
    w.ahead.find(team, prompt.rope(), prompt.position(prompt.size() - 1) + 1, n_future);
    for (int32_t h = 0; h < shape.heads; ++h) {
      const Prompt<Real> own = prompt.block(shape.block_of(h));
      const std::span<double> s = state.subspan(size_t(h) * size_t(rows), size_t(rows));
      compute_expected_query(team, prompt, h, w);
      weigh(team, w, s, prompt.scale(), [&](int32_t i) { return own.key(cache.token(first + i)); });
      score(team, w, s, [&](int32_t i) { return own.value(cache.token(first + i)); });
    }
    const Aggregate how = prompt.how() == Aggregate::sum ? Aggregate::mean : prompt.how();
    team.each(rows, [&](int32_t i) { cache.score(first + i) = aggregate(how, &state[size_t(i)], rows, shape.heads); });
  }

 private:
  struct Work {
    std::span<double> mean, query;
    AverageRotation ahead;
    Leverage values;
  };
  static int64_t work_doubles(const HeadShape& s) { return 3 * int64_t(s.dim) + Leverage::doubles(s.v_dim); }
  Work carve(const HeadShape& s, int32_t pairs) const {
    Carver cut{state.data() + int64_t(state.size()) - work_doubles(s)};
    return {cut(s.dim), cut(s.dim), {cut(pairs), cut(pairs)}, Leverage::carve(cut, s.v_dim)};
  }
  // Step 1. The average rotation does not restore an attention factor (YaRN).
  template <class Real>
  void compute_expected_query(const Team auto& team, const Prompt<Real>& prompt, int32_t head, const Work& w) const {
    const int32_t d = prompt.shape().dim, count = prompt.size() - sinks;
    team.each(d, [&](int32_t c) { w.mean[size_t(c)] = 0; });
    for (int32_t row = sinks; row < prompt.size(); ++row) {
      unrotate(team, prompt.rope(), prompt.position(row), prompt.query(head, row), w.query);
      team.each(d, [&](int32_t c) { w.mean[size_t(c)] += w.query[size_t(c)] / count; });
    }
    team.each(prompt.rope().pairs, [&](int32_t i) { w.ahead.turn(prompt.rope(), i, w.mean.data()); });
  }
  // Step 2.
  void weigh(const Team auto& team, const Work& w, std::span<double> s, double scale, auto key) const {
    const int32_t n = int32_t(s.size());
    const double length = norm(w.mean);
    team.each(n, [&](int32_t i) {
      const double product = wide_dot(key(i), w.mean), lengths = length * norm(key(i));
      s[size_t(i)] = variant == Variant::paper ? scale * product : lengths > 0 ? tau * product / lengths : 0;
    });
    const double top = team.largest(n, [&](int32_t i) { return s[size_t(i)]; }).score;
    team.each(n, [&](int32_t i) { s[size_t(i)] = std::exp(s[size_t(i)] - top); });
  }
  // Steps 3 and 4: replaces weights by scores.
  void score(const Team auto& team, const Work& w, std::span<double> s, auto value) const {
    const auto take = [&](int32_t i) {
      const auto v = value(i);
      team.each(int32_t(v.size()), [&](int32_t c) { w.values.point[size_t(c)] = double(v[size_t(c)]); });
    };
    w.values.find(
        team, int32_t(s.size()), 1, [&](int32_t i) { return s[size_t(i)] + eps; }, take,
        [&](int32_t i, double leverage) { s[size_t(i)] *= leverage; });
  }
};

}  // namespace kvreplay
