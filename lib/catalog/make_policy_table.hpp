#pragma once
#include "catalog/policy_table.hpp"
#include "parameters/describe.hpp"

// The only place where a policy loses its type. CMake generates one call of policy_table() for each line of
// methods.list.

namespace kvreplay {

// A concept for each hook: whether a policy has it in a form that the engine can call.
#define KVR_FOUND(name, ...) \
  template <class P>         \
  concept Finds_##name = __VA_ARGS__;
KVR_FOUND(observe_prompt, ObservesPrompt<P>)
KVR_FOUND(read_prompt, ReadsPrompt<P, float>&& ReadsPrompt<P, double>)
KVR_FOUND(evict, Evicts<P, float>&& Evicts<P, double>)
KVR_FOUND(append, Appends<P, float>&& Appends<P, double>)
KVR_FOUND(observe_queries, ObservesQueries<P, float>&& ObservesQueries<P, double>)
KVR_FOUND(choose, Chooses<P, float>&& Chooses<P, double>)
KVR_FOUND(observe, Observes<P, float>&& Observes<P, double>)
KVR_FOUND(layout, HasLayout<P>)
KVR_FOUND(needs, HasNeeds<P>)
KVR_FOUND(protection, ScoresPrompt<P>)
KVR_FOUND(score_rule, HasScoreRule<P>)
KVR_FOUND(state, HasState<P>)
KVR_FOUND(rng, HasRng<P>)
KVR_FOUND(given, HasGiven<P>)
KVR_FOUND(larger, SharesSelection<P>)
KVR_FOUND(
    open_session, requires(P p, const MethodContext& context) {
      { p.open_session(context, 0, false) } -> std::same_as<std::shared_ptr<void>>;
    })
KVR_FOUND(
    logit_factor, requires(const P p) { p.logit_factor(1, 1); })
KVR_FOUND(
    spread, requires(const P p) { p.spread(); })
KVR_FOUND(
    missed_bound, requires(const P p) {
      { p.missed_bound(0) } -> std::same_as<double>;
    })
KVR_FOUND(
    extra_bytes,
    requires(const P p, ExtraBytes& e, const BasicCache<float>& cache) { p.extra_bytes(e, cache); } ||
        requires(const P p, ExtraBytes& e, const BasicCache<float>& cache) { p.extra_bytes(e, cache, SerialTeam{}); })
KVR_FOUND(
    token_score, requires(const P p, const BasicCache<float>& cache) {
      { p.token_score(cache, 0) } -> std::same_as<double>;
    })
KVR_FOUND(
    report, requires(const P p, std::map<std::string, double>& extras, const BasicCache<float>& cache) {
      p.report(extras, cache);
    })
KVR_FOUND(
    oracle_needs, requires(const P p) {
      { p.oracle_needs() } -> std::same_as<OracleNeeds>;
    })
KVR_FOUND(
    traits, requires(const P p, Traits& traits) { p.traits(traits); })
KVR_FOUND(
    error_bound, requires(const P p) {
      { p.error_bound() } -> std::same_as<ErrorBound>;
    })
KVR_FOUND(
    voters, requires(const P p, const MethodContext& context) {
      { p.voters(context) } -> std::same_as<double>;
    })
KVR_FOUND(
    share, requires(const P p, const MethodContext& context, const std::vector<HeadScores>& heads) {
      p.share(context, heads);
    })
KVR_FOUND(
    head_scores, requires(const P p, std::vector<double>& extras) { p.head_scores(extras); })
KVR_FOUND(
    hear, requires(P p, const std::vector<HeadScores>& heads) { p.hear(heads); })
KVR_FOUND(
    waits_for_heads, requires(const P p) {
      { p.waits_for_heads() } -> std::same_as<bool>;
    })
KVR_FOUND(
    cut_together, requires(const P p, const std::vector<HeadScores>& heads) { p.cut_together(heads); })
KVR_FOUND(
    failure_text, requires { P::failure_text(1, 1); })
KVR_FOUND(
    set_options, requires(const P p, CommonOptions& options) { P::set_options(p, options); })
KVR_FOUND(
    rng_arrays, requires(const P p, const MethodContext& context) { p.rng_arrays(context); })
#undef KVR_FOUND

// A policy's hooks must be exactly those that `hooks` names. Otherwise a misspelt hook would never be called.
template <class P>
constexpr bool hooks_match() {
  static_assert(P::hooks.known(), "`hooks` has a word that is not the name of a hook; core/hooks.hpp lists the names");
#define KVR_AGREES(name)                                                                           \
  static_assert(!P::hooks.has(Hook::name) || Finds_##name<P>,                                      \
                "`hooks` names " #name ", which the policy lacks or which takes other arguments"); \
  static_assert(P::hooks.has(Hook::name) || !Finds_##name<P>,                                      \
                "the policy has the hook " #name ", which `hooks` does not name");
  KVR_HOOKS(KVR_AGREES)
#undef KVR_AGREES
  return true;
}

template <class P>
struct PolicyHooks {
  static P& of(void* self) { return *static_cast<P*>(self); }
  static const P& of(const void* self) { return *static_cast<const P*>(self); }
  static constexpr bool has(Hook hook) { return P::hooks.has(hook); }

  static HostHooks host() {
    HostHooks h;
    h.resolve = [](void* self, const MethodContext& context) { of(self).resolve(context); };
    if constexpr (has(Hook::layout))
      h.layout = [](const void* self, const MethodContext& context) { return of(self).layout(context); };
    if constexpr (has(Hook::needs))
      h.needs = [](const void* self, const MethodContext& context) { return of(self).needs(context); };
    if constexpr (has(Hook::oracle_needs)) h.oracle_needs = [](const void* self) { return of(self).oracle_needs(); };
    if constexpr (has(Hook::protection)) h.protection = [](const void* self) { return of(self).protection(); };
    if constexpr (has(Hook::score_rule)) h.score_rule = [](const void* self) { return of(self).score_rule(); };
    if constexpr (has(Hook::traits)) h.traits = [](const void* self, Traits& traits) { of(self).traits(traits); };
    if constexpr (has(Hook::error_bound)) h.error_bound = [](const void* self) { return of(self).error_bound(); };
    if constexpr (has(Hook::missed_bound))
      h.missed_bound = [](const void* self, int32_t head) -> double { return of(self).missed_bound(head); };
    if constexpr (has(Hook::voters))
      h.voters = [](const void* self, const MethodContext& context) { return of(self).voters(context); };
    if constexpr (has(Hook::share))
      h.share = [](const void* self, const MethodContext& context, const std::vector<HeadScores>& heads) {
        return of(self).share(context, heads);
      };
    if constexpr (has(Hook::head_scores))
      h.head_scores = [](const void* self, std::vector<double>& extras) { of(self).head_scores(extras); };
    if constexpr (has(Hook::hear))
      h.hear = [](void* self, const std::vector<HeadScores>& heads) { of(self).hear(heads); };
    if constexpr (has(Hook::waits_for_heads))
      h.waits_for_heads = [](const void* self) { return of(self).waits_for_heads(); };
    if constexpr (has(Hook::cut_together))
      h.cut_together = [](const void* self, const std::vector<HeadScores>& heads) {
        return of(self).cut_together(heads);
      };
    if constexpr (has(Hook::failure_text))
      h.failure_text = [](int32_t code, int32_t at) -> std::string { return P::failure_text(code, at); };
    if constexpr (has(Hook::set_options))
      h.set_options = [](const void* self, CommonOptions& options) { P::set_options(of(self), options); };
    if constexpr (has(Hook::rng_arrays))
      h.rng_arrays = [](const void* self, const MethodContext& context) { return of(self).rng_arrays(context); };
    says(h);
    binds(h);
    return h;
  }

  template <class Real>
  static CacheHooks<Real> cache() {
    using C = BasicCache<Real>;
    CacheHooks<Real> h;
    if constexpr (has(Hook::read_prompt))
      h.read_prompt = [](void* self, const Prompt<Real>& p, C& c) { of(self).read_prompt(SerialTeam{}, p, c); };
    if constexpr (has(Hook::evict)) h.evict = [](void* self, C& c) { of(self).evict(SerialTeam{}, c); };
    if constexpr (has(Hook::append))
      h.append = [](void* self, const Token<Real>& token, C& c) { of(self).append(SerialTeam{}, token, c); };
    if constexpr (has(Hook::observe_queries))
      h.observe_queries = [](void* self, const StepQueries<Real>& q) { of(self).observe_queries(SerialTeam{}, q); };
    if constexpr (ChoosesByMass<P, Real>)
      h.choose_by_mass = [](void* self, const C& c, const HeadProbabilities& p, uint8_t* chosen) {
        of(self).choose(SerialTeam{}, c, p, chosen);
      };
    else if constexpr (Chooses<P, Real>)
      h.choose_by_query = [](void* self, const C& c, const StepQueries<Real>& q, uint8_t* chosen, double* weights) {
        if constexpr (SamplesByQuery<P, Real>) of(self).choose(SerialTeam{}, c, q, chosen, weights);
        else of(self).choose(SerialTeam{}, c, q, chosen);
      };
    h.samples = SamplesByQuery<P, Real>;
    if constexpr (has(Hook::token_score))
      h.token_score = [](const void* self, const C& c, int32_t row) -> double { return of(self).token_score(c, row); };
    if constexpr (ObservesHeads<P, Real>)
      h.observe_heads = [](void* self, C& c, const HeadProbabilities& p) { of(self).observe(SerialTeam{}, c, p); };
    else if constexpr (ObservesGroup<P, Real>)
      h.observe_group = [](void* self, C& c, std::span<const double> p) { of(self).observe(SerialTeam{}, c, p); };
    if constexpr (has(Hook::extra_bytes))
      h.extra_bytes = [](const void* self, ExtraBytes& e, const C& c) {
        if constexpr (requires { of(self).extra_bytes(e, c); }) of(self).extra_bytes(e, c);
        else of(self).extra_bytes(e, c, SerialTeam{});
      };
    if constexpr (has(Hook::report))
      h.report = [](const void* self, std::map<std::string, double>& extras, const C& c) {
        of(self).report(extras, c);
      };
    return h;
  }

 private:
  static void says(HostHooks& h) {
    if constexpr (has(Hook::logit_factor))
      h.logit_factor = [](const void* self, int32_t rows, int32_t token) -> double {
        return of(self).logit_factor(rows, token);
      };
    if constexpr (has(Hook::observe_prompt))
      h.observe_prompt = [](void* self, int32_t t, const HeadProbabilities& p) {
        of(self).observe_prompt(SerialTeam{}, t, p);
      };
  }
  static void binds(HostHooks& h) {
    if constexpr (has(Hook::state)) h.bind_state = [](void* self, std::span<double> state) { of(self).state = state; };
    if constexpr (has(Hook::rng)) h.bind_rng = [](void* self, const Rng& rng) { of(self).rng = rng; };
    if constexpr (has(Hook::given)) h.bind_given = [](void* self, const GivenLists& lists) { of(self).given = lists; };
    if constexpr (has(Hook::larger))
      h.bind_larger = [](void* self, const void* other) { of(self).larger = static_cast<const P*>(other); };
    if constexpr (has(Hook::open_session))
      h.open_session = [](void* self, const MethodContext& context, int32_t first_head, bool audit) {
        return of(self).open_session(context, first_head, audit);
      };
  }
};

template <class P>
PolicyTable policy_table() {
  static_assert(Policy<P>,
                "a policy is a trivially copyable struct with `info` and resolve(); see lib/methods/README.md");
  static_assert(alignof(P) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  static_assert(hooks_match<P>());
  PolicyTable t;
  t.info = P::info, t.hooks = P::hooks;
  t.bytes = sizeof(P);
  t.make = [](void* to) { new (to) P; };
  t.describe = [](Describer& to, const void* self) {
    Describe<P> d(to, *static_cast<const P*>(self), self);
    P::declare(d);
  };
  t.host = PolicyHooks<P>::host();
  t.single = PolicyHooks<P>::template cache<float>();
  t.wide = PolicyHooks<P>::template cache<double>();
  return t;
}

}  // namespace kvreplay
