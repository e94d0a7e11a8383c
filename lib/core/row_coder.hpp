#pragma once
#include "core/cache.hpp"
#include "core/method_info.hpp"
#include "core/quantise.hpp"

// Formats that code each row by itself: f32, f16, bf16, int8 and int4 (methods.md, "row formats"). The same
// text for a CPU thread and a device's block.

namespace kvreplay {

struct RowCoder {
  RowFormat::Kind kind = RowFormat::Kind::source;
  int32_t group = 0;  // numbers that share offset and step; of formats that quantise

  struct Coded {
    int32_t changed = 0;   // rows; those whose groups hold a single number do not count
    bool refused = false;  // some number is beyond 65504, the range of float16
    int32_t token = 0;     // of the first row that was refused; negative: merged from several
  };
  // Codes every row that has not been, the newest first. scratch: [blocks * (dim + v_dim)].
  template <Team T, class Real>
  KVR_FN Coded code_new(const T& team, BasicCache<Real>& cache, Real* scratch) const {
    Coded all;
    int32_t due = cache.size() - cache.coded_keys();
    for (int32_t row = cache.size() - 1; due > 0; --row) {
      if (!cache.coding(row).key_exact()) continue;
      code(team, cache, row, scratch, all);
      --due;
    }
    return all;
  }

 private:
  KVR_FN bool quantises() const { return kind >= RowFormat::Kind::int8; }
  KVR_FN int32_t levels() const { return levels_of(kind == RowFormat::Kind::int8 ? 8 : 4); }

  template <Team T, class Real>
  KVR_FN void code(const T& team, BasicCache<Real>& cache, int32_t row, Real* scratch, Coded& all) const {
    const HeadShape s = cache.shape();
    Real *const keys = scratch, *const values = scratch + s.blocks * s.dim;
    int32_t misfits = 0, changed = quantises() ? 1 : 0;
    for (int32_t b = 0; b < s.blocks; ++b) {
      misfits += code_part(team, cache.key(row, b), keys + b * s.dim, changed);
      misfits += code_part(team, cache.value(row, b), values + b * s.v_dim, changed);
    }
    if (misfits > 0 && !all.refused) all.refused = true, all.token = cache.token(row);
    if (changed > 0) {
      cache.recode(
          team, row, [&](int32_t b, int32_t c) { return keys[b * s.dim + c]; },
          [&](int32_t b, int32_t c) { return values[b * s.v_dim + c]; });
      const int32_t width = s.dim > s.v_dim ? s.dim : s.v_dim;
      all.changed += width > 1 && (!quantises() || group > 1) ? 1 : 0;
    }
    cache.set_coding(team, row, {0, 0});
  }
  // What is read back of numbers goes to `to`. Returns how many of them, or of their groups, do not fit;
  // counts those that change, where a format may leave numbers as they are.
  template <Team T, class Real>
  KVR_FN int32_t code_part(const T& team, std::span<const Real> numbers, Real* to, int32_t& changed) const {
    const int32_t n = int32_t(numbers.size());
    team.each(n, [&](int32_t i) { to[i] = quantises() ? numbers[size_t(i)] : rounded(numbers[size_t(i)]); });
    if (!quantises()) {
      changed += team.count(n, [&](int32_t i) { return to[i] != numbers[size_t(i)]; });
      return team.count(n, [&](int32_t i) { return !std::isfinite(to[i]); });
    }
    return team.count((n + group - 1) / group, [&](int32_t g) {
      const int32_t first = g * group, count = n - first < group ? n - first : group;
      return !quantise_row(std::span<Real>(to + first, size_t(count)), group, levels());
    });
  }
  template <class Real>
  KVR_FN Real rounded(Real x) const {
    if (kind == RowFormat::Kind::f32) return Real(float(x));
    return Real(kind == RowFormat::Kind::f16 ? to_float16(double(x)) : to_bfloat16(double(x)));
  }
};

}  // namespace kvreplay
