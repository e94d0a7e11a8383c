#pragma once
#include "core/method_info.hpp"
#include "formats/row_text.hpp"

namespace kvreplay {

constexpr double kScaleOfHead = kRealWord, kScaleOfToken = kSecondRealWord;  // the words that `scale` accepts

template <Team T>
CodeTally code_fp8(const T& team, std::span<double> numbers, const SmallFloat& format, double scale) {
  return tally(team, int32_t(numbers.size()), [&](int32_t i) {
    double& x = numbers[size_t(i)];
    CodeTally t;
    const double scaled = x / scale, back = format(scaled) * scale;
    t.note(x, back, std::fabs(format.rounded(scaled)) > format.largest);
    x = back;
    return t;
  });
}

// 8-bit floating point, E4M3 or E5M2, with a scale.
//  1. s = float32 of `scale`. head: max(largest |x| of the prompt / X, 1e-6), X the format's largest number. token:
//     likewise, over the row.
//  2. Read back: E(x / s) * s, E the nearest number of the format within +-X, ties to even.
template <bool kWide>
struct Fp8 {
  static constexpr FormatInfo info{
      .name = kWide ? "fp8_e5m2" : "fp8_e4m3",
      .title = kWide ? "8-bit floating point, E5M2" : "8-bit floating point, E4M3",
      .source = "vLLM fp8 and fp8_per_token_head, TensorRT-LLM, SGLang; OCP 8-bit floating point",
      .tier = 2,
      .deviation =
          "`head` takes the prompt's largest number over X; vLLM's calculate_kv_scales divides by 200 and 100, "
          "llm-compressor calibrates on other text."};
  double scale = 1;

  static void declare(auto& d) {
    d.real_or_words("scale", &Fp8::scale, {1e-30, 1e30}, {"head", "token"},
                    "divisor of the numbers: a constant, from the kv head's prompt, or from each row");
  }
  static constexpr SmallFloat number() { return kWide ? e5m2() : e4m3(); }
  CodedBytes bytes(RowPart, int32_t width) const { return {width, scale == kScaleOfToken ? 4 : 0}; }
  int64_t static_bytes(RowPart, int32_t) const { return is_calibrated() ? 4 : 0; }
  bool is_calibrated() const { return scale == kScaleOfHead; }
  std::vector<double> calibrate(RowPart, int32_t, std::span<const double> rows) const {
    return {scale_of(largest_magnitude(rows))};
  }

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return code_fp8(team, row.x, number(), scale_for(team, row));
  }

 private:
  static double scale_of(double largest) {
    const double s = largest / number().largest;
    return to_float32(s > 1e-6 ? s : 1e-6);
  }
  template <Team T>
  double scale_for(const T& team, const CodedRow& row) const {
    if (scale == kScaleOfHead) return row.calibrated[0];
    if (scale != kScaleOfToken) return to_float32(scale);
    return scale_of(team.largest(row.width(), [&](int32_t i) { return std::fabs(row.x[size_t(i)]); }).score);
  }
};
// Rows of latent attention in E4M3, their rotated part in bfloat16.
//  1. The first `rope` numbers are rounded to bfloat16.
//  2. The others are tiles of 128: s = float32 of max(largest |x| / 448, 2^-126), read back E(x / s) * s.
struct Fp8DsMla {
  static constexpr FormatInfo info{
      .name = "fp8_ds_mla",
      .title = "latents in E4M3 by tiles of 128, the rotated part in bfloat16: 656 bytes a token of DeepSeek V3",
      .source = "FlashMLA fp8 cache; vLLM fp8_ds_mla",
      .tier = 2,
      .of_latents = true};
  static constexpr int32_t kTile = 128;
  int32_t rope = 64;

  static void declare(auto& d) {
    d.integer("rope", &Fp8DsMla::rope, {1, 4096}, "numbers of the rotated part of a row");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    const int32_t apart = rope < width ? rope : width;
    return {2 * apart + width - apart, 4 * groups_of(width - apart, kTile)};
  }

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const size_t apart = size_t(rope < row.width() ? rope : row.width());
    const std::span<double> latent = row.x.subspan(apart);
    team.each(int32_t(apart), [&](int32_t i) { row.x[size_t(i)] = to_bfloat16(row.x[size_t(i)]); });
    return tally(team, groups_of(int32_t(latent.size()), kTile), [&](int32_t tile) {
      const std::span<double> x = group_of(latent, kTile, tile);
      const double largest = largest_magnitude(x) / e4m3().largest,
                   scale = to_float32(largest > 0x1p-126 ? largest : 0x1p-126);
      return code_fp8(SerialTeam{}, x, e4m3(), scale);
    });
  }
};

using Fp8E4M3 = Fp8<false>;
using Fp8E5M2 = Fp8<true>;

}  // namespace kvreplay
