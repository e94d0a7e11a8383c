#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "core/cache.hpp"
#include "core/softmax.hpp"

// One attention for every family of methods. Weights e_i = exp(l_i - shift) are computed by one of two sources
// (OwnDots, StripGather); a policy cannot see which. A writer applies the coefficients to the output.

namespace kvreplay {

// l = scale <q, k>, then the layer's soft cap if it has one (convention C3).
template <class Real>
struct LogitRule {
  Real scale = 1, softcap = 0;
  Real factor = 1;  // set by methods that change the temperature
  Real operator()(Real dot) const {
    const Real l = scale * dot;
    return factor * (softcap > 0 ? softcap * std::tanh(l / softcap) : l);
  }
};

template <class Real>
Real dot_product(std::span<const Real> a, std::span<const Real> b) {
  Real s = 0;
  const Real *x = a.data(), *y = b.data();
  const int32_t n = int32_t(a.size());
  KVR_SIMD_SUM(s) for (int32_t c = 0; c < n; ++c) s += x[c] * y[c];
  return s;
}

// Re-assigned positions (convention C14): row j of L live rows is placed at position j and the query at L-1. Key j is
// rotated forward by as many positions as it moved closer to the query, always from the stored original.
template <class Real>
struct Rotation {
  const Real *cosines = nullptr, *sines = nullptr;  // [offset, pairs]; null: positions as recorded
  const int32_t* positions = nullptr;               // position id of each token
  int32_t pairs = 0;
  bool interleaved = false;

  bool active() const { return cosines != nullptr; }
  int32_t offset(int32_t query_token, int32_t row_token, int32_t row, int32_t rows) const {
    return (positions[query_token] - positions[row_token]) - (rows - 1 - row);
  }
  // <R(offset) key, query>; the dimensions beyond 2 * pairs are not rotated.
  Real dot(std::span<const Real> key, std::span<const Real> query, int32_t offset) const {
    const Real *c = cosines + int64_t(offset) * pairs, *s = sines + int64_t(offset) * pairs;
    const int32_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : pairs;
    Real sum = 0;
    for (int32_t i = 0; i < pairs; ++i) {
      const int32_t a = i * step, b = a + partner;
      sum += c[i] * (key[a] * query[a] + key[b] * query[b]) + s[i] * (key[a] * query[b] - key[b] * query[a]);
    }
    const size_t rotated = 2 * size_t(pairs);
    return sum + dot_product(key.subspan(rotated), query.subspan(rotated));
  }
};

// One query's view of one cache.
template <class Real>
struct QueryView {
  std::span<const Real> query;
  LogitRule<Real> rule;
  Rotation<Real> rotation;
  int32_t token;                    // index of the query's token
  const uint8_t* chosen = nullptr;  // query-time methods: rows that are read; null: all
  Real sink_logit = -INFINITY;      // added to the denominator only
  int32_t block = 0;                // kv head of the query, in a cache that spans a layer
  const double* weights = nullptr;  // [rows] factors of the rows that are read, in both sums, and logits of those that
                                    // are estimated; null: all 1

  template <Cache C>
  int32_t offset(const C& cache, int32_t row) const {
    if (!rotation.active() || cache.token(row) < 0) return 0;
    return rotation.offset(token, cache.token(row), row, cache.size());
  }
  template <Cache C>
  Real logit(const C& cache, int32_t row) const {
    const int32_t d = offset(cache, row);
    const auto key = cache.key(row, block);
    return rule(d == 0 ? dot_product(key, query) : rotation.dot(key, query, d));
  }
};

// Computes e_i from the logits logit(i) of the rows, relative to their maximum; returns the maximum.
template <Team T, Cache C, class Real = typename C::real, class L>
Real exponentiate_rows(const T& team, const QueryView<Real>& view, const C& cache, std::span<Real> e, L logit) {
  const auto weight = [&](int32_t i) {
    if (view.chosen != nullptr && !kvreplay::counts(view.chosen[i])) return Real(0);
    return cache.num(i) > cache.den(i) ? cache.num(i) : cache.den(i);
  };
  const auto counts = [&](int32_t i) { return cache.num(i) != 0 || cache.den(i) != 0; };
  return exponentiate(team, cache.size(), double(view.sink_logit), logit, weight, counts, e);
}

// For any row: rotated, quantised, merged or verbatim.
template <class Real>
struct OwnDots {
  QueryView<Real> view;
  template <Team T, Cache C>
  Real fill(const T& team, const C& cache, std::span<Real> e) const {
    return exponentiate_rows(team, view, cache, e, [&](int32_t i) {
      return view.chosen != nullptr && view.chosen[i] == kEstimated ? Real(view.weights[i]) : view.logit(cache, i);
    });
  }
};

// Rows that hold unmodified keys of the trace are columns of the shared strip exp(l - shift) that the exact pass left
// behind. Every other row computes its own dot product and uses that shift. If the kept rows underflow against the
// shared maximum, the step falls back to OwnDots.
template <class Real>
struct StripGather {
  const Real* strip;  // [tokens] strip of this query; null: none
  Real shift;
  OwnDots<Real> own;
  bool coded = false;  // the strip was computed from coded keys and covers the rows whose keys are coded
  template <Team T, Cache C>
  Real fill(const T& team, const C& cache, std::span<Real> e) const {
    const int32_t n = cache.size();
    if (strip == nullptr || own.view.rule.factor != 1) return own.fill(team, cache, e);
    if (!own.view.rotation.active() && !cache.has_changed_rows()) {
      const int32_t* token = cache.tokens().data();
      team.each(n, [&](int32_t i) { e[i] = strip[token[i]]; });
    } else {
      team.each(n, [&](int32_t i) {
        const bool is_held = coded ? cache.shares_coded_key(i) : cache.verbatim_key(i);
        const bool column = is_held && own.view.offset(cache, i) == 0;
        e[i] = !counts(cache, i) ? Real(0)
               : column          ? strip[cache.token(i)]
                                 : std::exp(own.view.logit(cache, i) - shift);
      });
    }
    if (!cache.weighted())
      return in_range(team.sum(n, [&](int32_t i) { return double(e[i]); })) ? shift : own.fill(team, cache, e);
    const double z = team.sum(n, [&](int32_t i) { return double(cache.den(i) * e[i]); });
    const double a = team.sum(n, [&](int32_t i) { return double(cache.num(i) * e[i]); });
    return in_range(z) && (in_range(a) || a == 0) ? shift : own.fill(team, cache, e);
  }
  static bool counts(const auto& cache, int32_t i) { return cache.num(i) != 0 || cache.den(i) != 0; }
};

// Turns e_i = exp(l_i - shift) of all rows into what a query-time method makes of them. Estimated rows often share a
// logit.
template <class Real>
void count_chosen(const QueryView<Real>& view, Real shift, std::span<Real> e) {
  double logit = -INFINITY;
  Real estimated = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    const uint8_t how = view.chosen[i];
    if (how == kEstimated && view.weights[i] != logit)
      logit = view.weights[i], estimated = Real(std::exp(logit - double(shift)));
    if (!counts(how)) e[i] = 0;
    else if (how == kEstimated) e[i] = estimated;
    else if (view.weights != nullptr) e[i] = Real(double(e[i]) * view.weights[i]);
  }
}

// Fills e with the attention probabilities of the rows (den_i e_i / tau) and passes num_i e_i / tau to the writer;
// `coefficients` [rows] is scratch for it.
template <Team T, Cache C, class Real = typename C::real, class Source, class Writer>
Normaliser attend(const T& team, const QueryView<Real>& view, const Source& source, const C& cache, std::span<Real> e,
                  std::span<Real> coefficients, const Writer& writer) {
  const int32_t n = cache.size();
  Real shift = source.fill(team, cache, e);
  if (view.chosen != nullptr) count_chosen(view, shift, e);
  const bool weighted = cache.weighted();
  const auto sum = [&] {
    return weighted ? team.sum(n, [&](int32_t i) { return double(cache.den(i) * e[i]); })
                    : team.sum(n, [&](int32_t i) { return double(e[i]); });
  };
  double tau = sum();
  if (view.chosen != nullptr && !in_range(tau)) {  // rows that are read may be tiny beside the largest of the others
    shift = OwnDots<Real>{view}.fill(team, cache, e);
    count_chosen(view, shift, e);
    tau = sum();
  }
  tau += sink_term(double(view.sink_logit), double(shift));
  const double inverse = tau > 0 ? 1 / tau : 0.0;
  if (!weighted && view.chosen == nullptr) {
    team.each(n, [&](int32_t i) { coefficients[i] = e[i] = Real(double(e[i]) * inverse); });
    writer.add(team, cache, coefficients);
    return {tau, double(shift)};
  }
  team.each(n, [&](int32_t i) {
    const bool has_value = view.chosen == nullptr || view.chosen[i] == kRead || view.chosen[i] == kEstimated;
    coefficients[i] = has_value ? Real(double(cache.num(i) * e[i]) * inverse) : Real(0);
  });
  writer.add(team, cache, coefficients);
  team.each(n, [&](int32_t i) { e[i] = Real(double(cache.den(i) * e[i]) * inverse); });
  return {tau, double(shift)};
}

}  // namespace kvreplay
