#pragma once
#include "core/cache.hpp"
#include "core/linear.hpp"
#include "core/rotary.hpp"
#include "formats/all.hpp"

// Codes the rows of a cache one by one.

namespace kvreplay {

// One part of a row: its format, and offsets (in doubles) into the numbers that RowCoding holds for it.
struct PartCoder {
  PartFormat format;
  bool by_row = false;  // neither source nor coded in blocks of rows
  bool has_outliers = false;
  RowRotation rotation = RowRotation::none;
  int32_t rotate_block = 1;
  const double* numbers = nullptr;  // matrices, tables and calibrated constants
  int64_t count = 0;
  int32_t matrix_at = 0, sketch_at = 0, tables_at = 0, calibrated_at = 0;
  int32_t calibrated_size = 0;  // doubles per kv head

  // Applies the rotation to x, in place. work: [width].
  template <Team T>
  void turn(const T& team, std::span<double> x, double* work) const {
    const double* const matrix = numbers + matrix_at;
    if (rotation == RowRotation::hadamard_signed) change_signs(team, x, matrix);
    if (rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed) transform(team, x);
    if (rotation != RowRotation::haar) return;
    const int32_t n = int32_t(x.size());
    team.each(n, [&](int32_t i) { work[i] = x[size_t(i)]; });
    weighted_sum(
        n, [&](int32_t i) { return work[i]; },
        [&](int32_t i) { return std::span<const double>(matrix + int64_t(i) * n, size_t(n)); }, x);
  }
  template <Team T>
  void turn_back(const T& team, std::span<double> x, double* work) const {
    const double* const matrix = numbers + matrix_at;
    if (rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed) transform(team, x);
    if (rotation == RowRotation::hadamard_signed) change_signs(team, x, matrix);
    if (rotation != RowRotation::haar) return;
    const int32_t n = int32_t(x.size());
    team.each(n, [&](int32_t i) { work[i] = dot(matrix + int64_t(i) * n, x.data(), n); });
    team.each(n, [&](int32_t i) { x[size_t(i)] = work[i]; });
  }
  template <Team T>
  CodeTally code(const T& team, RowPart part, int32_t block, std::span<double> x, double* work) const {
    return code_row(team, format,
                    {part, x, work, numbers + tables_at, numbers + calibrated_at + int64_t(block) * calibrated_size,
                     numbers + sketch_at},
                    RowFormats{});
  }

 private:
  template <Team T>
  static void change_signs(const T& team, std::span<double> x, const double* signs) {
    team.each(int32_t(x.size()), [&](int32_t i) { x[size_t(i)] *= signs[i]; });
  }
  // Walsh-Hadamard transform in blocks; it is its own inverse.
  template <Team T>
  void transform(const T& team, std::span<double> x) const {
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

// Numbers that were coded row by row, over all kv heads.
struct CodedNumbers {
  int64_t all = 0, clipped = 0, flushed = 0;
  void add(const CodedNumbers& more) { all += more.all, clipped += more.clipped, flushed += more.flushed; }
};

struct RowCoder {
  PartCoder key, value;
  RowProtection full_precision;
  bool own_row = false;                // code a row before queries attend to it
  RopeView rope;                       // rotary embedding, for keys coded before RoPE; no pairs: the model has none
  const int32_t* positions = nullptr;  // [tokens], with rope

  enum class Refusal : int32_t { none, range, position };
  // Result of coding one row.
  struct RowOutcome {
    bool changes = false;
    int32_t key_outliers = 0, value_outliers = 0;
    Refusal refused = Refusal::none;
    CodedNumbers numbers;
  };
  struct Coded {
    int32_t changed = 0;  // rows changed
    CodedNumbers numbers;
    Refusal refused = Refusal::none;  // reason of the first row that cannot be coded
    int32_t token = 0;                // that row's token; negative for a row merged from several
    void add(const RowOutcome& row, int32_t of_token) {
      changed += row.changes ? 1 : 0;
      numbers.add(row.numbers);
      if (refused == Refusal::none && row.refused != Refusal::none) refused = row.refused, token = of_token;
    }
  };
  static int64_t scratch_doubles(const HeadShape& s) {
    return int64_t(s.blocks) * (s.dim + s.v_dim) + kWork * (s.dim > s.v_dim ? s.dim : s.v_dim);
  }
  bool by_row() const { return key.by_row || value.by_row; }
  bool is_sink(int32_t token) const { return token >= 0 && token < full_precision.sinks; }

  // Codes every row that is due, the newest first. exempt: number of newest rows to leave exact. known.code(cache, row,
  // all) returns true if it coded the row; otherwise this function codes it.
  template <Team T, class Real, class K>
  Coded code_new(const T& team, BasicCache<Real>& cache, int32_t exempt, double* scratch, const K& known) const {
    Coded all;
    const int32_t rows = cache.size();
    int32_t due = by_row() ? rows - (key.by_row ? cache.coded_keys() : cache.coded_values()) : 0;
    int32_t row = rows - 1;
    for (; row >= 0 && row >= rows - exempt && due > 0; --row) due -= is_exact(cache, row) ? 1 : 0;
    for (int32_t i = 0; i <= row && i < full_precision.sinks && due > 0; ++i)
      due -= is_sink(cache.token(i)) && is_exact(cache, i) ? 1 : 0;
    for (; row >= 0 && due > 0; --row) {
      if (!is_exact(cache, row) || is_sink(cache.token(row))) continue;
      if (!known.code(cache, row, all)) code(team, cache, row, scratch, all);
      --due;
    }
    return all;
  }

  // The cache's mark for a row with this outcome.
  Coding coding_of(const RowOutcome& coded, const Coding& before) const {
    return {key.by_row ? coded.key_outliers : before.key, value.by_row ? coded.value_outliers : before.value};
  }
  // Decodes what the format stores for one row: key(block) and value(block) in, the decoded numbers to scratch as keys
  // [blocks, dim], then values [blocks, v_dim].
  template <Team T, class K, class V>
  RowOutcome code_numbers(const T& team, const HeadShape& s, int32_t token, K of_key, V of_value,
                          double* scratch) const {
    double *const keys = scratch, *const values = keys + s.blocks * s.dim, *const work = values + s.blocks * s.v_dim;
    RowOutcome coded;
    for (int32_t b = 0; b < s.blocks; ++b) {
      double *const own_key = keys + b * s.dim, *const own_value = values + b * s.v_dim;
      code_part(team, RowPart::key, b, token, of_key(b), {own_key, size_t(s.dim)}, work, coded);
      if (s.value_in_key) team.each(s.v_dim, [&](int32_t i) { own_value[i] = own_key[s.dim - s.v_dim + i]; });
      else code_part(team, RowPart::value, b, token, of_value(b), {own_value, size_t(s.v_dim)}, work, coded);
    }
    return coded;
  }

  // Numbers that the coded rows of a cache store beside their codes, over all kv heads.
  template <Team T, class Real>
  int32_t outliers_of(const T& team, const BasicCache<Real>& cache) const {
    if (!key.has_outliers && !value.has_outliers) return 0;
    const auto of = [](bool counts, int32_t coded) { return counts && coded != Coding::kExact ? coded : 0; };
    return int32_t(team.sum(cache.size(), [&](int32_t i) {
      const Coding c = cache.coding(i);
      const bool stores_value = cache.num(i) != 0;
      return double(of(key.has_outliers, c.key) + of(value.has_outliers && stores_value, c.value));
    }));
  }

  // Brings one part of a row into the form that is coded: in double, without rotary embedding, rotated. Returns false
  // if the row has no position.
  template <Team T>
  bool prepare(const T& team, RowPart part, int32_t token, std::span<double> x, double* work) const {
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
  void restore(const T& team, RowPart part, int32_t token, std::span<double> x, double* work) const {
    const PartCoder& p = part == RowPart::key ? key : value;
    p.turn_back(team, x, work);
    if (part != RowPart::key || !p.format.pre_rope || rope.pairs == 0) return;
    scale_rotated(team, x, rope.attention_factor);
    rotate(team, rope, double(positions[token]), x.data());
  }

 private:
  static constexpr int32_t kWork = 3;

  template <class Real>
  bool is_exact(const BasicCache<Real>& cache, int32_t row) const {
    return key.by_row ? cache.coding(row).key_exact() : cache.coding(row).value_exact();
  }
  template <Team T>
  void scale_rotated(const T& team, std::span<double> x, double factor) const {
    if (factor != 1) team.each(2 * rope.pairs, [&](int32_t i) { x[size_t(i)] *= factor; });
  }

  template <Team T, class Real>
  void code(const T& team, BasicCache<Real>& cache, int32_t row, double* scratch, Coded& all) const {
    const HeadShape s = cache.shape();
    const RowOutcome coded = code_numbers(
        team, s, cache.token(row), [&](int32_t b) { return cache.key(row, b); },
        [&](int32_t b) { return cache.value(row, b); }, scratch);
    const Coding before = cache.coding(row);
    const double *const keys = scratch, *const values = keys + s.blocks * s.dim;
    if (coded.changes)
      cache.recode(
          team, row, [&](int32_t b, int32_t c) { return Real(keys[b * s.dim + c]); },
          [&](int32_t b, int32_t c) { return Real(values[b * s.v_dim + c]); });
    cache.set_coding(row, coding_of(coded, before));
    all.add(coded, cache.token(row));
  }
  // Codes `numbers` and writes the decoded numbers to `to`.
  template <Team T, class Real>
  void code_part(const T& team, RowPart part, int32_t block, int32_t token, std::span<const Real> numbers,
                 std::span<double> to, double* work, RowOutcome& coded) const {
    const PartCoder& p = part == RowPart::key ? key : value;
    const int32_t n = int32_t(numbers.size());
    team.each(n, [&](int32_t i) { to[size_t(i)] = double(numbers[size_t(i)]); });
    if (!p.by_row) return;
    const bool is_finite = team.count(n, [&](int32_t i) { return !std::isfinite(to[size_t(i)]); }) == 0;
    const bool has_position = prepare(team, part, token, to, work);
    const CodeTally t = p.code(team, part, block, to, work);
    restore(team, part, token, to, work);
    const Refusal why = !has_position                 ? Refusal::position
                        : t.misfits > 0 || !is_finite ? Refusal::range
                                                      : Refusal::none;
    if (coded.refused == Refusal::none) coded.refused = why;
    coded.numbers.add({n, t.clipped, t.flushed});
    (part == RowPart::key ? coded.key_outliers : coded.value_outliers) += t.outliers;
    const int32_t changed = team.count(n, [&](int32_t i) { return Real(to[size_t(i)]) != numbers[size_t(i)]; });
    coded.changes = coded.changes || changed > 0;
  }
};

}  // namespace kvreplay
