#pragma once
#include "core/attend.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// Logits of one query head over the rows of a cache, in double: scale <q, k>, then the layer's soft cap.
template <class Real>
void exact_logits(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, int32_t head,
                  std::span<double> to) {
  const LogitRule<double> rule{queries.scale, queries.softcap};
  const auto query = queries(head);
  team.each(cache.size(), [&](int32_t i) { to[size_t(i)] = rule(wide_dot(query, cache.key(i))); });
}

}  // namespace kvreplay
