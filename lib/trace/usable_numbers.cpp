#include "trace/usable_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace kvreplay {
namespace {

// True for infinity, NaN, and 2^40 or more: a product of two such vectors would overflow single precision. Tests the
// bits because std::isfinite is constant under -ffast-math.
bool is_unusable(float x) { return (std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu) >= std::bit_cast<uint32_t>(0x1p40f); }

std::string name_of_number(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  return magnitude < 0x7F800000u ? fmt::format("{:.3g}", x) : magnitude == 0x7F800000u ? "infinity" : "NaN";
}

}  // namespace

std::string unusable_number(std::span<const float> values, int64_t width, int64_t head, int64_t first_row,
                            const char* row) {
  int32_t unusable = 0;
  for (const float x : values) unusable |= is_unusable(x);
  if (unusable == 0) return "";
  const auto at = std::find_if(values.begin(), values.end(), is_unusable) - values.begin();
  return fmt::format("{} at head {}, {} {}, coordinate {}. Record the trace again, in a wider dtype if it overflowed",
                     name_of_number(values[static_cast<size_t>(at)]), head, row, first_row + at / width, at % width);
}

}  // namespace kvreplay
