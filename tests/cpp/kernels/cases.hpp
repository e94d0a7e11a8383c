#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gaussian.hpp"
#include "kernels/kernels.hpp"
#include "kernels/paths.hpp"

// Numbers and references for the tests of kernels. The references are plain loops in double.

namespace kvreplay::test {

extern const kernels::Table kNarrow;  // the kernels over vectors of 16 bytes

// Every instruction set that this machine can run, and the narrow one.
inline std::vector<const kernels::Table*> tables() {
  std::vector<const kernels::Table*> all = {&kNarrow};
  for (const kernels::Path& path : kernels::paths())
    if (path.table != nullptr) all.push_back(path.table);
  return all;
}

// Numbers that no computation here produces. Memory that must not be written must still hold them afterwards.
template <class Real>
constexpr Real kCanary = Real(-1.25e30);

// A matrix surrounded by canaries: rows of `width` numbers at a larger stride, with canaries before and after it.
template <class Real>
struct Guarded {
  static constexpr int64_t kMargin = 80;
  int32_t rows, width;
  int64_t stride;
  std::vector<Real> numbers;
  Guarded(int32_t m, int32_t n, int32_t gap)
      : rows(m), width(n), stride(n + gap), numbers(size_t(2 * kMargin + m * (n + gap)), kCanary<Real>) {}
  Real* data() { return numbers.data() + kMargin; }
  Real at(int32_t i, int32_t j) const { return numbers[size_t(kMargin + i * stride + j)]; }
  bool untouched_outside() const {
    for (int64_t i = 0; i < int64_t(numbers.size()); ++i) {
      const int64_t place = i - kMargin;
      const bool inside = place >= 0 && place < rows * stride && place % stride < width;
      if (!inside && numbers[size_t(i)] != kCanary<Real>) return false;
    }
    return true;
  }
};

// Tolerance of a sum of `terms` products in Real, in any order of its terms.
template <class Real>
double sum_tolerance(int32_t terms) {
  return double(std::numeric_limits<Real>::epsilon()) * (2 + std::sqrt(double(terms)));
}

inline kernels::KeyPanels<float> panels(const std::vector<float>& k, int32_t n, int32_t d) { return {k.data(), n, d}; }
inline kernels::KeyPanels<double> panels(const std::vector<double>& k, int32_t n, int32_t d) {
  return {k.data(), n, d};
}

}  // namespace kvreplay::test
