#pragma once
#include "kernels/table.hpp"
#include "kernels/vector_exponentials.hpp"
#include "kernels/vector_products.hpp"
#include "kernels/vector_rows.hpp"

// The code of the kernels, shared by all vector widths. A translation unit defines Vector<float> and Vector<double> in
// this unnamed namespace before it includes this file:
//   Raw, Whole          a GCC vector of kLanes numbers, and of as many unsigned integers of their size
//   kRegisters          number of such vectors that the machine holds
//   fma(a, b, c)        a b + c
//   load_first(p, n), store_first(p, x, n)   the first n < kLanes lanes; others read as 0, stay unwritten
//   scale(p, w)         p 2^w, only where the machine has an instruction for it
//   widen_add(x, low, high)   adds the halves of x, in double, to low and high; double: x to low
// Everything has internal linkage: no other unit may link to code made for these instructions. For the same reason the
// standard library is not used.
//
// A number of row i is computed by the same operations in the same order, whatever other rows a call has.

namespace kvreplay::kernels {
namespace {

template <class Real>
constexpr Functions<Real> functions() {
  return {scores<Real>, multiply<Real>, exponentiate<Real>, row_maximum<Real>, gather<Real>,
          sum<Real>,    weigh<Real>,    accumulate<Real>,   distance<Real>,    compare<Real>,
          project,      add<Real>,      finish<Real>,       sum_x_log_x<Real>};
}

constexpr Table table_of_this_width(const char* name) {
  return {name, functions<float>(), functions<double>(), squared_distances, logarithms, lowest, nullptr};
}

}  // namespace
}  // namespace kvreplay::kernels
