#pragma once
#include "base/errors.hpp"
#include "core/replay_error.hpp"
#include "core/selecting.hpp"
#include "hosted/hosted_method.hpp"

// Policies by which the engine replays hosted methods: they show the host the cache and carry out its answers.

namespace kvreplay {

constexpr int32_t kHostedParameters = 16;

// The host's session for a cache, opened at the first call, and the scores that it gave the prompt.
struct HostedCache {
  HostedMethod& host;
  const HostedPlace place;
  std::shared_ptr<HostedSession> opened;
  std::vector<double> scores;
  bool remembers = false;  // a streaming policy that set scores

  HostedSession& session() {
    if (opened == nullptr) opened = host.open(place);
    return *opened;
  }
};

// Common part of both kinds: parameter values, which the host receives as JSON, and the session of a cache.
struct Hosted : Selecting<> {
  HostedMethod* host = nullptr;
  HostedCache* held = nullptr;
  Rng rng;
  alignas(8) std::byte values[kHostedParameters][8] = {};
  std::span<double> state;  // [query heads, rows, tokens], attention of the prompt's last rows
  int32_t window = 0, first_row = 0, prompt = 0;
  int32_t stored_row_bytes = 0;

  void resolve(const MethodContext& context);
  std::string params_json() const;
  std::shared_ptr<void> open_session(const MethodContext& context, int32_t first_head, bool audit);
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = int64_t(context.shape.heads) * seen_rows(context) * context.prompt_tokens, .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    if (window == 0) return {};
    return {.rows_from = context.prompt_tokens - seen_rows(context), .queries = true};
  }
  void traits(Traits& t) const { t.random = host != nullptr && host->random; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const { c.aux_bytes += int64_t(stored_row_bytes) * cache.size(); }

  void observe_prompt(const Team auto&, int32_t t, const HeadProbabilities& p) {
    for (int32_t h = 0; h < p.heads; ++h) {
      double* to = state.data() + (int64_t(h) * (prompt - first_row) + (t - first_row)) * prompt;
      for (int32_t i = 0; i < prompt; ++i) to[i] = i < p.rows ? p(h, i) : 0;
    }
  }

 protected:
  int32_t seen_rows(const MethodContext& context) const {
    return window < context.prompt_tokens ? window : context.prompt_tokens;
  }
  template <class Real>
  HostedPrompt shown(const Prompt<Real>& prompt) const;
  // Copies scores of tokens 0..size-1 to the rows that hold them.
  template <class Real>
  static void put(const std::vector<double>& scores, BasicCache<Real>& cache) {
    for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = scores[size_t(cache.token(i))];
  }
};

// One-shot: the host scores, the engine selects.
struct HostedScorer : Hosted {
  static constexpr MethodInfo info{
      .name = "",
      .title = "",
      .source = "",
      .tier = 3,
      .memory = "B prompt tokens and every later one",
      .deviation = "",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict extra_bytes layout needs traits protection open_session state rng larger"};
  const HostedScorer* larger = nullptr;

  static void declare(auto& d) { protect<HostedScorer>(d); }
  Protect protection() const {
    return both({sinks, recent}, {.recent = host != nullptr && host->window_stays ? window : 0});
  }
  template <class Real>
  void read_prompt(const Team auto&, const Prompt<Real>& prompt, BasicCache<Real>& cache);
  void evict(const Team auto& team, Cache auto& cache) { keep_scored(team, cache, protection(), budget); }
};

// Streaming: the host sees the prompt and every step's probabilities, and names the tokens to evict when the cache is
// full.
struct HostedPolicy : Hosted {
  static constexpr MethodInfo info{
      .name = "",
      .title = "",
      .source = "",
      .tier = 3,
      .memory = "B tokens, a score each, and what the method declares in row_bytes",
      .deviation = "",
      .oneshots = false,
      .layer_level = false,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict observe extra_bytes layout needs traits protection open_session state rng"};
  static void declare(auto& d) { protect<HostedPolicy>(d); }
  bool observes() const { return host != nullptr && host->observes; }
  void traits(Traits& t) const {
    Hosted::traits(t);
    t.observes = observes();
  }
  // The engine itself counts the scores of policies that observe probabilities.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    Hosted::extra_bytes(c, cache);
    if (held != nullptr && held->remembers && !observes()) c.aux_bytes += int64_t(sizeof(double)) * cache.size();
  }
  template <class Real>
  void read_prompt(const Team auto&, const Prompt<Real>& prompt, BasicCache<Real>& cache);
  void observe(const Team auto&, Cache auto& cache, const HeadProbabilities& p);
  void evict(const Team auto& team, Cache auto& cache);
};

}  // namespace kvreplay
