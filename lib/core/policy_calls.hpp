#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// The hooks of a policy, as core/step.hpp calls them. Where the policy lacks a hook, the engine's default runs. There
// are two forms: this one, where the policy's type is known (a block of a device), and a table of functions
// (catalog/policy_table.hpp), which lets the CPU's replay be compiled once for all methods.
template <Policy P, class Real>
struct DirectCalls {
  P& policy;
  bool reads_some;  // Traits::chooses

  KVR_FN bool chooses() const { return Chooses<P, Real> && reads_some; }
  KVR_FN static constexpr bool chooses_by_mass() { return ChoosesByMass<P, Real>; }
  KVR_FN static constexpr bool samples() { return SamplesByQuery<P, Real>; }
  KVR_FN static constexpr bool observes() { return Observes<P, Real>; }
  KVR_FN static constexpr bool observes_queries() { return ObservesQueries<P, Real>; }
  KVR_FN static constexpr bool observes_heads() { return ObservesHeads<P, Real>; }

  template <Team T>
  KVR_FN void read_prompt(const T& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) const {
    if constexpr (ReadsPrompt<P, Real>) policy.read_prompt(team, prompt, cache);
  }
  template <Team T>
  KVR_FN void evict(const T& team, BasicCache<Real>& cache) const {
    if constexpr (Evicts<P, Real>) policy.evict(team, cache);
  }
  template <Team T>
  KVR_FN void append(const T& team, const Token<Real>& token, BasicCache<Real>& cache) const {
    if constexpr (Appends<P, Real>) policy.append(team, token, cache);
    else cache.push(team, token);
  }
  template <Team T>
  KVR_FN void observe_queries(const T& team, const StepQueries<Real>& queries) const {
    if constexpr (ObservesQueries<P, Real>) policy.observe_queries(team, queries);
  }
  template <Team T>
  KVR_FN void choose(const T& team, const BasicCache<Real>& cache, const HeadProbabilities& p, uint8_t* chosen) const {
    if constexpr (ChoosesByMass<P, Real>) policy.choose(team, cache, p, chosen);
  }
  template <Team T>
  KVR_FN void choose(const T& team, const BasicCache<Real>& cache, const StepQueries<Real>& q, uint8_t* chosen,
                     double* weights) const {
    if constexpr (SamplesByQuery<P, Real>) policy.choose(team, cache, q, chosen, weights);
    else if constexpr (ChoosesByQuery<P, Real> && !ChoosesByMass<P, Real>) policy.choose(team, cache, q, chosen);
  }
  template <Team T>
  KVR_FN void observe(const T& team, BasicCache<Real>& cache, std::span<const double> p) const {
    if constexpr (ObservesGroup<P, Real> && !ObservesHeads<P, Real>) policy.observe(team, cache, p);
  }
  template <Team T>
  KVR_FN void observe(const T& team, BasicCache<Real>& cache, const HeadProbabilities& p) const {
    if constexpr (ObservesHeads<P, Real>) policy.observe(team, cache, p);
  }
  KVR_FN double logit_factor(int32_t rows, int32_t token) const {
    if constexpr (requires { policy.logit_factor(rows, token); }) return policy.logit_factor(rows, token);
    else return 1;
  }
  KVR_FN Protect protection() const {
    if constexpr (ScoresPrompt<P>) return policy.protection();
    else return {};
  }
};

}  // namespace kvreplay
