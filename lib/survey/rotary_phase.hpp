#pragma once
#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/trace_info.hpp"

namespace kvreplay {

// How coherently rows point in one direction, from 0 to 1, after undoing the rotary embedding 0, 1 or 2 times, and once
// with the other layout of pairs. A model's keys and queries share a direction, which the embedding rotates away. If it
// was applied once, undoing it once restores the direction. Averages over the added heads and over the pairs that turn
// at least twice. Rows without a common direction give about 1/sqrt(rows).
class RotaryPhase {
 public:
  RotaryPhase(const Rope& rope, std::vector<int32_t> positions);  // [rows]

  void add(std::span<const float> rows, int64_t width);  // [rows, width] for one head
  // Describes how the rows seem to be wrongly rotated, or "".
  std::string suspicion(const char* rows) const;

 private:
  struct Coherence {
    double times[3] = {}, other_layout = 0;
  };
  double coherence(std::span<const float> rows, int64_t width, int32_t times, bool interleaved) const;

  const Rope& rope_;
  std::vector<int32_t> positions_;
  std::vector<size_t> pairs_;                // pairs that turn at least kTurns times
  std::vector<std::complex<double>> turns_;  // [pairs_, rows] factor that undoes the embedding once
  Coherence sum_;
  int64_t heads_ = 0;
};

}  // namespace kvreplay
