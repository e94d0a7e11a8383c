#pragma once
#include "formats/coders/fp8.hpp"

namespace kvreplay {

// NVFP4: E2M1 in blocks of 16 numbers. Each block has a scale in E4M3, on top of one common scale g.
//  1. g = float32 of `scale`; head: largest |x| of the prompt / (6 * 448).
//  2. For each block: t = E4M3(largest |x| / (6 g)), s = t g.
//  3. Read back: E2M1(x / s) s; 0 where s = 0.
// four_over_six: also tries 4 in place of 6 and takes it where its squared error is strictly smaller.
struct NvFp4 {
  static constexpr int32_t kBlock = 16;
  enum class Search : int32_t { max, four_over_six };
  static constexpr FormatInfo info{
      .name = "nvfp4",
      .title = "4-bit floating point, scales of 16 numbers in E4M3",
      .source = "vLLM nvfp4 and nvfp4_4over6, TensorRT-LLM, ggml NVFP4",
      .tier = 2,
      .deviation =
          "vLLM divides by approximate reciprocals. With scale 1 a block whose largest number is at most "
          "6 * 2^-10 reads back as 0.",
      .multiple_of = kBlock};
  double scale = 1;
  Search search = Search::max;

  static void declare(auto& d) {
    d.real_or_words("scale", &NvFp4::scale, {1e-30, 1e30}, {"head"},
                    "common scale of all blocks: a constant, or from the kv head's prompt");
    d.choice("search", &NvFp4::search, {"max", "four_over_six"}, "which scale a block takes");
  }
  CodedBytes bytes(RowPart, int32_t width) const { return {width / 2, width / kBlock}; }
  int64_t static_bytes(RowPart, int32_t) const { return is_calibrated() ? 4 : 0; }
  bool is_calibrated() const { return scale == kScaleOfHead; }
  std::vector<double> calibrate(RowPart, int32_t, std::span<const double> rows) const {
    return {to_float32(largest_magnitude(rows) / (e2m1().largest * e4m3().largest))};
  }

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const double g = is_calibrated() ? row.calibrated[0] : to_float32(scale);
    return tally(team, row.width() / kBlock, [&](int32_t b) {
      const std::span<double> x = group_of(row.x, kBlock, b);
      const double largest = largest_magnitude(x);
      const auto step = [&](double over) { return g > 0 ? e4m3()(largest / (over * g)) * g : 0.0; };
      double s = step(6);
      if (search == Search::four_over_six && error(x, step(4)) < error(x, s)) s = step(4);
      CodeTally t;
      for (double& number : x) {
        const double back = read_back(number, s);
        t.note(number, back, s > 0 && std::fabs(e2m1().rounded(number / s)) > e2m1().largest);
        number = back;
      }
      return t;
    });
  }

 private:
  static double read_back(double x, double s) { return s > 0 ? e2m1()(x / s) * s : 0; }
  static double error(std::span<const double> x, double s) {
    double sum = 0;
    for (const double number : x) sum += (number - read_back(number, s)) * (number - read_back(number, s));
    return sum;
  }
};

}  // namespace kvreplay
