#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

// vLLM's integer formats with one float32 scale per token and kv head.

// int8: s = float32(max(largest |x| / 127, 1e-6)), code = half_even(clip(x / s, -128, 127)).
struct Int8TokenHead {
  static constexpr FormatInfo info{
      .name = "int8_token_head", .title = "8-bit, one scale a row", .source = "vLLM int8_per_token_head", .tier = 3};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {width, 4}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const double largest = team.largest(row.width(), [&](int32_t i) { return std::fabs(row.x[size_t(i)]); }).score;
    const double s = to_float32(largest / 127 > 1e-6 ? largest / 127 : 1e-6);
    return tally(team, row.width(), [&](int32_t i) {
      double& x = row.x[size_t(i)];
      CodeTally t;
      const double back = std::rint(clamp_to(x / s, -128, 127)) * s;
      t.note(x, back);
      x = back;
      return t;
    });
  }
};

// int4: s = float32(max((max - min) / 15, 1e-6)), z = clip(half_away(-min / s), 0, 15), code = clip(half_away(x / s +
// z), 0, 15); read as (code - z) s', where s' is s with z in its 4 lowest bits.
struct Int4TokenHead {
  static constexpr FormatInfo info{.name = "int4_token_head",
                                   .title = "4-bit, one scale a row that holds its zero",
                                   .source = "vLLM int4_per_token_head",
                                   .tier = 3,
                                   .deviation =
                                       "where all numbers of a row have one sign, the zero is clipped and the "
                                       "far end is lost, as published.",
                                   .default_rotate = RowRotation::hadamard_signed};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {bytes_of_bits(4 * int64_t(width)), 4}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const double high = team.largest(row.width(), [&](int32_t i) { return row.x[size_t(i)]; }).score;
    const double low = team.smallest(row.width(), [&](int32_t i) { return row.x[size_t(i)]; }).score;
    const double range = (high - low) / 15, s = to_float32(range > 1e-6 ? range : 1e-6);
    const double z = clamp_to(std::round(-low / s), 0, 15), step = with_low_bits(float(s), uint32_t(z));
    return tally(team, row.width(), [&](int32_t i) {
      double& x = row.x[size_t(i)];
      CodeTally t;
      const double position = std::round(x / s + z), back = (clamp_to(position, 0, 15) - z) * step;
      t.note(x, back, position < 0 || position > 15);
      x = back;
      return t;
    });
  }

 private:
  static double with_low_bits(float s, uint32_t z) { return double(bits_float((float_bits(s) & ~15u) | z)); }
};

}  // namespace kvreplay
