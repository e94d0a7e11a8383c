#include "survey/rotary_phase.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

namespace kvreplay {
namespace {

constexpr double kTurns = 2;
constexpr size_t kFewestRows = 64, kFewestPairs = 2;
// On recorded models, the right number of rotations gives 0.6 to 0.9, every other less than 0.1.
constexpr double kMinCoherence = 0.25, kMinCoherenceRatio = 2.5;

}  // namespace

RotaryPhase::RotaryPhase(const Rope& rope, std::vector<int32_t> positions)
    : rope_(rope), positions_(std::move(positions)) {
  if (positions_.size() < kFewestRows) return;
  const auto [low, high] = std::ranges::minmax(positions_);
  for (size_t i = 0; i < rope.inv_freq.size(); ++i)
    if (rope.inv_freq[i] * (double(high) - double(low)) > kTurns * 2 * std::numbers::pi) pairs_.push_back(i);
  for (const size_t pair : pairs_)
    for (const int32_t position : positions_) turns_.push_back(std::polar(1.0, -rope.inv_freq[pair] * position));
}

double RotaryPhase::coherence(std::span<const float> rows, int64_t width, int32_t times, bool interleaved) const {
  double together = 0, apart = 0;
  for (size_t at_pair = 0; at_pair < pairs_.size(); ++at_pair) {
    const size_t pair = pairs_[at_pair];
    const size_t x = interleaved ? 2 * pair : pair, y = interleaved ? x + 1 : pair + rope_.inv_freq.size();
    std::complex<double> sum = 0;
    for (size_t row = 0; row < positions_.size(); ++row) {
      const float* const at = rows.data() + static_cast<int64_t>(row) * width;
      const std::complex<double> point(at[x], at[y]);
      const std::complex<double> back = turns_[at_pair * positions_.size() + row];
      sum += times == 0 ? point : times == 1 ? point * back : point * back * back;
      apart += std::abs(point);
    }
    together += std::abs(sum);
  }
  return apart > 0 ? together / apart : 0;
}

void RotaryPhase::add(std::span<const float> rows, int64_t width) {
  if (pairs_.size() < kFewestPairs) return;
  const bool interleaved = rope_.layout == Rope::Layout::interleaved;
  for (int32_t times = 0; times < 3; ++times) sum_.times[times] += coherence(rows, width, times, interleaved);
  sum_.other_layout += coherence(rows, width, 1, !interleaved);
  ++heads_;
}

std::string RotaryPhase::suspicion(const char* rows) const {
  if (heads_ == 0) return "";
  const auto n = static_cast<double>(heads_);
  struct Guess {
    double coherence;
    const char *what, *remedy;
  };
  const Guess guesses[] = {
      {sum_.times[0] / n, "not rotated", "Record what attention sees, after the rotary embedding"},
      {sum_.times[2] / n, "rotated twice", "Record what attention sees, and do not rotate it again"},
      {sum_.other_layout / n, "rotated in the other layout",
       "Write layout half_split or interleaved as the model has it"},
  };
  const Guess best = *std::ranges::max_element(guesses, {}, &Guess::coherence);
  const double once = sum_.times[1] / n;
  if (best.coherence > kMinCoherence && best.coherence > kMinCoherenceRatio * once)
    return fmt::format("{} look {} (coherence {:.2f} if so, {:.2f} if rope_json is right). {}", rows, best.what,
                       best.coherence, once, best.remedy);
  return "";
}

}  // namespace kvreplay
