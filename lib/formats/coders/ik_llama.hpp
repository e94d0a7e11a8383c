#pragma once
#include "formats/coders/llama.hpp"

namespace kvreplay {

// Block formats of ik_llama.cpp (ggml-quants.c, and cpy-utils.cuh, the kernel that writes a cache): blocks of 32
// numbers with a float16 step. m = the signed number of largest magnitude (the first if equal); a block with m = 0
// reads back as 0.

// iq4_nl: 16 levels v at uneven distances, none of them 0.
//  1. code = the level nearest to x / (m / -127); a number in the middle takes the higher.
//  2. s = sum x^2 v x / sum x^2 v^2.
//  3. Read back: v float16(s).
struct Iq4Nl {
  static constexpr FormatInfo info{.name = "iq4_nl",
                                   .title = "4-bit in blocks of 32, uneven levels",
                                   .source = "ik_llama.cpp, ggml-quants.c and cpy-utils.cuh; also llama.cpp",
                                   .tier = 2,
                                   .deviation =
                                       "as the CUDA kernel: no improvement of single codes (the CPU path of "
                                       "ik_llama.cpp), no search over 15 scales (its quantiser of files). A zero "
                                       "reads back as a hundredth of the block's largest.",
                                   .multiple_of = kLlamaBlock};
  static constexpr int32_t kLevels = 16;
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart, int32_t width) { return {width / 2, 2 * (width / kLlamaBlock)}; }
  static std::vector<double> tables(RowPart, int32_t) {
    return {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return tally(team, row.width() / kLlamaBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kLlamaBlock, b);
      const double unit = signed_largest(x) / -127;
      const auto level = [&](double number) { return nearest_level({row.tables, kLevels}, number / unit); };
      CodeTally t;
      if (unit == 0) return t;
      double fitted = 0, square = 0;
      for (const double number : x) {
        const double v = level(number), weight = number * number;
        fitted += weight * v * number, square += weight * v * v;
      }
      const double s = to_float16(fitted / square);
      t.misfits = std::isfinite(s) ? 0 : 1;
      for (double& number : x) {
        const double back = level(number) * s;
        t.note(number, back);
        number = back;
      }
      return t;
    });
  }
};

// q6_0: 64 levels c = -32 .. 31 at even distances.
//  1. d = m / -32, c = min(63, trunc(x / d + 32.5)) - 32.
//  2. `fit`: s = sum w x c / sum w c^2 with w = (x / d)^2. `plain`: s = d.
//  3. Read back: c float16(s).
struct Q6_0 {
  enum class Scale : int32_t { fit, plain };
  static constexpr FormatInfo info{.name = "q6_0",
                                   .title = "6-bit in blocks of 32, by the largest",
                                   .source = "ik_llama.cpp, ggml-quants.c (fit) and cpy-utils.cuh (plain)",
                                   .tier = 2,
                                   .multiple_of = kLlamaBlock};
  Scale scale = Scale::fit;

  static void declare(auto& d) {
    d.choice(
        "scale", &Q6_0::scale, {"fit", "plain"},
        "the step with the least weighted error, as the CPU computes it, or that of the largest number, as CUDA does");
  }
  static CodedBytes bytes(RowPart, int32_t width) { return {width * 6 / 8, 2 * (width / kLlamaBlock)}; }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    constexpr double h = 32, most = 2 * h - 1;
    return tally(team, row.width() / kLlamaBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kLlamaBlock, b);
      const double d = signed_largest(x) / -h;
      const auto position = [&](double number) { return std::trunc(number / d + h + 0.5); };
      const auto code = [&](double number) {
        const double p = position(number);
        return (p > most ? most : p) - h;
      };
      CodeTally t;
      if (d == 0) return t;
      double fitted = 0, square = 0;
      for (const double number : x) {
        const double c = code(number), weight = number / d * (number / d);
        fitted += weight * number * c, square += weight * c * c;
      }
      const double s = to_float16(scale == Scale::fit ? fitted / square : d);
      t.misfits = std::isfinite(s) ? 0 : 1;
      for (double& number : x) {
        const double back = code(number) * s;
        t.note(number, back, position(number) > most);
        number = back;
      }
      return t;
    });
  }
};

}  // namespace kvreplay
