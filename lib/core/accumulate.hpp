#pragma once
#include "core/policy.hpp"

// A[i]: the attention that a token has received so far, stored as its row's score (H2O and methods built on it).

namespace kvreplay {

// Sums over all causal rows of the prompt.
template <class Real>
KVR_FN void accumulate_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
  team.each(cache.size(), [&](int32_t i) { cache.score(i) = prompt.column_sum(cache.token(i)); });
}

// Adds the attention of this step, p [rows].
KVR_FN void accumulate(const Team auto& team, Cache auto& cache, std::span<const double> p) {
  team.each(cache.size(), [&](int32_t i) { cache.score(i) += p[size_t(i)]; });
}

}  // namespace kvreplay
