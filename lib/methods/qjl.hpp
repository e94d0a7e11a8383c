#pragma once
#include "core/policy.hpp"
#include "core/quantise.hpp"
#include "methods/parts/sketch.hpp"

namespace kvreplay {

// QJL, Zandieh et al. 2024: keys as the signs of a random projection, values in 2 bits. Nothing is evicted.
//  1. S: d x m Gaussian, orthogonalised in blocks of d columns, times sqrt(d).
//  2. In each group of tokens the channels of largest norm are outliers, which are sketched separately.
//  3. A key is stored as sign(S^T k) of both parts, ||k|| and ||k_out||.
//  4. <q, k> is estimated by sqrt(pi/2) / m_in ||k_in|| <S^T q_in, sign(S^T k_in)>, plus the term of the outliers.
//  5. The tail that does not fill a buffer is exact. Values: kivi, the last `buffer` exact.
// The estimate is linear in q, so a row stores the vector whose inner product with q is the estimate.
struct Qjl {
  static constexpr MethodInfo info{
      .name = "qjl",
      .title = "sign sketch of keys, 2-bit values",
      .source = "QJL, Zandieh et al. 2024, Algorithm 1; values as KIVI, Liu et al. 2024",
      .tier = 3,
      .memory = "signs and 2 norms per key, the outlier channels of each group, 2-bit values, an exact tail; not S",
      .deviation = "both sketches use one matrix.",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .implied_layout = true,
      .needs_linear_logits = true,
      .own_row_format = true,
  };
  static constexpr Hooks hooks{"evict extra_bytes layout traits rng_arrays state rng"};
  static constexpr int32_t kValueBits = 2;
  int32_t m_in = 256, m_out = 256, outliers = 8, group = 32, buffer = 128;
  std::span<double> state;  // number of keys sketched, number of values quantised, then Work
  Rng rng;

  static void declare(auto& d) {
    d.integer("m_in", &Qjl::m_in, {1, 1 << 20}, "sign bits per key");
    d.integer("m_out", &Qjl::m_out, {1, 1 << 20}, "sign bits per key for its outlier channels");
    d.integer("outliers", &Qjl::outliers, {0, 1 << 20}, "outlier channels");
    d.integer("group", &Qjl::group, {1, kManyTokens},
              "tokens that share outlier channels, numbers of a value that share a step");
    d.integer("buffer", &Qjl::buffer, {1, kManyTokens}, "tokens sketched at a time, a multiple of group");
  }
  void resolve(const MethodContext& context) {
    if (buffer % group != 0) throw ParameterError("buffer", "buffer must be a multiple of group");
    if (outliers >= context.shape.dim)
      throw ParameterError("outliers",
                           "outliers must be below the " + std::to_string(context.shape.dim) + " channels of a key");
  }
  void traits(Traits& t) const { t.random = true; }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"U uniforms", RngStream::sketch_matrix, 1, (int64_t(context.shape.dim) * columns() + 1) / 2 * 2}};
  }
  Layout layout(const MethodContext& context) const {
    const int64_t d = context.shape.dim, m = columns();
    return {.state_doubles = 2 + d * m + 3 * d + m + context.shape.v_dim, .own_rows = context.tokens};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    const int64_t first = cache.size() > 0 ? cache.token(0) : 0;  // a sliding window has evicted earlier tokens
    const int64_t keys = std::max<int64_t>(0, int64_t(state[0]) - first), d = cache.shape().dim;
    const int64_t values = std::max<int64_t>(0, int64_t(state[1]) - first), dv = cache.shape().v_dim;
    const int64_t bits = m_in + (outliers > 0 ? m_out : 0), norms = outliers > 0 ? 2 : 1;
    c.coded_floats = keys * d + values * dv;
    c.coded_rows = std::max(keys, values);
    c.code_bytes = values * ((dv * kValueBits + 7) / 8);
    c.aux_bytes =
        keys * ((bits + 7) / 8 + 4 * norms) + keys / group * outliers * 4 + values * 4 * ((dv + group - 1) / group);
  }

  template <class Real>
  void evict(const Team auto& team, BasicCache<Real>& cache) {
    if (cache.size() == 0) return;
    const Work w = carve(cache.shape());
    const int32_t first = cache.token(0), tokens = first + cache.size();
    const int32_t keys = int32_t(state[0]), values = int32_t(state[1]);
    const int32_t full = tokens - tokens % buffer, old = tokens > buffer ? tokens - buffer : 0;
    state[0] = full, state[1] = old > values ? old : values;
    if (full > keys && keys == 0) draw_sketch(team, rng, w.matrix, cache.shape().dim, columns());
    for (int32_t i = keys; i < full; i += group)
      if (i + group > first) sketch_group(team, cache, w, (i > first ? i : first) - first, i + group - first);
    for (int32_t i = values > first ? values : first; i < old; ++i) quantise_value(team, cache, w, i - first);
  }

 private:
  struct Work {
    std::span<double> matrix, norms, outlier, key, signs, value;
  };
  int32_t columns() const { return m_in > m_out ? m_in : m_out; }
  Work carve(const HeadShape& s) const {
    Carver cut{state.data() + 2};
    return {cut(int64_t(s.dim) * columns()), cut(s.dim), cut(s.dim), cut(s.dim), cut(columns()), cut(s.v_dim)};
  }
  // Steps 2 to 4 for rows first..last-1.
  template <class Real>
  void sketch_group(const Team auto& team, BasicCache<Real>& cache, const Work& w, int32_t first, int32_t last) const {
    const int32_t d = int32_t(w.key.size());
    team.each(d, [&](int32_t c) {
      double s = 0;
      for (int32_t i = first; i < last; ++i) s += double(cache.key(i)[size_t(c)]) * double(cache.key(i)[size_t(c)]);
      w.norms[size_t(c)] = std::sqrt(s);
    });
    choose_top(
        team, d, outliers, [&](int32_t c) { return w.norms[size_t(c)]; },
        [&](int32_t c, bool yes) { w.outlier[size_t(c)] = yes ? 1 : 0; });
    for (int32_t i = first; i < last; ++i) {
      const auto key = cache.key(i), value = cache.value(i);
      team.each(d, [&](int32_t c) { w.key[size_t(c)] = 0; });
      add_part(team, w, key, 0, m_in);
      if (outliers > 0) add_part(team, w, key, 1, m_out);
      cache.rewrite(
          team, i, [&](int32_t, int32_t c) { return Real(w.key[size_t(c)]); },
          [&](int32_t, int32_t c) { return value[size_t(c)]; });
    }
  }
  // Adds, for the channels of one part of a key (1: outliers), the vector whose inner product with a query is the
  // estimate.
  void add_part(const Team auto& team, const Work& w, auto key, double part, int32_t m) const {
    const int32_t d = int32_t(w.key.size()), width = columns();
    const auto in = [&](int32_t c) { return w.outlier[size_t(c)] == part; };
    const auto entry = [&](int32_t c, int32_t j) { return w.matrix[size_t(c) * size_t(width) + size_t(j)]; };
    const double length = std::sqrt(
        team.sum(d, [&](int32_t c) { return in(c) ? double(key[size_t(c)]) * double(key[size_t(c)]) : 0.0; }));
    team.each(m, [&](int32_t j) {
      double s = 0;
      for (int32_t c = 0; c < d; ++c) s += in(c) ? entry(c, j) * double(key[size_t(c)]) : 0.0;
      w.signs[size_t(j)] = s >= 0 ? 1 : -1;
    });
    const double factor = std::sqrt(std::acos(-1.0) / 2) / m * length;
    team.each(d, [&](int32_t c) {
      if (in(c)) w.key[size_t(c)] = factor * dot(w.signs.data(), w.matrix.data() + int64_t(c) * width, m);
    });
  }
  // Step 5.
  template <class Real>
  void quantise_value(const Team auto& team, BasicCache<Real>& cache, const Work& w, int32_t i) const {
    const auto key = cache.key(i), value = cache.value(i);
    team.each(int32_t(value.size()), [&](int32_t c) { w.value[size_t(c)] = double(value[size_t(c)]); });
    (void)quantise_row(w.value, group, levels_of(kValueBits));
    cache.rewrite(
        team, i, [&](int32_t, int32_t c) { return key[size_t(c)]; },
        [&](int32_t, int32_t c) { return Real(w.value[size_t(c)]); });
  }
};

}  // namespace kvreplay
