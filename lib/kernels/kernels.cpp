#include "kernels/kernels.hpp"

#include "kernels/paths.hpp"

// Every call goes to the chosen path.

namespace kvreplay::kernels {

template <class Real>
KeyPanels<Real>::KeyPanels(int32_t n, int32_t dim)
    : keys(n), d(dim), numbers(size_t((n + kPanel - 1) / kPanel) * size_t(dim) * kPanel, Real(0)) {}

template <class Real>
KeyPanels<Real>::KeyPanels(const Real* k, int32_t n, int32_t dim) : KeyPanels(n, dim) {
  for (int32_t i = 0; i < n; ++i) put(i, k + int64_t(i) * dim);
}

template <class Real>
void KeyPanels<Real>::put(int32_t at, const Real* key) {
  Real* const to = numbers.data() + int64_t(at / kPanel) * d * kPanel + at % kPanel;
  for (int32_t c = 0; c < d; ++c) to[int64_t(c) * kPanel] = key[c];
}

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const KeyPanels<Real>& keys, int32_t first, int32_t count,
            Real* out, int64_t ldo) {
  chosen().of(Real()).scores(q, ldq, m, keys.numbers.data() + int64_t(first) * keys.d, keys.d, count, out,
                             ldo);
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out,
              int64_t ldo, bool add) {
  chosen().of(Real()).multiply(a, lda, m, b, k, n, out, ldo, add);
}

template <class Real>
RowSums exponentiate(Real* row, int32_t n, Real scale, Real shift) {
  return chosen().of(Real()).exponentiate(row, n, scale, shift);
}

template <class Real>
Real row_maximum(const Real* row, int32_t n) {
  return chosen().of(Real()).row_maximum(row, n);
}

template <class Real>
double gather(const Real* from, const int32_t* index, int32_t n, Real* out) {
  return chosen().of(Real()).gather(from, index, n, out);
}

template <class Real>
double sum(const Real* x, int32_t n) {
  return chosen().of(Real()).sum(x, n);
}

template <class Real>
double weigh(const Real* x, const Real* factor, int32_t n, Real* out) {
  return chosen().of(Real()).weigh(x, factor, n, out);
}

template <class Real>
void accumulate(const Real* e, double weight, double carry, int32_t n, double* score) {
  chosen().of(Real()).accumulate(e, weight, carry, n, score);
}

Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  return chosen().lowest(score, guard, token, n);
}

template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  return chosen().of(Real()).sum_x_log_x(row, n);
}

void squared_distances(const double* others, const double* point, int32_t d, double* out) {
  chosen().squared_distances(others, point, d, out);
}

template struct KeyPanels<float>;
template struct KeyPanels<double>;
template void scores(const float*, int64_t, int32_t, const KeyPanels<float>&, int32_t, int32_t, float*,
                     int64_t);
template void scores(const double*, int64_t, int32_t, const KeyPanels<double>&, int32_t, int32_t, double*,
                     int64_t);
template void multiply(const float*, int64_t, int32_t, const float*, int32_t, int32_t, float*, int64_t, bool);
template void multiply(const double*, int64_t, int32_t, const double*, int32_t, int32_t, double*, int64_t,
                       bool);
template RowSums exponentiate(float*, int32_t, float, float);
template RowSums exponentiate(double*, int32_t, double, double);
template double gather(const float*, const int32_t*, int32_t, float*);
template double gather(const double*, const int32_t*, int32_t, double*);
template double sum(const float*, int32_t);
template double sum(const double*, int32_t);
template double weigh(const float*, const float*, int32_t, float*);
template double weigh(const double*, const double*, int32_t, double*);
template void accumulate(const float*, double, double, int32_t, double*);
template void accumulate(const double*, double, double, int32_t, double*);
template float row_maximum(const float*, int32_t);
template double row_maximum(const double*, int32_t);
template double sum_x_log_x(const float*, int32_t);
template double sum_x_log_x(const double*, int32_t);

}  // namespace kvreplay::kernels
