#pragma once
#include <span>

#include "core/quantise.hpp"
#include "core/row_format.hpp"
#include "core/team.hpp"

// A row format is a small, trivially copyable struct in its own file of formats/coders. It must define
//   info                     its name and source
//   declare(d)               its parameters (parameters/describe.hpp)
//   bytes(part, width)       bytes of one coded row
// and, if it codes rows one by one,
//   code(team, CodedRow)     replaces a row by its decoded numbers
// and may define
//   static_bytes(part, width)           bytes stored once for a kv head
//   rotation(part)                      a fixed rotation; such formats take no `rotate`
//   tables(part, width)                 numbers that code() looks up and no trace changes (code books)
//   is_calibrated(), calibrate(part, width, rows)   constants from a prompt, computed once for each kv head
//   calibrate(part, PromptRows)         likewise, for constants that depend on queries or on both parts
//   model_numbers(part, width)          how many of the constants belong to the model: reported, not charged
//   report(part, width, constants, extras)   what results say of a kv head's constants
//   sketches()                          whether code() reads a Gaussian matrix
//   kOutlierBytes, expected_outliers(part, width)   bytes of a number stored beside the codes; their average count
//   kSlot                               both parts of a row together are padded to a multiple of this many bytes

namespace kvreplay {

struct FormatInfo {
  const char* name;   // as in configurations
  const char* title;  // one line for tables
  const char* source;
  int tier;
  const char* deviation = "";  // how the format deviates from the source, or ""
  int32_t multiple_of = 1;     // the width of a row must be a multiple of this; if parts_differ, that of a value
  bool power_of_two = false;   // the width of a row must be a power of two
  bool parts_differ = false;   // keys and values are coded by different rules
  bool quantises = true;       // changes every number; false: only numbers that do not fit
  bool by_block = false;       // several rows are coded together
  bool keys_pre_rope = false;  // default of `keys`
  bool of_latents = false;     // takes only rows of latent attention, their rotated numbers first
  RowRotation default_rotate = RowRotation::none;
};

// Bytes of one coded row of one part: codes, rounded up to a byte, and scales or other numbers stored beside them.
struct CodedBytes {
  int64_t codes = 0, scales = 0;
};
constexpr int64_t bytes_of_bits(int64_t bits) { return (bits + 7) / 8; }

// Counts of special cases among the numbers of a row.
struct CodeTally {
  int32_t clipped = 0;   // beyond the largest number of the format
  int32_t flushed = 0;   // not zero, but read back as zero
  int32_t misfits = 0;   // an offset, step or norm beyond the range in which it is stored
  int32_t outliers = 0;  // stored beside the codes

  void add(const CodeTally& more) {
    clipped += more.clipped, flushed += more.flushed, misfits += more.misfits, outliers += more.outliers;
  }
  void note(double x, double read_back, bool is_clipped = false) {
    clipped += is_clipped ? 1 : 0;
    flushed += x != 0 && read_back == 0 ? 1 : 0;
  }
};

// The prompt of one kv head as recorded: keys [rows, dim], values [rows, v_dim], and the mean of q q^T over its rows
// and the query heads of the group [dim, dim].
struct PromptRows {
  int32_t dim, v_dim;
  std::span<const double> keys, values, query_moment;
};

// One part of one row, rotated, ready to be coded.
struct CodedRow {
  RowPart part;
  std::span<double> x;
  double* work;              // [3 * width]
  const double* tables;      // from the format's tables()
  const double* calibrated;  // from its calibrate(), for this kv head
  const double* sketch;      // [width, width], followed by its transpose
  int32_t width() const { return int32_t(x.size()); }
};

// Sums f(i), a CodeTally, over n parts of a row (groups or numbers). Counts must be below 2^13 each.
template <Team T, class F>
CodeTally tally(const T& team, int32_t n, F f) {
  constexpr double k = 8192;
  double packed = team.sum(n, [&](int32_t i) {
    const CodeTally t = f(i);
    return t.clipped + k * (t.flushed + k * (t.misfits + k * t.outliers));
  });
  const auto take = [&] {
    const double rest = std::floor(packed / k), low = packed - rest * k;
    packed = rest;
    return int32_t(low);
  };
  CodeTally all;
  all.clipped = take(), all.flushed = take(), all.misfits = take(), all.outliers = take();
  return all;
}

// Groups of neighbouring numbers that share a scale; the last group may be shorter.
inline int32_t groups_of(int32_t width, int32_t group) { return (width + group - 1) / group; }
inline std::span<double> group_of(std::span<double> x, int32_t group, int32_t i) {
  const int32_t first = i * group, left = int32_t(x.size()) - first;
  return x.subspan(size_t(first), size_t(left < group ? left : group));
}
inline double largest_magnitude(std::span<const double> x) {
  double most = 0;
  for (const double number : x) most = std::fabs(number) > most ? std::fabs(number) : most;
  return most;
}
struct Extremes {
  double low, high;
};
inline Extremes extremes_of(std::span<const double> x) {
  Extremes e{x[0], x[0]};
  for (const double number : x) e = {number < e.low ? number : e.low, number > e.high ? number : e.high};
  return e;
}
// The level nearest to x. levels are ascending; an x midway between two takes the upper.
inline double nearest_level(std::span<const double> levels, double x) {
  size_t i = 0;
  while (i + 1 < levels.size() && (levels[i] + levels[i + 1]) / 2 <= x) ++i;
  return levels[i];
}
inline bool fits_float16(double x) { return std::isfinite(to_float16(x)); }
inline double clamp_to(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

}  // namespace kvreplay
