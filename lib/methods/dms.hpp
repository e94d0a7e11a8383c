#pragma once
#include "core/selecting.hpp"
#include "methods/parts/fixed_scores.hpp"

namespace kvreplay {

// Dynamic memory sparsification without its trained gates: a threshold on a score that is known when a token arrives.
// kvpress, dms_press.py; the delayed eviction is that of DMS, arXiv 2506.05345.
//  1. A token is judged when it leaves the newest `window` tokens: at the end of the prompt tokens 0..P-window-1, then
//     one a step.
//  2. Score < threshold: it is evicted.
// Scores: `knorm` -||k||, `vk_ratio` ||v|| / (||k|| + 1e-6), `qfilters` <f, k> with f of qfilters.hpp. The number of
// kept tokens is an output.
struct Dms {
  static constexpr MethodInfo info{
      .name = "dms",
      .title = "a threshold on scores that are known at arrival",
      .source = "kvpress, dms_press; the delay is that of DMS, arXiv 2506.05345",
      .tier = 2,
      .memory = "the newest `window` tokens and those above the threshold; one score for each token that waits",
      .deviation =
          "kvpress takes any of its scorers; here a score must be fixed at arrival. Its default judges the prompt only "
          "(`decode: false` here).",
      .layer_level = false,
      .takes_budget = false,
  };
  static constexpr Hooks hooks{"read_prompt evict extra_bytes layout needs set_options state"};
  enum class Scorer { knorm, vk_ratio, qfilters };
  Scorer scorer = Scorer::knorm;
  double threshold = kUnset;
  int32_t window = 128;
  bool decode = true;
  std::span<double> state;  // qfilters: f [d]

  static void declare(auto& d) {
    d.choice("scorer", &Dms::scorer, {"knorm", "vk_ratio", "qfilters"}, "score of a token, fixed when it arrives");
    d.real("threshold", &Dms::threshold, {-1e300, 1e300}, "tokens of lower score are evicted", "must be given");
    d.integer("window", &Dms::window, {1, kManyTokens}, "newest tokens that are not judged yet");
    d.boolean("decode", &Dms::decode, "false: tokens of the prompt are judged once, at its end");
    d.calibration("queries that define the direction of qfilters");
  }
  void resolve(const MethodContext& context) {
    if (threshold == kUnset)
      throw ParameterError("threshold",
                           "no threshold fits every model; give one, for example the median of the scores that "
                           "`scorer` gives to a prompt");
    if (!decode && context.phase == Phase::stream)
      throw ParameterError("decode", "decode false judges the prompt only; it runs with `phase: oneshot` only");
  }
  static void set_options(const Dms& m, CommonOptions& options) {
    if (!m.decode) options.phase = Phase::oneshot;
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = scorer == Scorer::qfilters ? context.shape.dim : 0, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const {
    if (scorer != Scorer::qfilters) return {};
    return {.whole = true, .known = {.directions = true}};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    c.mark_bytes = 8 * int64_t(window < cache.size() ? window : cache.size());
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    if (scorer == Scorer::qfilters) mean_direction(team, prompt, state);
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = score(cache, i); });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t newest = cache.size() - 1;
    team.each(1, [&](int32_t) { cache.score(newest) = score(cache, newest); });
    const int32_t judged = cache.token(newest) + 1 - window;  // tokens before this one
    cache.retain(team, [&](int32_t i) { return cache.token(i) >= judged || cache.score(i) >= threshold; });
  }

 private:
  double score(const Cache auto& cache, int32_t row) const {
    const auto key = cache.key(row);
    if (scorer == Scorer::qfilters) return wide_dot(key, state);
    return scorer == Scorer::knorm ? -norm(key) : norm_ratio(cache, row);
  }
};

}  // namespace kvreplay
