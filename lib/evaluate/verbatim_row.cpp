#include "evaluate/verbatim_row.hpp"

#include <algorithm>

namespace kvreplay {

namespace {
// Whether a factor, rounded to float, can multiply sums without leaving the range of normal numbers.
bool fits_float(double factor) { return factor > 1e-30 && factor < 1e30; }
}  // namespace

template <class Real>
void VerbatimRow<Real>::put(const Real* a, const Real* b, double z) const {
  const bool fits = fits_float(1 / z);
  kernels::finish(a, b, fits ? Real(1 / z) : Real(1), results.v_dim, out());
  if (!fits) put(out(), z);
}

template <class Real>
void VerbatimRow<Real>::put(const Real* n, double z) const {
  Real* const to = out();
  const double inverse = 1 / z;
  if (fits_float(inverse)) {
    const Real factor = Real(inverse);
    for (int32_t c = 0; c < results.v_dim; ++c) to[c] = n[c] * factor;
  } else {
    for (int32_t c = 0; c < results.v_dim; ++c) to[c] = Real(double(n[c]) * inverse);
  }
}

template <class Real>
void VerbatimRow<Real>::weigh(OwnSoftmax<Real>& own) const {
  const int32_t h = stream_head(), block = stream.shape.block_of(h);
  const size_t dim = size_t(stream.shape.dim);
  const std::span<const Real> query{stream.query(h, token()), dim};
  const auto logit = [&](int32_t i) {
    const Real* key = stream.block_keys(block) + int64_t(own.tokens[size_t(i)]) * stream.shape.dim;
    return stream.rule(dot_product(std::span<const Real>{key, dim}, query));
  };
  const auto weight = [&](int32_t i) { return Real(std::max(own.num[size_t(i)], own.den[size_t(i)])); };
  const auto counts = [&](int32_t i) { return own.num[size_t(i)] != 0 || own.den[size_t(i)] != 0; };
  own.e.resize(own.tokens.size());
  const double sink = stream.sink_logit(h);
  const double top = double(
      exponentiate(SerialTeam{}, int32_t(own.tokens.size()), sink, logit, weight, counts, std::span<Real>(own.e)));
  own.tau = {sink_term(sink, top), top};
  for (size_t i = 0; i < own.e.size(); ++i) own.tau.sum += own.den[i] * double(own.e[i]);
}

template <class Real>
void VerbatimRow<Real>::put_outputs(const OwnSoftmax<Real>& own, bool plain) const {
  const size_t width = size_t(results.v_dim);
  const Real* values = stream.block_values(stream.shape.block_of(stream_head()));
  std::vector<double> all(width), prompt(width), set(width);
  double z_prompt = 0, z_set = 0;
  const auto add = [&](std::vector<double>& sums, double weight, int32_t token) {
    for (size_t c = 0; c < width; ++c) sums[c] += weight * double(values[size_t(token) * width + c]);
  };
  for (size_t i = 0; i < own.tokens.size(); ++i) {
    const double e = double(own.e[i]);
    add(all, own.num[i] * e, own.tokens[i]);
    add(set, e, own.tokens[i]), z_set += e;
    if (own.tokens[i] < stream.prompt) add(prompt, own.num[i] * e, own.tokens[i]), z_prompt += own.den[i] * e;
  }
  const double sink_share = sink_term(stream.sink_logit(stream_head()), own.tau.shift);
  const auto store = [&](const std::vector<double>& sums, double scale, std::vector<Real>& to) {
    for (size_t c = 0; c < width; ++c) to[in_results() * width + c] = Real(sums[c] * scale);
  };
  store(all, 1 / own.tau.sum, results.out);
  if (!results.prefix.out.empty()) {
    store(prompt, 1, results.prefix.out);
    results.prefix.weight[in_results()] = z_prompt + sink_share;
  }
  if (plain || !asked.set) return;
  if (results.set.out.empty()) results.set.resize(results.cells(), results.v_dim);
  store(set, 1, results.set.out);
  results.set.weight[in_results()] = z_set + sink_share;
}

template struct VerbatimRow<float>;
template struct VerbatimRow<double>;

}  // namespace kvreplay
