#pragma once
#include <numbers>

// H2O, Zhang et al. 2023, Theorem 4.4: a greedy choice reaches f(S) >= (1 - alpha)(1 - 1/e) max f - beta. The paper
// leaves alpha and beta open, so this is a line to draw, not a bound to test.

namespace kvreplay::theory {

constexpr double kGreedyLine = 1 - 1 / std::numbers::e;

}  // namespace kvreplay::theory
