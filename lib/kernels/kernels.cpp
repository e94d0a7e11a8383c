#include "kernels/kernels.hpp"

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/paths.hpp"

// Every function calls the chosen path.

namespace kvreplay::kernels {
namespace {

constexpr int32_t kTileTerms = 32, kTileColumns = 16;
constexpr uint32_t kBelowBf16 = 0xffff;  // digits of a float that a bf16 number lacks

// The tiles from `column` on; it must be the first of a block.
TileMatrix from_column(const TilePanels& panels, int32_t column) {
  const size_t block = size_t(column / kTileColumns) * size_t(panels.term_blocks);
  return {panels.numbers.data() + block * kTileTerms * kTileColumns, panels.term_blocks};
}

}  // namespace

TilePanels::TilePanels(const float* x, int32_t terms, int32_t columns, int64_t term_stride, int64_t column_stride) {
  const int32_t blocks = (terms + kTileTerms - 1) / kTileTerms;
  const size_t column_blocks = size_t((columns + kTileColumns - 1) / kTileColumns) + 1;
  std::vector<uint16_t> packed(column_blocks * size_t(blocks) * kTileTerms * kTileColumns, 0);
  for (int32_t j = 0; j < columns; ++j)
    for (int32_t c = 0; c < terms; ++c) {
      const size_t tile = size_t(j / kTileColumns) * size_t(blocks) + size_t(c / kTileTerms);
      const size_t at = (tile * kTileTerms / 2 + size_t(c % kTileTerms / 2)) * kTileColumns * 2 +
                        size_t(j % kTileColumns * 2 + c % 2);
      const uint32_t bits = std::bit_cast<uint32_t>(x[c * term_stride + j * column_stride]);
      if ((bits & kBelowBf16) != 0) return;
      packed[at] = uint16_t(bits >> 16);
    }
  term_blocks = blocks;
  numbers = std::move(packed);
}

template <class Real>
KeyPanels<Real>::KeyPanels(int32_t n, int32_t dim)
    : keys(n), d(dim), numbers(size_t((n + kPanel - 1) / kPanel) * size_t(dim) * kPanel, Real(0)) {}

template <class Real>
KeyPanels<Real>::KeyPanels(const Real* k, int32_t n, int32_t dim) : KeyPanels(n, dim) {
  if constexpr (std::is_same_v<Real, float>)
    if (chosen().tile_product != nullptr) tiles = TilePanels(k, dim, n, 1, dim);
  for (int32_t i = 0; i < n; ++i) fill(i, k + int64_t(i) * dim);
}

template <class Real>
void KeyPanels<Real>::put(int32_t at, const Real* key) {
  fill(at, key);
  tiles = {};
}

template <class Real>
void KeyPanels<Real>::fill(int32_t at, const Real* key) {
  Real* const to = numbers.data() + int64_t(at / kPanel) * d * kPanel + at % kPanel;
  for (int32_t c = 0; c < d; ++c) to[int64_t(c) * kPanel] = key[c];
}

template <class Real>
void scores(const Real* q, int64_t ldq, int32_t m, const KeyPanels<Real>& keys, int32_t first, int32_t count, Real* out,
            int64_t ldo) {
  if constexpr (std::is_same_v<Real, float>)
    if (keys.tiles.term_blocks > 0)
      return chosen().tile_product(q, ldq, m, from_column(keys.tiles, first), keys.d, count, out, ldo);
  chosen().of(Real()).scores(q, ldq, m, keys.numbers.data() + int64_t(first) * keys.d, keys.d, count, out, ldo);
}

template <class Real>
void multiply(const Real* a, int64_t lda, int32_t m, const Real* b, int32_t k, int32_t n, Real* out, int64_t ldo,
              bool add) {
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

template <class Real>
void add(const Real* a, const Real* b, Real weight, int64_t n, Real* out) {
  chosen().of(Real()).add(a, b, weight, n, out);
}

template <class Real>
void finish(const Real* a, const Real* b, Real factor, int64_t n, Real* out) {
  chosen().of(Real()).finish(a, b, factor, n, out);
}

template <class Real>
Distance distance(const Real* mine, const Real* exact, int32_t n) {
  return chosen().of(Real()).distance(mine, exact, n);
}

template <class Real>
Comparison compare(const Real* mine, const Real* exact, int32_t n, double tau) {
  return chosen().of(Real()).compare(mine, exact, n, tau);
}

template <class Real>
void project(const Real* mine, const Real* exact, const uint16_t* directions, int32_t count, int32_t n, float* out) {
  chosen().of(Real()).project(mine, exact, directions, count, n, out);
}

Lowest lowest(const double* score, const double* guard, const int32_t* token, int32_t n) {
  return chosen().lowest(score, guard, token, n);
}

template <class Real>
double sum_x_log_x(const Real* row, int32_t n) {
  return chosen().of(Real()).sum_x_log_x(row, n);
}

void logarithms(double* x, int32_t n) { chosen().logarithms(x, n); }

void squared_distances(const double* others, const double* point, int32_t d, double* out) {
  chosen().squared_distances(others, point, d, out);
}

template struct KeyPanels<float>;
template struct KeyPanels<double>;
template void scores(const float*, int64_t, int32_t, const KeyPanels<float>&, int32_t, int32_t, float*, int64_t);
template void scores(const double*, int64_t, int32_t, const KeyPanels<double>&, int32_t, int32_t, double*, int64_t);
template void multiply(const float*, int64_t, int32_t, const float*, int32_t, int32_t, float*, int64_t, bool);
template void multiply(const double*, int64_t, int32_t, const double*, int32_t, int32_t, double*, int64_t, bool);
template RowSums exponentiate(float*, int32_t, float, float);
template RowSums exponentiate(double*, int32_t, double, double);
template double gather(const float*, const int32_t*, int32_t, float*);
template double gather(const double*, const int32_t*, int32_t, double*);
template double sum(const float*, int32_t);
template double sum(const double*, int32_t);
template double weigh(const float*, const float*, int32_t, float*);
template double weigh(const double*, const double*, int32_t, double*);
template void add(const float*, const float*, float, int64_t, float*);
template void add(const double*, const double*, double, int64_t, double*);
template void finish(const float*, const float*, float, int64_t, float*);
template void finish(const double*, const double*, double, int64_t, double*);
template Distance distance(const float*, const float*, int32_t);
template Distance distance(const double*, const double*, int32_t);
template Comparison compare(const float*, const float*, int32_t, double);
template Comparison compare(const double*, const double*, int32_t, double);
template void project(const float*, const float*, const uint16_t*, int32_t, int32_t, float*);
template void project(const double*, const double*, const uint16_t*, int32_t, int32_t, float*);
template void accumulate(const float*, double, double, int32_t, double*);
template void accumulate(const double*, double, double, int32_t, double*);
template float row_maximum(const float*, int32_t);
template double row_maximum(const double*, int32_t);
template double sum_x_log_x(const float*, int32_t);
template double sum_x_log_x(const double*, int32_t);

}  // namespace kvreplay::kernels
