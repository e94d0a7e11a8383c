#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "core/platform.hpp"

namespace kvreplay {

// The text that a method or an allocator is calibrated on (`calibration`).
struct Calibration {
  enum class Source { self, others, prompt, file };
  Source source = Source::self;  // self: the prompt that is replayed
  std::string name;              // prompt id, or path of the file
  // Calibrated on other text than the prompt that is replayed.
  bool is_offline() const { return source != Source::self; }
  // Calibrated on other prompts of the same trace.
  bool uses_other_prompts() const { return source == Source::others || source == Source::prompt; }
  auto operator<=>(const Calibration&) const = default;
};

constexpr const char *kCalibrationPrompt = "prompt:", *kCalibrationFile = "file:";

// The word in configurations: self, others, prompt:ID, file:PATH.
inline std::string word(const Calibration& c) {
  switch (c.source) {
    case Calibration::Source::self:
      return "self";
    case Calibration::Source::others:
      return "others";
    case Calibration::Source::prompt:
      return kCalibrationPrompt + c.name;
    case Calibration::Source::file:
      return kCalibrationFile + c.name;
  }
  return "";
}
// Parses such a word; false if `text` is none of them.
inline bool parse_calibration(const std::string& text, Calibration& c) {
  using Source = Calibration::Source;
  const auto behind = [&](const std::string& prefix) { return text.substr(prefix.size()); };
  if (text == "self") c = {};
  else if (text == "others") c = {Source::others, ""};
  else if (text.starts_with(kCalibrationPrompt)) c = {Source::prompt, behind(kCalibrationPrompt)};
  else if (text.starts_with(kCalibrationFile)) c = {Source::file, behind(kCalibrationFile)};
  else return false;
  return !c.is_offline() || c.source == Source::others || !c.name.empty();
}

// Statistics that a method reads about queries it has not seen yet (Prompt::mean_query() and its neighbours).
struct StatisticsNeeds {
  bool means = false;       // mean query before rotation, and mean modulus of each pair of channels
  bool directions = false;  // the main direction of the rotated queries
  bool channels = false;    // which channels contribute most to the products with keys
  // Mean and covariance of queries of other text, over all rows but the first `moments_after` of each prompt.
  static constexpr int32_t kNoMoments = -1;
  int32_t moments_after = kNoMoments;
  bool moments() const { return moments_after >= 0; }
  bool any() const { return means || directions || channels || moments(); }
  // Without the statistics that a method computes itself from the prompt it reads.
  StatisticsNeeds of_prompt() const { return {means, directions, channels}; }
  // At most one of them, or both alike, may ask for moments.
  StatisticsNeeds operator|(const StatisticsNeeds& o) const {
    return {means || o.means, directions || o.directions, channels || o.channels,
            moments() ? moments_after : o.moments_after};
  }
};
// Identifies statistics of other text: the text, and StatisticsNeeds::moments_after.
using StatisticsKey = std::pair<Calibration, int32_t>;

// These statistics for some query heads.
struct QueryStatistics {
  const double* means = nullptr;        // [heads, dim]; includes an attention factor
  const double* sizes = nullptr;        // [heads, pairs], likewise
  const double* directions = nullptr;   // [heads, dim]
  const int32_t* channels = nullptr;    // [heads, dim], the most important channel first
  const double* full_means = nullptr;   // [heads, dim] mean before rotation without first rows; as `means`
  const double* covariances = nullptr;  // [heads, dim, dim], likewise
  // The statistics of the heads from `first` on.
  QueryStatistics from(int64_t first, int32_t dim, int32_t pairs) const {
    const auto moved = [&](auto* numbers, int32_t width) {
      return numbers == nullptr ? nullptr : numbers + first * width;
    };
    return {moved(means, dim),    moved(sizes, pairs),    moved(directions, dim),
            moved(channels, dim), moved(full_means, dim), moved(covariances, dim * dim)};
  }
};

}  // namespace kvreplay
