#pragma once
#include "core/linear.hpp"
#include "formats/code_books.hpp"
#include "formats/coders/fp8.hpp"

namespace kvreplay {

// A row divided by its norm, rotated, then coded with one code book for all numbers (TurboQuant).
//  1. N = ||x||, y = x / (N + 1e-8), rotated.
//  2. code = number of midpoints of the code book <= y sqrt(width).
//  3. c = level / sqrt(width); norm correction: c / sqrt(sum c^2 + 1e-16).
//  4. Read back: float16(N) c, rotated back.
// levels: [2^bits], for numbers with variance 1. `to` [width] receives c.
template <Team T>
void nearest_levels(const T& team, std::span<const double> y, std::span<const double> levels, double* to) {
  const double root = std::sqrt(double(y.size()));
  team.each(int32_t(y.size()), [&](int32_t i) { to[i] = nearest_level(levels, y[size_t(i)] * root) / root; });
}
template <Team T>
double norm_of(const T& team, const double* x, int32_t n) {
  return std::sqrt(team.sum(n, [&](int32_t i) { return x[i] * x[i]; }));
}
// Step 1: x becomes y; returns N.
template <Team T>
double divide_by_norm(const T& team, std::span<double> x) {
  const double norm = norm_of(team, x.data(), int32_t(x.size()));
  team.each(int32_t(x.size()), [&](int32_t i) { x[size_t(i)] /= norm + 1e-8; });
  return norm;
}
template <Team T>
CodeTally code_by_levels(const T& team, const CodedRow& row, int32_t bits, bool norm_correction) {
  const int32_t n = row.width();
  const double stored = to_float16(divide_by_norm(team, row.x));
  nearest_levels(team, row.x, {row.tables, size_t(1) << bits}, row.work);
  const double length = norm_of(team, row.work, n);
  const double factor = norm_correction ? stored / std::sqrt(length * length + 1e-16) : stored;
  team.each(n, [&](int32_t i) { row.x[size_t(i)] = factor * row.work[i]; });
  CodeTally t;
  t.misfits = std::isfinite(stored) ? 0 : 1;
  return t;
}

// TurboQuant's rotations and code books, named as in configurations.
enum class TqRotation : int32_t { haar, hadamard, hadamard_signed };
enum class TqBook : int32_t { beta, gauss };
constexpr RowRotation kTqRotations[] = {RowRotation::haar, RowRotation::hadamard, RowRotation::hadamard_signed};
inline std::vector<double> tq_levels(TqBook book, int32_t bits, int32_t width) {
  return book == TqBook::gauss ? gauss_levels(bits) : beta_levels(bits, width);
}

// TurboQuant, Algorithm 1.
struct TqMse {
  static constexpr FormatInfo info{.name = "tq_mse",
                                   .title = "rotated, one code book for all numbers",
                                   .source = "TurboQuant, arXiv 2504.19874, Algorithm 1",
                                   .tier = 3};
  int32_t bits = 3;
  TqRotation rotation_kind = TqRotation::haar;
  TqBook codebook = TqBook::beta;
  bool norm_correction = false;

  static void declare(auto& d) {
    d.integer("bits", &TqMse::bits, {1, 5}, "bits of a number");
    d.choice("rotation", &TqMse::rotation_kind, {"haar", "hadamard", "hadamard_signed"},
             "rotation of rows before coding");
    d.choice("codebook", &TqMse::codebook, {"beta", "gauss"},
             "assumed density of a rotated number: exact, or its limit for large widths");
    d.boolean("norm_correction", &TqMse::norm_correction, "rescale a decoded row to its stored norm");
  }
  CodedBytes bytes(RowPart, int32_t width) const { return {bytes_of_bits(int64_t(width) * bits), 2}; }
  RowRotation rotation(RowPart) const { return kTqRotations[int32_t(rotation_kind)]; }
  std::vector<double> tables(RowPart, int32_t width) const { return tq_levels(codebook, bits, width); }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return code_by_levels(team, row, bits, norm_correction);
  }
};

// TurboQuant, Algorithm 2: spends one bit on the signs of a sketch of the error, which makes inner products unbiased.
//  1. c: as tq_mse with bits - 1.
//  2. r = y - c, gamma = float16(||r||).
//  3. The signs of r S, with 0 as +.
//  4. y' = c + sqrt(pi / 2) / width gamma signs S^T; read back: float16(N) y', rotated back.
struct TqProd {
  static constexpr FormatInfo info{.name = "tq_prod",
                                   .title = "as tq_mse with a bit less, and a sign sketch of the rest",
                                   .source = "TurboQuant, arXiv 2504.19874, Algorithm 2",
                                   .tier = 3};
  int32_t bits = 3;
  TqRotation rotation_kind = TqRotation::haar;
  TqBook codebook = TqBook::beta;

  static void declare(auto& d) {
    d.integer("bits", &TqProd::bits, {2, 5}, "bits of a number, the sign of the sketch included");
    d.choice("rotation", &TqProd::rotation_kind, {"haar", "hadamard", "hadamard_signed"},
             "rotation of rows before coding");
    d.choice("codebook", &TqProd::codebook, {"beta", "gauss"},
             "assumed density of a rotated number: exact, or its limit for large widths");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    return {bytes_of_bits(int64_t(width) * (bits - 1)) + bytes_of_bits(width), 4};
  }
  RowRotation rotation(RowPart) const { return kTqRotations[int32_t(rotation_kind)]; }
  bool sketches() const { return true; }
  std::vector<double> tables(RowPart, int32_t width) const { return tq_levels(codebook, bits - 1, width); }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    const int32_t n = row.width();
    double *const c = row.work, *const r = c + n, *const signs = r + n;
    const double stored = to_float16(divide_by_norm(team, row.x));
    nearest_levels(team, row.x, {row.tables, size_t(1) << (bits - 1)}, c);
    team.each(n, [&](int32_t i) { r[i] = row.x[size_t(i)] - c[i]; });
    const double gamma = to_float16(norm_of(team, r, n)), factor = std::sqrt(std::acos(-1.0) / 2) / n * gamma;
    const auto sketch = [&](int64_t i) { return std::span(row.sketch + i * n, size_t(n)); };
    const auto transposed = [&](int64_t i) { return sketch(n + i); };
    weighted_sum(n, [&](int32_t i) { return r[i]; }, sketch, {signs, size_t(n)});
    team.each(n, [&](int32_t j) { signs[j] = signs[j] >= 0 ? 1 : -1; });
    weighted_sum(
        n, [&](int32_t j) { return signs[j]; }, transposed, row.x);
    team.each(n, [&](int32_t i) { row.x[size_t(i)] = stored * (c[i] + factor * row.x[size_t(i)]); });
    CodeTally t;
    t.misfits = std::isfinite(stored) ? 0 : 1;
    return t;
  }
};

// vLLM's presets. Keys: as tq_mse with a Hadamard matrix, the normal distribution's code book and norm correction
// (k8v4: as fp8_e4m3). Values: not rotated, the whole row is one group:
//  s = max((max - min) / L, 1e-8), L = 2^bits - 1; code = clip(floor((v - min) / s + 0.5), 0, L);
//  read back: code float16(s) + float16(min).
template <int kKeyBits, int kValueBits>
struct TurboQuant {
  static constexpr FormatInfo info{
      .name = kKeyBits == 8     ? "turboquant_k8v4"
              : kKeyBits == 4   ? "turboquant_4bit_nc"
              : kValueBits == 4 ? "turboquant_k3v4_nc"
                                : "turboquant_3bit_nc",
      .title = kKeyBits == 8     ? "8-bit keys, 4-bit values"
               : kKeyBits == 4   ? "rotated 4-bit keys, 4-bit values"
               : kValueBits == 4 ? "rotated 3-bit keys, 4-bit values"
                                 : "rotated 3-bit keys, 3-bit values",
      .source = "vLLM, vllm/model_executor/layers/quantization/turboquant, PR 38479",
      .tier = 2,
      .deviation =
          "vLLM's levels are up to 0.0017 off, and it takes widths that are powers of two only; it adds "
          "`skip_layers: [0, 1, -2, -1]` and `own_row: coded`, which the preset's name does not imply."};
  static void declare(auto&) {}
  static CodedBytes bytes(RowPart part, int32_t width) {
    if (part == RowPart::value) return {bytes_of_bits(int64_t(width) * kValueBits), 4};
    return kKeyBits == 8 ? CodedBytes{width, 0} : CodedBytes{bytes_of_bits(int64_t(width) * kKeyBits), 2};
  }
  // Both parts of a row share one slot.
  static constexpr int32_t kSlot = 2;
  static RowRotation rotation(RowPart part) {
    return part == RowPart::value || kKeyBits == 8 ? RowRotation::none : RowRotation::hadamard;
  }
  static std::vector<double> tables(RowPart part, int32_t) {
    return part == RowPart::value || kKeyBits == 8 ? std::vector<double>{} : gauss_levels(kKeyBits);
  }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    if (row.part == RowPart::value) return code_value(team, row.x);
    if constexpr (kKeyBits == 8) return code_fp8(team, row.x, e4m3(), 1);
    else return code_by_levels(team, row, kKeyBits, true);
  }

 private:
  template <Team T>
  static CodeTally code_value(const T& team, std::span<double> v) {
    constexpr double kLevels = (1 << kValueBits) - 1;
    const double high = team.largest(int32_t(v.size()), [&](int32_t i) { return v[size_t(i)]; }).score;
    const double low = team.smallest(int32_t(v.size()), [&](int32_t i) { return v[size_t(i)]; }).score;
    const double range = (high - low) / kLevels, s = range > 1e-8 ? range : 1e-8;
    const double step = to_float16(s), offset = to_float16(low);
    CodeTally all = tally(team, int32_t(v.size()), [&](int32_t i) {
      double& x = v[size_t(i)];
      CodeTally t;
      const double back = clamp_to(std::floor((x - low) / s + 0.5), 0, kLevels) * step + offset;
      t.note(x, back);
      x = back;
      return t;
    });
    all.misfits += std::isfinite(step) && std::isfinite(offset) ? 0 : 1;
    return all;
  }
};
using TurboQuantK8V4 = TurboQuant<8, 4>;
using TurboQuant4 = TurboQuant<4, 4>;
using TurboQuantK3V4 = TurboQuant<3, 4>;
using TurboQuant3 = TurboQuant<3, 3>;

}  // namespace kvreplay
