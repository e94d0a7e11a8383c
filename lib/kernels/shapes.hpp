#pragma once
#include <cstdint>

namespace kvreplay::kernels {

constexpr int32_t kPanel = 48;  // keys in one packed panel
constexpr int32_t kLanes = 16;  // points in one block of squared_distances

struct RowSums {
  double sum, squares;  // sums of exp(scale x - shift)
};

// z is the output, o the exact output.
struct Distance {
  double error2, exact2;  // ||z - o||^2, ||o||^2
};
// p_c = o_c where it exceeds kClamp, else kClamp; N = tau z.
struct Comparison {
  static constexpr double kClamp = 1e-8;
  double mine2, inner;           // ||z||^2, <z, o>
  double positive2, numerator2;  // ||p||^2, ||N - o||^2
};

struct Lowest {
  double score;
  int32_t token;  // -1: there is none
};

}  // namespace kvreplay::kernels
