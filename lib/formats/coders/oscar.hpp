#pragma once
#include <map>
#include <string>

#include "core/linear.hpp"
#include "core/select.hpp"
#include "formats/row_text.hpp"

namespace kvreplay {

// OSCAR: 2-bit integers after a rotation that follows the prompt's queries (keys) and its attention (values).
// For each kv head, once after the prompt:
//  1. C_Q = mean of q q^T over its rows and the query heads of the group.
//  2. w_j = k_j^T C_Q k_j, scaled to mean 1; C_S = mean of w_j v_j v_j^T.
//  3. U = eigenvectors of C_Q (keys) or C_S (values) by descending eigenvalue. The number of largest magnitude of each
//  is
//     positive (the first if equal). H = Walsh-Hadamard / sqrt(width).
//  4. Column br(i) of R is column i of U H, where br reverses the bits of i.
// For each row:
//  5. y = x R.
//  6. clip > 0: T = the number at index min(floor(clip width), width - 1) of |y| in ascending order; y is clamped to
//  +-T.
//  7. For each group: s = max(max - min, 1e-8) / 3, z = -min / s, code = trunc(y / s + z + 0.5) within 0 .. 3.
//  8. Read back: (code - r(z)) r(s), r = rounding to `scales`, times R^T.
struct Oscar {
  enum class Scales : int32_t { f16, f32 };
  enum class Calibration : int32_t { self };
  static constexpr FormatInfo info{
      .name = "oscar",
      .title = "2-bit integers, rotated by the prompt's queries and attention",
      .source = "OSCAR, arXiv 2605.17757; FutureMLS-Lab/OSCAR, compute_kv_rotation.py (qqt, sst, r_h_pbr)",
      .tier = 3,
      .deviation =
          "the release takes one rotation a layer from other text, here each kv head has its own from its prompt. "
          "The release leaves signs of eigenvectors to its library and stores scales in float32. Its LLOYD_MAX path "
          "is left out. Equal eigenvalues leave the rotation open: in `extras`, row_eigenvalue_gap is the smallest "
          "difference of neighbours over the largest.",
      .power_of_two = true};
  double clip_key = 0.96, clip_value = 0.92;
  int32_t group = 128;
  Scales scales = Scales::f16;
  Calibration calibration = Calibration::self;

  static void declare(auto& d) {
    d.real("clip_key", &Oscar::clip_key, {0, 1}, "share of a key's numbers that are not clipped; 0: none is");
    d.real("clip_value", &Oscar::clip_value, {0, 1}, "share of a value's numbers that are not clipped; 0: none is");
    d.integer("group", &Oscar::group, {1, 1 << 16}, "numbers of a row that share offset and step");
    d.choice("scales", &Oscar::scales, {"f16", "f32"}, "how offsets and steps are stored");
    d.choice("calibration", &Oscar::calibration, {"self"}, "text whose queries and values give the rotations");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    const int64_t of_group = scales == Scales::f16 ? 4 : 8;
    return {bytes_of_bits(2 * int64_t(width)), of_group * groups_of(width, group)};
  }
  static bool is_calibrated() { return true; }
  static RowRotation rotation(RowPart) { return RowRotation::none; }  // R is applied below
  static int64_t model_numbers(RowPart, int32_t width) { return int64_t(width) * width; }
  // R [width, width], then the smallest relative difference of neighbouring eigenvalues.
  static std::vector<double> calibrate(RowPart part, const PromptRows& prompt);
  static void report(RowPart part, int32_t width, const double* constants, std::map<std::string, double>& extras);

  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const int32_t n = row.width();
    const auto rotation = [&](int64_t i) { return std::span(row.calibrated + i * n, size_t(n)); };
    const std::span<double> y(row.work, size_t(n));
    weighted_sum(
        n, [&](int32_t i) { return row.x[size_t(i)]; }, rotation, y);
    const double limit = clip_limit(team, y, row.part == RowPart::key ? clip_key : clip_value);
    const CodeTally all =
        tally(team, groups_of(n, group), [&](int32_t g) { return code_group(group_of(y, group, g), limit); });
    team.each(n, [&](int32_t i) { row.x[size_t(i)] = dot(rotation(i).data(), row.work, n); });
    return all;
  }

 private:
  template <Team T>
  static double clip_limit(const T& team, std::span<const double> y, double clip) {
    if (clip == 0) return INFINITY;
    const auto n = int32_t(y.size()), at = int32_t(std::floor(clip * n)), rank = at < n - 1 ? at : n - 1;
    return score_at_rank(team, n, n - rank, [&](int32_t i) { return std::fabs(y[size_t(i)]); });
  }
  CodeTally code_group(std::span<double> y, double limit) const {
    const auto stored = [&](double x) { return scales == Scales::f16 ? to_float16(x) : to_float32(x); };
    CodeTally t;
    for (double& number : y) {
      t.clipped += std::fabs(number) > limit ? 1 : 0;
      number = clamp_to(number, -limit, limit);
    }
    const auto [low, high] = extremes_of(y);
    const double range = high - low, s = (range > 1e-8 ? range : 1e-8) / 3, z = -low / s;
    const double step = stored(s), zero = stored(z);
    t.misfits = std::isfinite(step) && std::isfinite(zero) ? 0 : 1;
    for (double& number : y) {
      const double back = (clamp_to(std::trunc(number / s + z + 0.5), 0, 3) - zero) * step;
      t.note(number, back);
      number = back;
    }
    return t;
  }
};

}  // namespace kvreplay
