#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

// The block formats of llama.cpp (ggml-quants.c): blocks of 32 numbers with a float16 step. Coding uses the exact step,
// reading back the rounded one.
constexpr int32_t kLlamaBlock = 32;
constexpr const char* kLlamaRotates =
    "llama.cpp rotates every quantised cache whose heads are a multiple of 64 wide: "
    "add `rotate: hadamard`.";

// The number of largest magnitude with its sign, the first of equals.
inline double signed_largest(std::span<const double> x) {
  double m = x[0];
  for (const double number : x) m = std::fabs(number) > std::fabs(m) ? number : m;
  return m;
}

// q8_0: s = largest |x| / 127, code = half_away(x / s).
struct Q8_0 {
  static constexpr FormatInfo info{.name = "q8_0",
                                   .title = "8-bit in blocks of 32, symmetric",
                                   .source = "llama.cpp, ggml-quants.c",
                                   .tier = 2,
                                   .multiple_of = kLlamaBlock};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {width, 2 * (width / kLlamaBlock)}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return tally(team, row.width() / kLlamaBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kLlamaBlock, b);
      const double s = largest_magnitude(x) / 127;
      CodeTally t;
      t.misfits = fits_float16(s) ? 0 : 1;
      for (double& number : x) {
        const double back = s == 0 ? 0 : std::round(number / s) * to_float16(s);
        t.note(number, back);
        number = back;
      }
      return t;
    });
  }
};

// q4_0, q5_0: m = the signed number of largest magnitude (the first if equal), h = 8 or 16, s = m / -h, code = min(2 h
// - 1, trunc(x / s + h + 0.5)), read as (code - h) s. The side opposite to m is clipped.
template <int kBits>
struct LlamaSymmetric {
  static constexpr FormatInfo info{
      .name = kBits == 4 ? "q4_0" : "q5_0",
      .title = kBits == 4 ? "4-bit in blocks of 32, by the largest" : "5-bit in blocks of 32, by the largest",
      .source = "llama.cpp, ggml-quants.c",
      .tier = 2,
      .deviation = kLlamaRotates,
      .multiple_of = kLlamaBlock};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {width * kBits / 8, 2 * (width / kLlamaBlock)}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    constexpr double h = 1 << (kBits - 1), most = 2 * h - 1;
    return tally(team, row.width() / kLlamaBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kLlamaBlock, b);
      const double s = signed_largest(x) / -h;
      CodeTally t;
      t.misfits = fits_float16(s) ? 0 : 1;
      for (double& number : x) {
        const double position = s == 0 ? h : std::trunc(number / s + h + 0.5);
        const double back = ((position > most ? most : position) - h) * to_float16(s);
        t.note(number, back, position > most);
        number = back;
      }
      return t;
    });
  }
};
using Q4_0 = LlamaSymmetric<4>;
using Q5_0 = LlamaSymmetric<5>;

// q4_1, q5_1: s = (max - min) / L, L = 15 or 31, code = min(L, trunc((x - min) / s + 0.5)), read as code s + min.
template <int kBits>
struct LlamaAsymmetric {
  static constexpr FormatInfo info{
      .name = kBits == 4 ? "q4_1" : "q5_1",
      .title = kBits == 4 ? "4-bit in blocks of 32, with an offset" : "5-bit in blocks of 32, with an offset",
      .source = "llama.cpp, ggml-quants.c",
      .tier = 2,
      .deviation = kLlamaRotates,
      .multiple_of = kLlamaBlock};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {width * kBits / 8, 4 * (width / kLlamaBlock)}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    constexpr double most = (1 << kBits) - 1;
    return tally(team, row.width() / kLlamaBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kLlamaBlock, b);
      const auto [low, high] = extremes_of(x);
      const double s = (high - low) / most, step = to_float16(s), offset = to_float16(low);
      CodeTally t;
      t.misfits = std::isfinite(step) && std::isfinite(offset) ? 0 : 1;
      for (double& number : x) {
        const double position = s == 0 ? 0 : std::trunc((number - low) / s + 0.5);
        const double back = (position > most ? most : position) * step + offset;
        t.note(number, back);
        number = back;
      }
      return t;
    });
  }
};
using Q4_1 = LlamaAsymmetric<4>;
using Q5_1 = LlamaAsymmetric<5>;

}  // namespace kvreplay
