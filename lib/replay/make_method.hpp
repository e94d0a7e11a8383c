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
template <class P>
P resolved(const nlohmann::json& params, const Scene& scene) {
  P policy = assigned<P>(params);
  policy.resolve(scene);
  return policy;
}

template <class P, class Real>
std::unique_ptr<Lane<Real>> make_lane(const LaneOrder& order) {
  return std::make_unique<LaneOf<P, Real>>(resolved<P>(order.params, order.scene), order);
}

// What follows from the text of a policy alone.
template <class P>
void set_traits(Method& m) {
  m.info = P::info;
  Describe<P> describe;
  P::declare(describe);
  m.parameters = std::move(describe.specs);
  m.looks_at_queries =
      HasNeeds<P> || ObservesPrompt<P> || Observes<P, float> || Chooses<P, float> || HasGiven<P>;
  for (const ParameterSpec& spec : m.parameters)
    if (HasGiven<P> && spec.kind == ParameterSpec::Kind::file) m.lists_in = spec.name;
  m.scores_prompt = ScoresPrompt<P>;
  if constexpr (requires { P::council; }) m.council = P::council;
}

// The registry's entry for a policy. CMake generates one call for each line of methods.list.
template <class P>
Method make_method() {
  static_assert(
      Policy<P>,
      "a policy is a trivially copyable struct with `info` and resolve(); see lib/methods/README.md");
  Method m;
  set_traits<P>(m);
  m.resolve = [](const nlohmann::json& params, const Scene& scene) {
    const P policy = resolved<P>(params, scene);
    Dump<P> dump(policy, &params);
    P::declare(dump);
    return dump.values;
  };
  m.default_axes = [](const nlohmann::json& params) {
    Axes axes;
    axes.phase = P::info.default_phase;
    axes.positions = P::info.default_positions;
    const P policy = assigned<P>(params);
    if constexpr (requires { P::set_axes(policy, axes); }) P::set_axes(policy, axes);
    return axes;
  };
  m.warning = [](const nlohmann::json& params, const Axes& axes) {
    if constexpr (requires(P p) { P::warning(p, axes); }) return P::warning(assigned<P>(params), axes);
    else return (void)params, (void)axes, P::info.warning;
  };
  m.random = [](const nlohmann::json& params) {
    if constexpr (requires(P p) { P::random(p); }) return P::random(assigned<P>(params));
    else return (void)params, false;
  };
  if constexpr (requires(P p) { P::budgetless(p); })
    m.budgetless = [](const nlohmann::json& params) { return P::budgetless(assigned<P>(params)); };
  m.draw_arrays = [](const nlohmann::json& params, const Scene& scene) -> std::vector<DrawArray> {
    if constexpr (requires(const P p) { p.draw_arrays(scene); })
      return resolved<P>(params, scene).draw_arrays(scene);
    else return (void)params, (void)scene, std::vector<DrawArray>{};
  };
  m.needs = [](const nlohmann::json& params, const Scene& scene) -> PromptNeeds {
    if constexpr (HasNeeds<P>) return resolved<P>(params, scene).needs(scene);
    else return (void)params, (void)scene, PromptNeeds{};
  };
  m.hindsight = [](const nlohmann::json& params) -> Hindsight {
    if constexpr (requires(const P p) { p.hindsight(); }) return assigned<P>(params).hindsight();
    else return (void)params, Hindsight{};
  };
  m.observes = [](const nlohmann::json& params, const Axes& axes) {
    return traits::observes(assigned<P>(params), axes);
  };
  if constexpr (ScoresPrompt<P>)
    m.protection = [](const nlohmann::json& params, const Scene& scene) {
      return resolved<P>(params, scene).protection();
    };
  if constexpr (requires(const P p, const Scene& scene) { p.share(scene, {}); })
    m.share = [](const nlohmann::json& params, const Scene& scene, const std::vector<Testimony>& heads) {
      return resolved<P>(params, scene).share(scene, heads);
    };
  m.lane_single = make_lane<P, float>;
  m.lane_double = make_lane<P, double>;
  return m;
}

}  // namespace kvreplay
