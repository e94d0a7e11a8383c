#pragma once
#include <memory>

#include "catalog/method.hpp"
#include "replay/lane_of.hpp"

namespace kvreplay {

template <class P>
P assigned(const nlohmann::json& params) {
  P policy;
  Assign<P> assign(policy, params);
  P::declare(assign);
  return policy;
}

template <class P, class Real>
std::unique_ptr<Lane<Real>> make_lane(const LaneOrder& order) {
  P policy = assigned<P>(order.params);
  policy.resolve(order.scene);
  return std::make_unique<LaneOf<P, Real>>(policy, order);
}

// The registry's entry for a policy. CMake generates one call for each line of methods.list.
template <class P>
Method make_method() {
  static_assert(
      Policy<P>,
      "a policy is a trivially copyable struct with `info` and resolve(); see lib/methods/README.md");
  Method m;
  m.info = P::info;
  Describe<P> describe;
  P::declare(describe);
  m.parameters = std::move(describe.specs);
  m.resolve = [](const nlohmann::json& params, const Scene& scene) {
    P policy = assigned<P>(params);
    policy.resolve(scene);
    Dump<P> dump(policy);
    P::declare(dump);
    return dump.values;
  };
  m.default_phase = [](const nlohmann::json& params) {
    if constexpr (requires(P p) { P::default_phase(p); }) return P::default_phase(assigned<P>(params));
    else return (void)params, P::info.default_phase;
  };
  m.random = [](const nlohmann::json& params) {
    if constexpr (requires(P p) { P::random(p); }) return P::random(assigned<P>(params));
    else return (void)params, false;
  };
  m.draws_needed = [](const nlohmann::json& params, const Scene& scene) -> int64_t {
    if constexpr (requires(const P p) { p.draws_needed(scene); }) {
      P policy = assigned<P>(params);
      policy.resolve(scene);
      return policy.draws_needed(scene);
    }
    return 0;
  };
  m.needs_every_query = HasNeeds<P> || Observes<P, float>;
  m.looks_at_queries = m.needs_every_query || Chooses<P, float>;
  m.lane_single = make_lane<P, float>;
  m.lane_double = make_lane<P, double>;
  return m;
}

}  // namespace kvreplay
