#pragma once
#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/trace_info.hpp"

namespace kvreplay {

// How far rows point the same way, from 0 to 1, after a rotary embedding was taken off them as often as the index says
// (0, 1, 2), and once in the other layout of pairs. Keys and queries of a model have a common direction, which the
// embedding winds around: where it was applied once, it shows after it was taken off once. Mean over the heads that
// were added, and over the pairs that turn at least twice; 1/sqrt(rows) is what rows without a common direction have.
class RotaryPhase {
 public:
  RotaryPhase(const Rope& rope, std::vector<int32_t> positions);  // [rows]

  void add(std::span<const float> rows, int64_t width);  // [rows, width] of one head
  // What is wrong with them, or "".
  std::string suspicion(const char* rows) const;

 private:
  struct Coherence {
    double times[3] = {}, other_layout = 0;
  };
  double coherence(std::span<const float> rows, int64_t width, int32_t times, bool interleaved) const;

  const Rope& rope_;
  std::vector<int32_t> positions_;
  std::vector<size_t> pairs_;                // those that turn
  std::vector<std::complex<double>> turns_;  // [pairs_, rows] what takes the embedding off once
  Coherence sum_;
  int64_t heads_ = 0;
};

}  // namespace kvreplay
