#pragma once
#include <cstdint>

namespace kvreplay::kernels {

constexpr int32_t kPanel = 48;  // keys in one packed panel
constexpr int32_t kLanes = 16;  // points in one block of squared_distances

struct RowSums {
  double sum, squares;  // of exp(scale x - shift)
};

struct Lowest {
  double score;
  int32_t token;  // -1: there is none
};

}  // namespace kvreplay::kernels
