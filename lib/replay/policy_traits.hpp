#pragma once
#include <string>

#include "core/policy.hpp"

// What an instance of a policy says of itself, or what follows from its hooks and its info where it says
// nothing.

namespace kvreplay::traits {

template <class P>
bool observes(const P& policy, const CommonOptions& options) {
  if constexpr (requires { policy.observes(); }) return policy.observes() && options.phase == Phase::stream;
  else return Observes<P, float> && options.phase == Phase::stream;
}
template <class P>
bool streams_prompt(const P& policy) {
  if constexpr (requires { policy.streams_prompt(); }) return policy.streams_prompt();
  else return false;
}
template <class P>
bool chooses(const P& policy) {
  if constexpr (Chooses<P, float>) return chooses_now(policy);
  else return false;
}
// Multiplies logits by a factor of its own.
template <class P>
bool changes_logits(const P& policy) {
  if constexpr (requires { policy.changes_logits(); }) return policy.changes_logits();
  else return requires {
      policy.logit_factor(1, 1);
    };
}
template <class P>
bool holds_all(const P& policy) {
  if constexpr (requires { policy.holds_all(); }) return policy.holds_all();
  else return P::info.reads_full_cache;
}
template <class P>
bool implied_layout(const P& policy) {
  if constexpr (requires { policy.implied_layout(); }) return policy.implied_layout();
  else return P::info.implied_layout;
}
// Each query head attends to tokens of its own choice.
template <class P>
bool heads_differ(const P& policy, const CommonOptions& options) {
  if (options.gqa_level == GqaLevel::query) return true;
  if constexpr (requires { policy.per_head; }) return policy.per_head;
  else return false;
}
// Whether, and how many, rows it may hold after a step.
template <class P>
bool bounded(const P& policy, const CommonOptions& options) {
  return P::info.takes_budget && !holds_all(policy) && options.phase == Phase::stream;
}
template <class P>
int64_t max_rows(const P& policy, const MethodContext& context) {
  if constexpr (requires { policy.max_rows(context); }) return policy.max_rows(context);
  else return context.budget;
}
template <class P>
std::string failure_text(int32_t code, int32_t at) {
  if constexpr (requires { P::failure_text(code, at); }) return P::failure_text(code, at);
  else return "the method failed at " + std::to_string(at);
}
template <class P>
ErrorBound error_bound(const P& policy) {
  if constexpr (requires { policy.error_bound(); }) return policy.error_bound();
  else return {};
}
template <class P>
ExtraBytes extra_bytes(const P& policy, const auto& cache) {
  ExtraBytes c;
  if constexpr (requires { policy.extra_bytes(c, cache); }) policy.extra_bytes(c, cache);
  else if constexpr (requires { policy.extra_bytes(c, cache, SerialTeam{}); })
    policy.extra_bytes(c, cache, SerialTeam{});
  return c;
}

}  // namespace kvreplay::traits
