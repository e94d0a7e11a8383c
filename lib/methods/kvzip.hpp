#pragma once
#include "core/share.hpp"
#include "methods/parts/repeat_votes.hpp"

namespace kvreplay {

// KVzip, Kim et al. 2025, section 3: tokens that the model attends to when it repeats its context serve later
// questions.
//  1. The context is repeated chunk by chunk. Keys of chunk [s, e): the sinks before s, context tokens s..e-1, and the
//     chunk's own rows up to the present one; softmax over these alone. The instruction's rows vote, too.
//  2. Score of a token that is no sink = the largest probability over the rows that repeat it and the group.
//  3. Sinks stay. `uniform`: the top B of each kv head; `layer`, `pair`: the top B * heads over the kv heads of the
//     layer, or of all recorded layers. `head`: heads in descending order of their largest score, over the prompts of
//     `calibration`, keep the whole prompt while B * heads lasts; the others keep sinks and recent.
struct KvZip : Selecting<4> {
  static constexpr MethodInfo info{
      .name = "kvzip",
      .title = "tokens that the model attends to when it repeats the context",
      .source = "KVzip, Kim et al. 2025, section 3",
      .tier = 3,
      .memory = "B prompt tokens and every later one; uneven over heads unless level is uniform",
      .deviation =
          "the release keeps scores strictly above the threshold, so the size may differ from B, protects the whole "
          "system prompt, and takes chunks of 2000 tokens (kvreplay record --repeat: 2048). Its level head ranks heads "
          "by other "
          "text, as `calibration: others` does; by default they are ranked by this prompt.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
  };
  static constexpr Hooks hooks{"read_prompt evict layout needs traits protection share head_scores state larger"};
  enum class Level { uniform, layer, pair, head };
  Level level = Level::uniform;
  std::span<double> state;  // [P] scores, then [P] one row's probabilities
  const KvZip* larger = nullptr;

  static void declare(auto& d) { declare_level<KvZip>(d); }
  void resolve(const MethodContext& context) {
    Selecting::resolve(context);
    if (level == Level::head && sinks + recent == 0)
      throw ParameterError("sinks", "with level head most heads keep only sinks and recent, and both are 0: raise one");
  }
  template <class M>
  static void declare_level(auto& d) {
    d.choice("level", static_cast<Level M::*>(&M::level), {"uniform", "layer", "pair", "head"},
             "scores that compete: of one kv head, of a layer, of all recorded layers; or whole heads of all layers");
    d.calibration("repeated prompts by which level head ranks heads: this one, or others of the trace");
    protect<M>(d);
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = 2 * int64_t(context.prompt_tokens), .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.repeat = true}; }
  void head_scores(std::vector<double>& says) const {
    const std::span<double> scores = state.first(state.size() / 2);
    says.push_back(*std::max_element(scores.begin(), scores.end()));
  }
  void traits(Traits& t) const {
    if (level == Level::uniform) t.shared_over = SharedOver::none;
    else t.shared_over = level == Level::layer ? SharedOver::layer : SharedOver::model;
    t.share_reads_scores = true;
    t.learns_heads = level == Level::head;
  }
  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    if (level == Level::head) {
      std::vector<double> worth;
      for (const HeadScores& h : heads) worth.push_back(*std::max_element(h.extras.begin(), h.extras.end()));
      return whole_heads(worth, context.budget.tokens, sinks + recent, context.prompt_tokens);
    }
    std::vector<std::vector<double>> scores;
    for (const HeadScores& t : heads) scores.push_back(t.scores);
    return winners(scores, int64_t(context.budget.tokens) * int64_t(heads.size()));
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    score_from_repeat(team, prompt, cache, [](int32_t, int64_t, int32_t) { return 1.0; });
  }

 protected:
  // Scores are the largest factor(head, row, token) times the probability. Computed once for all budgets.
  template <class Real>
  void score_from_repeat(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache,
                         auto factor) const {
    const int32_t rows = cache.size();
    if (larger != nullptr) team.each(rows, [&](int32_t i) { state[size_t(i)] = larger->state[size_t(i)]; });
    else find_scores(team, prompt, cache, factor);
    team.each(rows, [&](int32_t i) { cache.score(i) = state[size_t(i)]; });
  }

 private:
  // Context tokens that the rows of a chunk see: `before` sinks, then the chunk from `first` on.
  struct Seen {
    int32_t first, before, count;
    int32_t token(int32_t i) const { return i < before ? i : first + i - before; }
    int32_t at(int32_t token) const {  // -1: the chunk does not see the token
      const int32_t i = token - first + before;
      return token < first || i >= count ? -1 : i;
    }
  };
  template <class Real>
  Seen seen_by(const RepeatView<Real>& r, int32_t chunk) const {
    const int32_t first = r.first_token[chunk], before = sinks < first ? sinks : first;
    return {first, before, before + r.first_token[chunk + 1] - first};
  }
  std::span<double> row_of(int32_t count) const { return state.last(state.size() / 2).first(size_t(count)); }

  template <class Real>
  void find_scores(const Team auto& team, const Prompt<Real>& prompt, const BasicCache<Real>& cache,
                   auto factor) const {
    const RepeatView<Real> r = prompt.repeat();
    team.each(cache.size(), [&](int32_t i) { state[size_t(i)] = 0; });
    for (int32_t c = 0; c < r.chunks; ++c)
      for (int64_t row = r.first_row[c]; row < r.first_row[c + 1]; ++row)
        for (int32_t h = 0; h < prompt.shape().heads; ++h) {
          const Seen seen = seen_by(r, c);
          const std::span<double> p = row_of(seen.count);
          repeat_votes(team, prompt, h, row, r.first_row[c], p, [&](int32_t i) { return seen.token(i); });
          team.each(cache.size(), [&](int32_t i) {
            const int32_t token = cache.token(i), at = seen.at(token);
            if (token < sinks || at < 0) return;
            const double s = p[size_t(at)] * factor(h, row, token);
            state[size_t(i)] = s > state[size_t(i)] ? s : state[size_t(i)];
          });
        }
  }
};

}  // namespace kvreplay
