#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

enum class MxRounding : int32_t { floor, ceil };

// Blocks that share a power of two.
//  1. k = floor(log2(largest |x|)) - emax, where emax is the exponent of the element format's largest number X. With
//     `ceil`: the least k with largest |x| <= X 2^k. k is clamped to +-127; a block of zeros has -127.
//  2. Read back: E(x 2^-k) 2^k.
template <Team T>
CodeTally code_mx(const T& team, std::span<double> row, const SmallFloat& element, int32_t block, MxRounding rounding) {
  return tally(team, groups_of(int32_t(row.size()), block), [&](int32_t b) {
    const std::span<double> x = group_of(row, block, b);
    const double largest = largest_magnitude(x);
    int32_t k = exponent_of(largest) - element.largest_exponent();
    if (k >= -127 && rounding == MxRounding::ceil && largest > element.largest * power_of_two(k)) ++k;
    k = k < -127 ? -127 : k > 127 ? 127 : k;
    CodeTally t;
    for (double& number : x) {
      const double scaled = number * power_of_two(-k), back = element(scaled) * power_of_two(k);
      t.note(number, back, std::fabs(element.rounded(scaled)) > element.largest);
      number = back;
    }
    return t;
  });
}

// MXFP4: E2M1 in blocks.
struct MxFp4 {
  static constexpr FormatInfo info{.name = "mxfp4",
                                   .title = "4-bit floating point, blocks share a power of two",
                                   .source = "OCP Microscaling 1.0; ggml MXFP4, SGLang fp4_mx_block16",
                                   .tier = 2,
                                   .deviation =
                                       "ggml takes the smaller magnitude in ties; SGLang is `block: 16, "
                                       "scale_rounding: ceil`."};
  int32_t block = 32;
  MxRounding scale_rounding = MxRounding::floor;

  static void declare(auto& d) {
    d.integer("block", &MxFp4::block, {1, 1 << 16}, "numbers that share a power of two");
    d.choice("scale_rounding", &MxFp4::scale_rounding, {"floor", "ceil"}, "ceil: the largest number is never clipped");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    return {bytes_of_bits(4 * int64_t(width)), groups_of(width, block)};
  }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return code_mx(team, row.x, e2m1(), block, scale_rounding);
  }
};

// MXFP8: E4M3 or E5M2 in blocks.
struct MxFp8 {
  enum class Element : int32_t { e4m3, e5m2 };
  static constexpr FormatInfo info{.name = "mxfp8",
                                   .title = "8-bit floating point, blocks share a power of two",
                                   .source = "OCP Microscaling 1.0",
                                   .tier = 2};
  Element element = Element::e4m3;
  int32_t block = 32;
  MxRounding scale_rounding = MxRounding::floor;

  static void declare(auto& d) {
    d.choice("element", &MxFp8::element, {"e4m3", "e5m2"}, "format of a number");
    d.integer("block", &MxFp8::block, {1, 1 << 16}, "numbers that share a power of two");
    d.choice("scale_rounding", &MxFp8::scale_rounding, {"floor", "ceil"}, "ceil: the largest number is never clipped");
  }
  CodedBytes bytes(RowPart, int32_t width) const { return {width, groups_of(width, block)}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return code_mx(team, row.x, element == Element::e4m3 ? e4m3() : e5m2(), block, scale_rounding);
  }
};

}  // namespace kvreplay
