#include <cstdint>

// The kernels over plain vectors of 16 bytes, which every machine has: a third width, whose products are rounded before
// they are added.

namespace kvreplay::kernels {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));

template <class Real>
struct Vector;

template <>
struct Vector<double> {
  using Raw = Doubles;
  typedef uint64_t Whole __attribute__((vector_size(16)));
  static constexpr int32_t kLanes = 2, kRegisters = 16;
  static Raw fma(Raw a, Raw b, Raw c) { return a * b + c; }
  static Raw load_first(const double* p, int32_t n) { return Raw{n > 0 ? p[0] : 0.0, 0.0}; }
  static void store_first(double* p, Raw x, int32_t n) {
    if (n > 0) p[0] = x[0];
  }
  static void widen_add(Raw x, Raw& low, Raw&) { low += x; }
};

template <>
struct Vector<float> {
  using Raw = Floats;
  typedef uint32_t Whole __attribute__((vector_size(16)));
  static constexpr int32_t kLanes = 4, kRegisters = 16;
  static Raw fma(Raw a, Raw b, Raw c) { return a * b + c; }
  static Raw load_first(const float* p, int32_t n) {
    Raw x = {};
    for (int32_t i = 0; i < n; ++i) x[i] = p[i];
    return x;
  }
  static void store_first(float* p, Raw x, int32_t n) {
    for (int32_t i = 0; i < n; ++i) p[i] = x[i];
  }
  static void widen_add(Raw x, Doubles& low, Doubles& high) {
    low += Doubles{double(x[0]), double(x[1])};
    high += Doubles{double(x[2]), double(x[3])};
  }
};

}  // namespace
}  // namespace kvreplay::kernels

#include "kernels/vector_kernels.hpp"

namespace kvreplay::test {
extern const kernels::Table kNarrow;
const kernels::Table kNarrow = kernels::table_of_this_width("narrow");
}  // namespace kvreplay::test
