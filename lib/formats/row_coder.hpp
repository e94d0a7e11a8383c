#pragma once
#include "core/cache.hpp"
#include "core/linear.hpp"
#include "core/rotary.hpp"
#include "formats/all.hpp"

// Codes the rows of a cache one by one. The same text for a CPU thread and a device's block.

namespace kvreplay {

// One part of a row: its format, and where the numbers are that it needs (RowCoding). Extents in doubles.
struct PartCoder {
  PartFormat format;
  bool by_row = false;  // neither source nor coded in blocks of rows
  bool has_outliers = false;
  RowRotation rotation = RowRotation::none;
  int32_t rotate_block = 1;
  const double* numbers = nullptr;  // all of them
  int64_t count = 0;
  int32_t matrix_at = 0, sketch_at = 0, tables_at = 0, calibrated_at = 0;
  int32_t calibrated_size = 0;  // of a kv head

  // What is coded of a row x: turned by the rotation. work: [width].
  template <Team T>
  KVR_FN void turn(const T& team, std::span<double> x, double* work) const {
    const double* const matrix = numbers + matrix_at;
    if (rotation == RowRotation::hadamard_signed) change_signs(team, x, matrix);
    if (rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed) transform(team, x);
    if (rotation != RowRotation::haar) return;
    const int32_t n = int32_t(x.size());
    team.each(n, [&](int32_t i) { work[i] = x[size_t(i)]; });
    weighted_sum(
        team, n, [&](int32_t i) { return work[i]; },
        [&](int32_t i) { return std::span<const double>(matrix + int64_t(i) * n, size_t(n)); }, x);
  }
  template <Team T>
  KVR_FN void turn_back(const T& team, std::span<double> x, double* work) const {
    const double* const matrix = numbers + matrix_at;
    if (rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed) transform(team, x);
    if (rotation == RowRotation::hadamard_signed) change_signs(team, x, matrix);
    if (rotation != RowRotation::haar) return;
    const int32_t n = int32_t(x.size());
    team.each(n, [&](int32_t i) { work[i] = dot(matrix + int64_t(i) * n, x.data(), n); });
    team.each(n, [&](int32_t i) { x[size_t(i)] = work[i]; });
  }
  template <Team T>
  KVR_FN CodeTally code(const T& team, RowPart part, int32_t block, std::span<double> x, double* work) const {
    return code_row(team, format,
                    {part, x, work, numbers + tables_at, numbers + calibrated_at + int64_t(block) * calibrated_size,
                     numbers + sketch_at},
                    RowFormats{});
  }

 private:
  template <Team T>
  KVR_FN static void change_signs(const T& team, std::span<double> x, const double* signs) {
    team.each(int32_t(x.size()), [&](int32_t i) { x[size_t(i)] *= signs[i]; });
  }
  // Walsh-Hadamard in blocks, which is its own inverse.
  template <Team T>
  KVR_FN void transform(const T& team, std::span<double> x) const {
    const int32_t n = int32_t(x.size());
    for (int32_t half = 1; half < rotate_block; half *= 2)
      team.each(n / 2, [&](int32_t i) {
        const int32_t at = i / half * 2 * half + i % half;
        double &a = x[size_t(at)], &b = x[size_t(at + half)];
        const double sum = a + b;
        b = a - b, a = sum;
      });
    const double scale = 1 / std::sqrt(double(rotate_block));
    team.each(n, [&](int32_t i) { x[size_t(i)] *= scale; });
  }
};

// Numbers that were coded row by row, of all kv heads.
struct CodedNumbers {
  int64_t all = 0, clipped = 0, flushed = 0;
  KVR_FN void add(const CodedNumbers& more) {
    all += more.all, clipped += more.clipped, flushed += more.flushed;
  }
};

struct RowCoder {
  PartCoder key, value;
  RowProtection full_precision;
  bool own_row = false;              // a row is coded before it is attended
  RopeView rope;                     // of keys that are coded without it; no pairs: there is none
  const int32_t* positions = nullptr;  // [tokens], with rope

  enum class Refusal : int32_t { none, range, position };
  struct Coded {
    int32_t changed = 0;               // rows
    CodedNumbers numbers;
    Refusal refused = Refusal::none;   // of the first row that cannot be coded
    int32_t token = 0;                 // its token; negative: merged from several
  };
  KVR_FN static int64_t scratch_doubles(const HeadShape& s) {
    return int64_t(s.blocks) * (s.dim + s.v_dim) + kWork * (s.dim > s.v_dim ? s.dim : s.v_dim);
  }
  KVR_FN bool by_row() const { return key.by_row || value.by_row; }
  KVR_FN bool is_sink(int32_t token) const { return token >= 0 && token < full_precision.sinks; }

  // Codes every row that is due, the newest first; exempt: newest rows that are not.
  template <Team T, class Real>
  KVR_FN Coded code_new(const T& team, BasicCache<Real>& cache, int32_t exempt, double* scratch) const {
    Coded all;
    const int32_t rows = cache.size();
    int32_t due = by_row() ? rows - (key.by_row ? cache.coded_keys() : cache.coded_values()) : 0;
    int32_t row = rows - 1;
    for (; row >= 0 && row >= rows - exempt && due > 0; --row) due -= is_exact(cache, row) ? 1 : 0;
    for (int32_t i = 0; i <= row && i < full_precision.sinks && due > 0; ++i)
      due -= is_sink(cache.token(i)) && is_exact(cache, i) ? 1 : 0;
    for (; row >= 0 && due > 0; --row) {
      if (!is_exact(cache, row) || is_sink(cache.token(row))) continue;
      code(team, cache, row, scratch, all);
      --due;
    }
    return all;
  }

  // Numbers that the coded rows of a cache store beside their codes, of all kv heads.
  template <Team T, class Real>
  KVR_FN int32_t outliers_of(const T& team, const BasicCache<Real>& cache) const {
    if (!key.has_outliers && !value.has_outliers) return 0;
    const auto of = [](bool counts, int32_t coded) { return counts && coded != Coding::kExact ? coded : 0; };
    return int32_t(team.sum(cache.size(), [&](int32_t i) {
      const Coding c = cache.coding(i);
      return double(of(key.has_outliers, c.key) + of(value.has_outliers, c.value));
    }));
  }

  // A part of a row as it is coded: in double, without rotary embedding, turned. False: the row has no position.
  template <Team T>
  KVR_FN bool prepare(const T& team, RowPart part, int32_t token, std::span<double> x, double* work) const {
    const PartCoder& p = part == RowPart::key ? key : value;
    const bool unrotated = part == RowPart::key && p.format.pre_rope && rope.pairs > 0;
    if (unrotated && token < 0) return false;
    if (unrotated) {
      rotate(team, rope, -double(positions[token]), x.data());
      scale_rotated(team, x, 1 / rope.attention_factor);
    }
    p.turn(team, x, work);
    return true;
  }
  template <Team T>
  KVR_FN void restore(const T& team, RowPart part, int32_t token, std::span<double> x, double* work) const {
    const PartCoder& p = part == RowPart::key ? key : value;
    p.turn_back(team, x, work);
    if (part != RowPart::key || !p.format.pre_rope || rope.pairs == 0) return;
    scale_rotated(team, x, rope.attention_factor);
    rotate(team, rope, double(positions[token]), x.data());
  }

 private:
  static constexpr int32_t kWork = 3;

  template <class Real>
  KVR_FN bool is_exact(const BasicCache<Real>& cache, int32_t row) const {
    return key.by_row ? cache.coding(row).key_exact() : cache.coding(row).value_exact();
  }
  template <Team T>
  KVR_FN void scale_rotated(const T& team, std::span<double> x, double factor) const {
    if (factor != 1) team.each(2 * rope.pairs, [&](int32_t i) { x[size_t(i)] *= factor; });
  }

  template <Team T, class Real>
  KVR_FN void code(const T& team, BasicCache<Real>& cache, int32_t row, double* scratch, Coded& all) const {
    const HeadShape s = cache.shape();
    double *const keys = scratch, *const values = keys + s.blocks * s.dim, *const work = values + s.blocks * s.v_dim;
    const Coding before = cache.coding(row);
    CodeTally of_keys, of_values;
    int32_t changed = 0;
    for (int32_t b = 0; b < s.blocks; ++b) {
      const auto key_row = cache.key(row, b);
      const auto value_row = cache.value(row, b);
      const std::span<double> k(keys + b * s.dim, size_t(s.dim)), v(values + b * s.v_dim, size_t(s.v_dim));
      changed += code_part(team, RowPart::key, b, cache.token(row), key_row, k, work, of_keys, all);
      changed += code_part(team, RowPart::value, b, cache.token(row), value_row, v, work, of_values, all);
    }
    if (of_keys.misfits + of_values.misfits > 0) refuse(Refusal::range, cache.token(row), all);
    all.numbers.add({0, of_keys.clipped + of_values.clipped, of_keys.flushed + of_values.flushed});
    if (changed > 0) {
      all.changed += 1;
      cache.recode(
          team, row, [&](int32_t b, int32_t c) { return Real(keys[b * s.dim + c]); },
          [&](int32_t b, int32_t c) { return Real(values[b * s.v_dim + c]); });
    }
    cache.set_coding(team, row, {key.by_row ? of_keys.outliers : before.key,
                                 value.by_row ? of_values.outliers : before.value});
  }
  KVR_FN static void refuse(Refusal why, int32_t token, Coded& all) {
    if (all.refused == Refusal::none) all.refused = why, all.token = token;
  }
  // What is read back of `numbers` goes to `to`; returns how many of them change.
  template <Team T, class Real>
  KVR_FN int32_t code_part(const T& team, RowPart part, int32_t block, int32_t token, std::span<const Real> numbers,
                           std::span<double> to, double* work, CodeTally& tally, Coded& all) const {
    const PartCoder& p = part == RowPart::key ? key : value;
    const int32_t n = int32_t(numbers.size());
    team.each(n, [&](int32_t i) { to[size_t(i)] = double(numbers[size_t(i)]); });
    if (!p.by_row) return 0;
    all.numbers.all += n;
    tally.misfits += team.count(n, [&](int32_t i) { return !std::isfinite(to[size_t(i)]); });
    if (!prepare(team, part, token, to, work)) return refuse(Refusal::position, token, all), 0;
    tally.add(p.code(team, part, block, to, work));
    restore(team, part, token, to, work);
    return team.count(n, [&](int32_t i) { return Real(to[size_t(i)]) != numbers[size_t(i)]; });
  }
};

}  // namespace kvreplay
