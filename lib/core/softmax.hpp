#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "core/team.hpp"

// Sums of exponentials over the rows of a cache: the only place that defines the range in which they can be trusted,
// what is done outside that range, and what a sink logit adds.

namespace kvreplay {

// The denominator of a step in the log domain, comparable with the exact one.
struct Normaliser {
  double sum, shift;  // tau = sum * exp(shift); sum <= 0: there was nothing to attend to
  KVR_FN bool any() const { return sum > 0 && sum < INFINITY; }
};

// Whether a sum of exponentials kept its digits and its range although it was shifted by the maximum of other rows. If
// not, the row is summed against its own maximum (exponentiate() below), as devices always do. A change of this range,
// or of the fallback, changes the last digits of some rows: raise kEngineSchema (plan/plan.hpp) with it.
KVR_FN inline bool in_range(double sum) { return sum > 1e-30 && sum < 1e30; }

// A head's sink logit as a term of a denominator of exp(l - shift); -infinity: the head has none.
KVR_FN inline double sink_term(double sink_logit, double shift) {
  return sink_logit > -double(INFINITY) ? std::exp(sink_logit - shift) : 0.0;
}

// e_i = exp(logit(i) - shift) for i < n. The shift is the maximum over these rows of l_i + ln weight(i), or the sink
// logit if that is larger. Rows of weight 0 do not enter the maximum. Rows for which counts(i) is false get 0 (their
// exponential might overflow). Returns the shift.
template <Team T, class Real, class L, class W, class F>
KVR_FN Real exponentiate(const T& team, int32_t n, double sink_logit, L logit, W weight, F counts, std::span<Real> e) {
  const Scored top = team.largest(n, [&](int32_t i) {
    e[size_t(i)] = logit(i);
    const Real w = weight(i);
    return w > 0 ? double(e[size_t(i)]) + (w == 1 ? 0.0 : std::log(double(w))) : -double(INFINITY);
  });
  double shift = top.index < 0 ? -double(INFINITY) : top.score;
  if (sink_logit > shift) shift = sink_logit;
  if (!(shift > -double(INFINITY))) shift = 0;
  team.each(n, [&](int32_t i) { e[size_t(i)] = counts(i) ? std::exp(e[size_t(i)] - Real(shift)) : Real(0); });
  return Real(shift);
}

}  // namespace kvreplay
