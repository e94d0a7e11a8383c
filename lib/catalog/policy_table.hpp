#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hooks.hpp"
#include "core/policy.hpp"

// A policy without its type: its bytes, and a table of its hooks. The policy's own translation unit compiles the hooks
// for float and for double and nothing else; the replay is compiled once for all methods.

namespace kvreplay {

class Describer;  // parameters/describe.hpp

// Hooks called outside of the steps. self: the policy's bytes. A hook that the policy lacks is null.
struct HostHooks {
  void (*resolve)(void* self, const MethodContext&) = nullptr;
  Layout (*layout)(const void* self, const MethodContext&) = nullptr;
  PromptNeeds (*needs)(const void* self, const MethodContext&) = nullptr;
  OracleNeeds (*oracle_needs)(const void* self) = nullptr;
  void (*traits)(const void* self, Traits&) = nullptr;
  Protect (*protection)(const void* self) = nullptr;
  std::optional<ScoreRule> (*score_rule)(const void* self) = nullptr;
  ErrorBound (*error_bound)(const void* self) = nullptr;
  double (*missed_bound)(const void* self, int32_t head) = nullptr;
  double (*voters)(const void* self, const MethodContext&) = nullptr;
  std::vector<int32_t> (*share)(const void* self, const MethodContext&, const std::vector<HeadScores>&) = nullptr;
  void (*head_scores)(const void* self, std::vector<double>& extras) = nullptr;
  void (*hear)(void* self, const std::vector<HeadScores>&) = nullptr;
  bool (*waits_for_heads)(const void* self) = nullptr;
  std::vector<std::vector<int32_t>> (*cut_together)(const void* self, const std::vector<HeadScores>&) = nullptr;
  std::string (*failure_text)(int32_t code, int32_t at) = nullptr;
  void (*set_options)(const void* self, CommonOptions&) = nullptr;
  std::vector<RngArray> (*rng_arrays)(const void* self, const MethodContext&) = nullptr;
  double (*logit_factor)(const void* self, int32_t rows, int32_t token) = nullptr;
  void (*observe_prompt)(void* self, int32_t t, const HeadProbabilities&) = nullptr;
  void (*bind_state)(void* self, std::span<double>) = nullptr;
  void (*bind_rng)(void* self, const Rng&) = nullptr;
  void (*bind_given)(void* self, const GivenLists&) = nullptr;
  void (*bind_larger)(void* self, const void* other) = nullptr;
  std::shared_ptr<void> (*open_session)(void* self, const MethodContext&, int32_t first_head, bool audit) = nullptr;
};

// Hooks that work on a cache.
template <class Real>
struct CacheHooks {
  void (*read_prompt)(void* self, const Prompt<Real>&, BasicCache<Real>&) = nullptr;
  void (*evict)(void* self, BasicCache<Real>&) = nullptr;
  void (*append)(void* self, const Token<Real>&, BasicCache<Real>&) = nullptr;
  void (*observe_queries)(void* self, const StepQueries<Real>&) = nullptr;
  void (*choose_by_mass)(void* self, const BasicCache<Real>&, const HeadProbabilities&, uint8_t*) = nullptr;
  void (*choose_by_query)(void* self, const BasicCache<Real>&, const StepQueries<Real>&, uint8_t*, double*) = nullptr;
  bool samples = false;  // choose_by_query returns weights
  double (*token_score)(const void* self, const BasicCache<Real>&, int32_t row) = nullptr;
  void (*observe_group)(void* self, BasicCache<Real>&, std::span<const double>) = nullptr;
  void (*observe_heads)(void* self, BasicCache<Real>&, const HeadProbabilities&) = nullptr;
  void (*extra_bytes)(const void* self, ExtraBytes&, const BasicCache<Real>&) = nullptr;
  void (*report)(const void* self, std::map<std::string, double>&, const BasicCache<Real>&) = nullptr;
};

struct PolicyTable {
  MethodInfo info{};
  Hooks hooks;
  size_t bytes = 0;                                     // size of a policy
  void (*make)(void* to) = nullptr;                     // constructs a policy with default parameters
  void (*describe)(Describer&, const void*) = nullptr;  // its declare(), for such a policy
  HostHooks host;
  CacheHooks<float> single;
  CacheHooks<double> wide;
  template <class Real>
  const CacheHooks<Real>& of() const {
    if constexpr (sizeof(Real) == sizeof(double)) return wide;
    else return single;
  }
};

// Calls the hooks of a step through the table (core/policy.hpp documents each).
template <class Real>
struct TableCalls {
  void* self;
  const HostHooks& host;
  const CacheHooks<Real>& hooks;
  bool reads_some;  // Traits::chooses

  bool chooses() const { return reads_some; }
  bool chooses_by_mass() const { return hooks.choose_by_mass != nullptr; }
  bool samples() const { return hooks.samples; }
  bool observes() const { return hooks.observe_group != nullptr || hooks.observe_heads != nullptr; }
  bool observes_queries() const { return hooks.observe_queries != nullptr; }
  bool observes_heads() const { return hooks.observe_heads != nullptr; }

  void read_prompt(const SerialTeam&, const Prompt<Real>& prompt, BasicCache<Real>& cache) const {
    if (hooks.read_prompt != nullptr) hooks.read_prompt(self, prompt, cache);
  }
  void evict(const SerialTeam&, BasicCache<Real>& cache) const {
    if (hooks.evict != nullptr) hooks.evict(self, cache);
  }
  void append(const SerialTeam&, const Token<Real>& token, BasicCache<Real>& cache) const {
    if (hooks.append != nullptr) hooks.append(self, token, cache);
    else cache.push(token);
  }
  void observe_queries(const SerialTeam&, const StepQueries<Real>& queries) const {
    hooks.observe_queries(self, queries);
  }
  void choose(const SerialTeam&, const BasicCache<Real>& cache, const HeadProbabilities& p, uint8_t* chosen) const {
    hooks.choose_by_mass(self, cache, p, chosen);
  }
  void choose(const SerialTeam&, const BasicCache<Real>& cache, const StepQueries<Real>& q, uint8_t* chosen,
              double* weights) const {
    hooks.choose_by_query(self, cache, q, chosen, weights);
  }
  void observe(const SerialTeam&, BasicCache<Real>& cache, std::span<const double> p) const {
    hooks.observe_group(self, cache, p);
  }
  void observe(const SerialTeam&, BasicCache<Real>& cache, const HeadProbabilities& p) const {
    hooks.observe_heads(self, cache, p);
  }
  double logit_factor(int32_t rows, int32_t token) const {
    return host.logit_factor == nullptr ? 1 : host.logit_factor(self, rows, token);
  }
  Protect protection() const { return host.protection == nullptr ? Protect{} : host.protection(self); }
};

}  // namespace kvreplay
