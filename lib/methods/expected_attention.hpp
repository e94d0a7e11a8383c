#pragma once
#include "core/rotary.hpp"
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Expected Attention, Devoto et al. 2025, section 3: the attention expected from queries of the next positions, if they
// are Gaussian like those of the prompt.
//  1. Un-rotate the prompt's queries, without the first `sinks`. With `calibration` the queries of other text, without
//     the first `sinks` of each prompt, as kvpress's ExpectedAttentionStatsPress does.
//  2. Per query head their mean mu and covariance S (divided by the count; of other text by the count - 1).
//  3. R = average rotation over the `n_future` positions after the prompt; mu <- R mu, S <- R S R^T.
//  4. z_j = scale <mu, k_j> + scale^2/2 k_j^T S k_j for tokens after the sinks.
//  5. Softmax over j, group mean.
//  6. Score (softmax + eps) ||v_j||.
//  7. Keep the sinks and the top B - sinks; later tokens are kept.
struct ExpectedAttention : Selecting<4> {
  static constexpr MethodInfo info{
      .name = "expected_attention",
      .title = "attention expected from future queries",
      .source = "Expected Attention, Devoto et al. 2025, section 3 (as kvpress 0.5.5 runs it)",
      .tier = 2,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "gqa.agg sum means the group mean, which ranks alike. kvpress calibrates on 100 "
          "texts of 1000 characters; `calibration` names prompts or a file.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs protection voters state"};
  int32_t n_future = 512;
  bool covariance = true, vnorm = true;
  double eps = kUnset;
  std::span<double> state;  // [heads, P] scores, then mu [d], one query [d], S [d, d], R [2, pairs]

  static void declare(auto& d) {
    d.integer("n_future", &ExpectedAttention::n_future, {1, kManyTokens}, "positions at which queries are expected");
    d.boolean("covariance", &ExpectedAttention::covariance, "whether the covariance of the queries is used");
    d.boolean("vnorm", &ExpectedAttention::vnorm, "whether scores are multiplied by the norm of the value");
    d.real("eps", &ExpectedAttention::eps, {0, 1e300}, "added to every probability before it is multiplied",
           "0; 1e-2 under adakv");
    d.calibration("queries that future ones are expected to be like: those of this prompt, or of other text");
    protect<ExpectedAttention>(d);
  }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    if (eps == kUnset) eps = context.compares_heads ? 1e-2 : 0;
  }
  Layout layout(const MethodContext& context) const {
    const int64_t d = context.shape.dim;
    return {.state_doubles = int64_t(context.shape.heads) * context.prompt_tokens + 3 * d + d * d, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true, .known = {.moments_after = sinks}}; }
  double voters(const MethodContext&) const { return 1; }  // its scores are a mean

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const HeadShape shape = prompt.shape();
    const int32_t first = held_sinks(cache, sinks), rows = cache.size() - first;
    if (rows <= 0 || prompt.size() <= sinks) return;
    const Moments m = moments(prompt);
    m.ahead.find(team, prompt.rope(), prompt.position(prompt.size() - 1) + 1, n_future);
    for (int32_t h = 0; h < shape.heads; ++h) {
      if (prompt.knows_moments()) take_known(team, prompt, h, m);
      else read_queries(team, prompt, h, m);
      look_ahead(team, prompt, m);
      const Prompt<Real> own = prompt.block(shape.block_of(h));
      const std::span<double> z = state.subspan(size_t(h) * size_t(rows), size_t(rows));
      team.each(rows, [&](int32_t i) { z[size_t(i)] = exponent(m, own.key(cache.token(first + i)), prompt.scale()); });
      softmax(team, z);
      if (vnorm)
        team.each(rows,
                  [&](int32_t i) { z[size_t(i)] = (z[size_t(i)] + eps) * norm(own.value(cache.token(first + i))); });
    }
    const Aggregate how = prompt.how() == Aggregate::sum ? Aggregate::mean : prompt.how();
    team.each(rows, [&](int32_t i) { cache.score(first + i) = aggregate(how, &state[size_t(i)], rows, shape.heads); });
  }

 private:
  struct Moments {
    std::span<double> mean, query, covariance;
    AverageRotation ahead;
  };
  template <class Real>
  Moments moments(const Prompt<Real>& prompt) const {
    const size_t d = size_t(prompt.shape().dim), pairs = size_t(prompt.rope().pairs);
    const std::span<double> s = state.last(3 * d + d * d);
    return {s.subspan(0, d),
            s.subspan(d, d),
            s.subspan(2 * d, d * d),
            {s.subspan(2 * d + d * d, pairs), s.subspan(2 * d + d * d + pairs, pairs)}};
  }
  // An attention factor (YaRN) would be divided out here and multiplied in again by R, so it is left in.
  template <class Real>
  void unrotate(const Team auto& team, const Prompt<Real>& prompt, int32_t head, int32_t row, const Moments& m) {
    const auto query = prompt.query(head, row);
    team.each(int32_t(query.size()), [&](int32_t c) { m.query[size_t(c)] = double(query[size_t(c)]); });
    rotate(team, prompt.rope(), -prompt.position(row), m.query.data());
  }
  // Steps 1 and 2 of one query head, from other text.
  template <class Real>
  void take_known(const Team auto& team, const Prompt<Real>& prompt, int32_t head, const Moments& m) const {
    const auto mean = prompt.full_mean_query(head), all = prompt.query_covariance(head);
    team.each(int32_t(mean.size()), [&](int32_t a) { m.mean[size_t(a)] = mean[size_t(a)]; });
    team.each(int32_t(all.size()), [&](int32_t a) { m.covariance[size_t(a)] = all[size_t(a)]; });
  }
  // Steps 1 and 2 of one query head, from this prompt.
  template <class Real>
  void read_queries(const Team auto& team, const Prompt<Real>& prompt, int32_t head, const Moments& m) {
    const int32_t d = prompt.shape().dim, count = prompt.size() - sinks;
    team.each(d, [&](int32_t a) { m.mean[size_t(a)] = 0; });
    team.each(d * d, [&](int32_t a) { m.covariance[size_t(a)] = 0; });
    for (int32_t row = sinks; row < prompt.size(); ++row) {
      unrotate(team, prompt, head, row, m);
      team.each(d, [&](int32_t a) { m.mean[size_t(a)] += m.query[size_t(a)] / count; });
    }
    for (int32_t row = sinks; covariance && row < prompt.size(); ++row) {
      unrotate(team, prompt, head, row, m);
      team.each(d, [&](int32_t a) { m.query[size_t(a)] -= m.mean[size_t(a)]; });
      team.each(d, [&](int32_t a) {
        const double x = m.query[size_t(a)] / count, *y = m.query.data();
        double* of_row = m.covariance.data() + int64_t(a) * d;
        KVR_SIMD for (int32_t b = 0; b < d; ++b) of_row[b] += x * y[b];
      });
    }
  }
  // Step 3.
  template <class Real>
  void look_ahead(const Team auto& team, const Prompt<Real>& prompt, const Moments& m) const {
    const RopeView rope = prompt.rope();
    const int32_t d = prompt.shape().dim;
    team.each(rope.pairs, [&](int32_t i) { m.ahead.turn(rope, i, m.mean.data()); });
    double* S = m.covariance.data();
    team.each(rope.pairs * d, [&](int32_t i) { m.ahead.turn(rope, i / d, S + i % d, d); });            // R S
    team.each(rope.pairs * d, [&](int32_t i) { m.ahead.turn(rope, i / d, S + int64_t(i % d) * d); });  // (R S) R^T
  }
  template <class Real>
  double exponent(const Moments& m, std::span<const Real> key, double scale) const {
    const double linear = scale * wide_dot(m.mean, key);
    if (!covariance) return linear;
    double quadratic = 0;
    for (size_t a = 0; a < key.size(); ++a)
      quadratic += double(key[a]) * wide_dot(m.covariance.subspan(a * key.size(), key.size()), key);
    return linear + scale * scale / 2 * quadratic;
  }
};

}  // namespace kvreplay
