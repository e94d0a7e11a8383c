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
P resolved(const nlohmann::json& params, const MethodContext& context) {
  P policy = assigned<P>(params);
  policy.resolve(context);
  return policy;
}

template <class P, class Real>
std::unique_ptr<Lane<Real>> make_lane(const LaneOrder& order) {
  return std::make_unique<LaneOf<P, Real>>(resolved<P>(order.params, order.context), order);
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
  if constexpr (requires { P::shared_over; }) m.shared_over = P::shared_over;
}

// The registry's entry for a policy. CMake generates one call for each line of methods.list.
template <class P>
Method make_method() {
  static_assert(
      Policy<P>,
      "a policy is a trivially copyable struct with `info` and resolve(); see lib/methods/README.md");
  Method m;
  set_traits<P>(m);
  m.resolve = [](const nlohmann::json& params, const MethodContext& context) {
    const P policy = resolved<P>(params, context);
    Dump<P> dump(policy, &params);
    P::declare(dump);
    return dump.values;
  };
  m.default_options = [](const nlohmann::json& params) {
    CommonOptions options;
    options.phase = P::info.default_phase;
    options.positions = P::info.default_positions;
    const P policy = assigned<P>(params);
    if constexpr (requires { P::set_options(policy, options); }) P::set_options(policy, options);
    return options;
  };
  m.warning = [](const nlohmann::json& params, const CommonOptions& options) {
    if constexpr (requires(P p) { P::warning(p, options); }) return P::warning(assigned<P>(params), options);
    else return (void)params, (void)options, P::info.warning;
  };
  m.random = [](const nlohmann::json& params) {
    if constexpr (requires(P p) { P::random(p); }) return P::random(assigned<P>(params));
    else return (void)params, false;
  };
  if constexpr (requires(P p) { P::budgetless(p); })
    m.budgetless = [](const nlohmann::json& params) { return P::budgetless(assigned<P>(params)); };
  m.rng_arrays = [](const nlohmann::json& params, const MethodContext& context) -> std::vector<RngArray> {
    if constexpr (requires(const P p) { p.rng_arrays(context); })
      return resolved<P>(params, context).rng_arrays(context);
    else return (void)params, (void)context, std::vector<RngArray>{};
  };
  m.needs = [](const nlohmann::json& params, const MethodContext& context) -> PromptNeeds {
    if constexpr (HasNeeds<P>) return resolved<P>(params, context).needs(context);
    else return (void)params, (void)context, PromptNeeds{};
  };
  m.oracle_needs = [](const nlohmann::json& params) -> OracleNeeds {
    if constexpr (requires(const P p) { p.oracle_needs(); }) return assigned<P>(params).oracle_needs();
    else return (void)params, OracleNeeds{};
  };
  m.observes = [](const nlohmann::json& params, const CommonOptions& options) {
    return traits::observes(assigned<P>(params), options);
  };
  if constexpr (ScoresPrompt<P>)
    m.protection = [](const nlohmann::json& params, const MethodContext& context) {
      return resolved<P>(params, context).protection();
    };
  if constexpr (requires(const P p, const MethodContext& context) { p.share(context, {}); })
    m.share = [](const nlohmann::json& params, const MethodContext& context,
                 const std::vector<HeadScores>& heads) {
      return resolved<P>(params, context).share(context, heads);
    };
  m.lane_single = make_lane<P, float>;
  m.lane_double = make_lane<P, double>;
  return m;
}

}  // namespace kvreplay
