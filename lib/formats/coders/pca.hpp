#pragma once
#include "core/linear.hpp"
#include "formats/row_text.hpp"

namespace kvreplay {

// Principal components of the prompt's rows, with more bits where the variance is larger (the transform of KVTC).
//  1. Mean and covariance of the prompt's rows from `calibrate_from` on; eigenvectors by descending eigenvalue lambda.
//  2. bits * width times: one more bit for the component with the largest lambda (D_b - D_b+1), where D_b is the error
//     of the normal distribution's code book of b bits. At most 5 bits each; ties: the first.
//  3. Component / sqrt(lambda) takes the nearest level; a component without bits reads back as its mean.
struct Pca {
  static constexpr int32_t kMostBits = 5;
  static constexpr FormatInfo info{
      .name = "pca",
      .title = "principal components, bits by variance",
      .source = "KVTC, arXiv 2511.01815, simplified",
      .tier = 3,
      .deviation =
          "one basis for each kv head from the prompt itself, no entropy coding. The basis is charged as "
          "float16 and used unrounded.",
      .keys_pre_rope = true};
  int32_t bits = 2;
  int32_t calibrate_from = 4;

  static void declare(auto& d) {
    d.integer("bits", &Pca::bits, {1, kMostBits}, "bits of a number on average");
    d.integer("calibrate_from", &Pca::calibrate_from, {0, 1 << 30}, "first row of the prompt used for the basis");
  }
  CodedBytes bytes(RowPart, int32_t width) const { return {bytes_of_bits(int64_t(width) * bits), 0}; }
  static int64_t static_bytes(RowPart, int32_t width) { return 2 * (int64_t(width) * width + 2 * width) + width; }
  static bool is_calibrated() { return true; }
  // mean [width], sqrt(lambda) [width], bits [width], eigenvectors [width, width] (one per row).
  std::vector<double> calibrate(RowPart part, int32_t width, std::span<const double> rows) const;
  // Levels for 1, 2, ... bits, concatenated.
  static std::vector<double> tables(RowPart part, int32_t width);

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const int32_t n = row.width();
    const double *const mean = row.calibrated, *const root = mean + n, *const depth = root + n,
                        *const basis = depth + n;
    double* const component = row.work;
    team.each(n, [&](int32_t i) { row.x[size_t(i)] -= mean[i]; });
    team.each(n, [&](int32_t j) {
      const double s = dot(basis + int64_t(j) * n, row.x.data(), n);
      component[j] = depth[j] > 0 ? root[j] * nearest(s / root[j], int32_t(depth[j]), row.tables) : 0;
    });
    weighted_sum(
        n, [&](int32_t j) { return component[j]; },
        [&](int32_t j) { return std::span(basis + int64_t(j) * n, size_t(n)); }, row.x);
    team.each(n, [&](int32_t i) { row.x[size_t(i)] += mean[i]; });
    return {};
  }

 private:
  static double nearest(double z, int32_t bits, const double* tables) {
    const size_t n = size_t(1) << bits;
    return nearest_level({tables + n - 2, n}, z);
  }
};

}  // namespace kvreplay
