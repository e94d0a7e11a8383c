#pragma once
#include "core/wide.hpp"
#include "formats/row_text.hpp"

namespace kvreplay {

// KVQuant: keys before RoPE by channel, values by row, one code book each, outliers beside them.
//  t = 1 - outliers / 200; quantiles use linear interpolation. For each kv head and part:
//  1. Keys, once: hi, lo = quantiles t, 1 - t of each channel over the prompt's rows from `calibrate_from` on. A number
//     beyond them is an outlier.
//  2. Values, for each row: the quantiles of its channels; a number at or beyond them is an outlier. Then hi, lo are
//     the extremes of the row after the row's median replaces its outliers.
//  3. off = (hi + lo) / 2, half = (hi - lo) / 2, z = (x - off) / half; 0 where half = 0.
//  4. Code book, once: k-means on a line over z of the prompt's numbers that are no outliers.
//  5. Read back: float16(level) float16(half) + float16(off); outliers in float16.
struct KvQuant {
  static constexpr FormatInfo info{
      .name = "kvquant",
      .title = "keys by channel before RoPE, code books, outliers apart",
      .source = "KVQuant, arXiv 2401.18079, and its simquant_module_quantizer.py",
      .tier = 3,
      .deviation =
          "constants come from the prompt itself, not from other text; k-means is not weighted by Fisher "
          "information; each kv head has its own code book.",
      .keys_pre_rope = true};
  int32_t bits = 4;
  double outliers = 1;
  int32_t calibrate_from = 4;

  static void declare(auto& d) {
    d.integer("bits", &KvQuant::bits, {2, 5}, "bits of a number");
    d.real("outliers", &KvQuant::outliers, {0, 20}, "per cent of numbers that are stored beside the codes");
    d.integer("calibrate_from", &KvQuant::calibrate_from, {0, 1 << 30},
              "first row of the prompt used for the constants");
  }
  CodedBytes bytes(RowPart part, int32_t width) const {
    return {bytes_of_bits(int64_t(width) * bits), part == RowPart::value ? 4 : 0};
  }
  static constexpr int64_t kOutlierBytes = 4;  // value and index
  // A row of values has its outliers at or beyond its quantiles: at least one at either end.
  double expected_outliers(RowPart part, int32_t width) const {
    if (part == RowPart::key) return outliers / 100 * width;
    return outliers == 0 ? 0 : 2 * (width - std::ceil((1 - outliers / 200) * (width - 1)));
  }
  int64_t static_bytes(RowPart part, int32_t width) const {
    return 2 * (int64_t(1) << bits) + (part == RowPart::key ? 4 * int64_t(width) : 0);
  }
  static bool is_calibrated() { return true; }
  // Keys: lo [width], hi [width], then the levels. Values: the levels alone.
  std::vector<double> calibrate(RowPart part, int32_t width, std::span<const double> rows) const;

  // The sums are counts, so vectors of any width give the same result.
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    CodeTally all;
    wide([&] { all = code_part(team, row); });
    return all;
  }
  template <Team T>
  CodeTally code_part(const T& team, const CodedRow& row) const {
    const int32_t n = row.width();
    if (row.part == RowPart::key) {
      const double *const lo = row.calibrated, *const hi = lo + n, *const levels = hi + n;
      return tally(team, n, [&](int32_t c) {
        const double x = row.x[size_t(c)];
        return code_number(row.x[size_t(c)], lo[c], hi[c], outliers > 0 && (x > hi[c] || x < lo[c]), levels);
      });
    }
    const RowRange range = range_of(team, row.x, row.work);
    return tally(team, n, [&](int32_t c) {
      return code_number(row.x[size_t(c)], range.lo, range.hi, range.is_outlier(row.x[size_t(c)]), row.calibrated);
    });
  }

  // Range and outlier limits of a row of values.
  struct RowRange {
    double lo, hi;        // extremes of the numbers that are coded
    double below, above;  // a number at or beyond either is an outlier
    bool is_outlier(double x) const { return x <= below || x >= above; }
  };
  // sorted: [width] scratch.
  template <Team T>
  RowRange range_of(const T& team, std::span<const double> x, double* sorted) const {
    const auto n = int32_t(x.size());
    team.each(n, [&](int32_t i) {
      const double own = x[size_t(i)];
      int32_t rank = 0;  // equal numbers keep their order
      KVR_SIMD_SUM(rank) for (int32_t j = 0; j < i; ++j) rank += x[size_t(j)] <= own ? 1 : 0;
      KVR_SIMD_SUM(rank) for (int32_t j = i + 1; j < n; ++j) rank += x[size_t(j)] < own ? 1 : 0;
      sorted[rank] = own;
    });
    if (outliers == 0) return {sorted[0], sorted[n - 1], -INFINITY, INFINITY};
    const double t = 1 - outliers / 200, median = quantile_of({sorted, size_t(n)}, 0.5);
    RowRange r{median, median, quantile_of({sorted, size_t(n)}, 1 - t), quantile_of({sorted, size_t(n)}, t)};
    const int32_t inside = team.count(n, [&](int32_t i) { return !r.is_outlier(sorted[i]); });
    const bool some = inside < n;  // the median replaces at least one outlier
    const double low =
        team.smallest(n, [&](int32_t i) { return r.is_outlier(sorted[i]) ? INFINITY : sorted[i]; }).score;
    const double high =
        team.largest(n, [&](int32_t i) { return r.is_outlier(sorted[i]) ? -INFINITY : sorted[i]; }).score;
    r.lo = some && median < low ? median : low, r.hi = some && median > high ? median : high;
    if (inside == 0) r.lo = r.hi = median;
    return r;
  }
  static double quantile_of(std::span<const double> sorted, double t) {
    const double at = t * double(sorted.size() - 1), below = std::floor(at);
    const size_t i = size_t(below), next = i + 1 < sorted.size() ? i + 1 : i;
    return sorted[i] + (at - below) * (sorted[next] - sorted[i]);
  }

 private:
  CodeTally code_number(double& x, double lo, double hi, bool is_outlier, const double* levels) const {
    CodeTally t;
    const double off = (hi + lo) / 2, half = (hi - lo) / 2, z = half == 0 ? 0 : (x - off) / half;
    const int32_t last = (1 << bits) - 1;
    int32_t code = 0;  // number of midpoints below z; a z on a midpoint takes the lower level
    KVR_SIMD_SUM(code) for (int32_t i = 0; i < last; ++i) code += (levels[i] + levels[i + 1]) / 2 < z ? 1 : 0;
    const double back = is_outlier ? to_float16(x) : to_float16(levels[code]) * to_float16(half) + to_float16(off);
    t.outliers = is_outlier ? 1 : 0;
    t.misfits = std::isfinite(back) ? 0 : 1;
    t.note(x, back);
    x = back;
    return t;
  }
};

}  // namespace kvreplay
