#pragma once
#include <cmath>

#include "core/selecting.hpp"

namespace kvreplay {

// Keyformer, Adnan et al. 2024, section 3: accumulated attention whose logits carry Gumbel noise and a temperature that
// rises while tokens are generated, so that evictions do not make the remaining tokens overconfident.
//  1. Row t, every live i: g = -ln(-ln U).
//  2. f[i] += softmax over live i of (l_t(i) + g) / tau_t, summed over the group; tau_t = tau_init in the prompt,
//     tau_init + (t - P)(tau_end - tau_init)/gen_len afterwards.
//  3. If more than B tokens are held, keep the last `recent` and the top B - recent of f.
//  4. The attention itself is the ordinary softmax, without noise.
// The logits are known here through their probabilities, exp(l) up to a factor: (p e^g)^(1/tau), normalised, is the
// softmax.
struct Keyformer : Selecting<0, kDerived> {
  static constexpr MethodInfo info{
      .name = "keyformer",
      .title = "Gumbel-regularised heavy hitters + recent window",
      .source = "Keyformer, Adnan et al. 2024, section 3",
      .tier = 1,
      .memory = "B tokens, one score each",
      .deviation = "scores of grouped query heads are summed, each with its own noise (the release knows no groups).",
      .selects = true,
      .default_fraction = 0.6,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict observe layout needs traits protection score_rule rng_arrays state rng"};
  double recent_frac = 0.3, tau_init = 1, tau_end = 2;
  int32_t gen_len = kDerived;
  bool noise = true;
  int32_t prompt = 0;
  bool derives_recent = false;  // `recent` follows the budget
  std::span<double> state;      // [heads, tokens] the noisy softmax of one row, then [P] f of the prompt
  Rng rng;

  static void declare(auto& d) {
    d.real("recent_frac", &Keyformer::recent_frac, {0, 1}, "share of the budget for the recent window, below 1");
    d.real("tau_init", &Keyformer::tau_init, {1e-6, 1e6}, "temperature of the prompt");
    d.real("tau_end", &Keyformer::tau_end, {1e-6, 1e6}, "temperature after gen_len decoded tokens");
    d.integer("gen_len", &Keyformer::gen_len, {1, kManyTokens}, "tokens over which the temperature rises", "n - P");
    d.boolean("noise", &Keyformer::noise, "Gumbel noise on the logits of the score");
    protect<Keyformer>(d, "floor(recent_frac * B)");
  }
  void resolve(const MethodContext& context) {
    if (recent_frac >= 1)
      throw ParameterError("recent_frac", "recent_frac must be below 1, or nothing is chosen by its score");
    derives_recent = recent == kDerived;
    if (derives_recent) recent = recent_of(context.budget.tokens);
    if (gen_len == kDerived)
      gen_len = context.tokens > context.prompt_tokens ? context.tokens - context.prompt_tokens : 1;
    prompt = context.prompt_tokens;
    Selecting::resolve(context);
  }
  void traits(Traits& t) const { t.random = noise; }
  std::vector<RngArray> rng_arrays(const MethodContext& s) const {
    if (!noise) return {};
    return {{"UG uniforms", RngStream::keyformer_noise, s.tokens, s.tokens, s.shape.heads}};
  }
  Layout layout(const MethodContext& s) const {
    return {.state_doubles = int64_t(s.shape.heads) * s.tokens + s.prompt_tokens, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.rows_from = 0}; }
  std::optional<ScoreRule> score_rule() const {
    return ScoreRule{
        .vote = ScoreRule::Vote::noisy, .protect = protection(), .budget = budget, .plan = plan, .noisy = noisy_vote()};
  }

  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities p) {
    const auto noisy = noisy_softmax(team, t, p, [](int32_t i) { return i; });
    team.each(t + 1, [&](int32_t i) { prompt_score(i) += noisy.group(i); });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = prompt_score(cache.token(i)); });
  }
  void observe(const Team auto& team, Cache auto& cache, HeadProbabilities p) {
    const int32_t t = cache.token(cache.size() - 1);
    const auto noisy = noisy_softmax(team, t, p, [&](int32_t i) { return cache.token(i); });
    team.each(cache.size(), [&](int32_t i) { cache.score(i) += noisy.group(i); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    cut(
        team, cache, plan, [&](int32_t m) { return Protect{.sinks = sinks, .recent = recent_of(m)}; },
        [&](int32_t i) { return cache.score(i); });
  }

 private:
  int32_t recent_of(int32_t m) const { return derives_recent ? int32_t(recent_frac * m) : recent; }
  NoisyVote noisy_vote() const { return {tau_init, tau_end, prompt, gen_len, noise, rng}; }
  double& prompt_score(int32_t i) { return state[state.size() - size_t(prompt) + size_t(i)]; }
  HeadProbabilities noisy_softmax(const Team auto& team, int32_t t, HeadProbabilities p, auto token) {
    const NoisyVote vote = noisy_vote();
    const double tau = vote.temperature(t);
    return softmax(team, p, state.data(), [&](int32_t h, int32_t i) {
      return std::log(noise ? p(h, i) / vote.inverse_noise(t, token(i), h) : p(h, i)) / tau;
    });
  }
};

}  // namespace kvreplay
