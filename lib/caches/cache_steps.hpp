#pragma once
#include <vector>

#include "caches/cache_account.hpp"
#include "caches/residency.hpp"

namespace kvreplay {

// Shortcuts that the engine may take instead of attending row by row. The policy's code remains the definition, and an
// audit always follows it. Every shortcut needs rows that are unmodified tokens of the trace at their recorded
// positions.
struct FastPath {
  enum class Kind {
    none,
    fixed,    // cut once: a set of prompt tokens and every later token
    sliding,  // streams without reading probabilities: evictions are known before any query attends
    scores,   // follows a ScoreRule
  };
  Kind kind = Kind::none;
  ScoreRule rule{};  // if kind is scores
};

// Decides: runs the policy of one cache token by token and says which tokens the cache holds when.
template <class Real>
class CacheSteps {
 public:
  CacheSteps(CacheState<Real>& state, CacheAccount<Real>& account) : state_(state), account_(account) {}

  FastPath fast_path() const;
  // Runs a step by the policy's code. `heads` is as core/step.hpp requires and calls open() when C_t is complete.
  // Throws ReplayError, as all functions below.
  template <class Heads>
  void step(int32_t t, Heads& heads, const StepScratch<Real>& scratch, bool attends) {
    state_.memory.reveal(t, t + 1);
    replay_step(SerialTeam{}, state_.step_calls(), state_.cache, state_.token_at(t), state_.rules, heads, scratch,
                attends);
    if (state_.has_listener() && t + 1 == state_.stream.prompt) state_.hand_over();
    if (waits_for_heads()) waits_at_ = t;
    else account_.close_step(t);
  }
  // For heads that cut together: whether the last step ends with a cut that waits for the other heads' scores.
  bool waits_for_heads() const {
    const auto hook = state_.host().waits_for_heads;
    return hook != nullptr && hook(state_.setup.method.policy());
  }
  // The scores of this head, for that cut.
  HeadScores waiting_scores() const;
  // The cut is known, the last of all lists: the step ends. `all` must live as long as the cache, or until the next
  // call.
  void cut_together(const GivenLists& all);
  void step_unattended(int32_t t);
  void open(int32_t t) { account_.open_step(t); }
  StepQueries<Real> queries_at(int32_t t) const;  // queries of the cache's heads
  // What the last step took a row by (hook token_score).
  double token_score(int32_t row) const {
    const auto& hooks = state_.setup.method.method().template of<Real>();
    return hooks.token_score(state_.setup.method.policy(), state_.cache, row);
  }
  double logit_factor(int32_t token) const { return state_.calls().logit_factor(state_.cache.size(), token); }
  // For caches that read no probabilities (fixed, sliding): tokens begin..end-1 arrive. Valid until the next call.
  const Residency& decide(int32_t begin, int32_t end);
  const Residency& decide_all();  // from the first token of the cache to the last; tells of those after the prompt
  // For caches that follow a score rule: token t arrives, then others are evicted.
  void arrive(int32_t t);
  void leave(int32_t t, std::span<const int32_t> evicted);
  void drop_scores();  // the caller keeps the scores from here on, and makes no cut()
  // In place of leave(): the policy cuts by these scores [tokens]. Returns the evicted tokens, valid until the next
  // call.
  std::span<const int32_t> cut(int32_t t, std::span<const double> scores);
  // For caches that follow a score rule, decided elsewhere: all tokens arrive and leave. until: [tokens] the first row
  // that does not see a token, or Residency::kStays. Valid until the next call.
  const Residency& follow(std::span<const int32_t> until);
  // Call after the prompt's cut. A cache that is cut once then holds only these rows and later ones.
  void take_cut();

 private:
  // Calls step(t) for tokens begin..end-1 and records sizes and evictions.
  template <class Step>
  void record(int32_t begin, int32_t end, Step step);
  // Likewise for tokens after the prompt; a prompt that streams in comes before them.
  template <class Step>
  void record_all(Step step);
  const Residency& listed(const std::vector<Residency::Eviction>& evicted);

  CacheState<Real>& state_;
  CacheAccount<Real>& account_;
  int32_t waits_at_ = -1;
  int32_t cut_evictions_ = 0;  // evictions by the prompt's cut
  Residency residency_;
  std::vector<int32_t> held_;                 // tokens when decide() began
  std::vector<Residency::Eviction> evicted_;  // evictions since then
};

}  // namespace kvreplay
