#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/rotary.hpp"
#include "trace/trace.hpp"
#include "trace/trace_info.hpp"

namespace kvreplay {

// Applies a layer's rotary embedding to a key or query once more (times 1) or removes it (times -1), with the attention
// factor.
inline void turn_row(const RopeView& rope, double position, int32_t times, double* row) {
  for (int32_t c = 0; c < 2 * rope.pairs; ++c)
    if (times > 0) row[c] *= rope.attention_factor;
    else row[c] /= rope.attention_factor;
  rotate(SerialTeam{}, rope, times * position, row);
}

// Below: one row of a query head is recomputed and compared with the output that the model recorded.

// Which tokens a row attends to, and how.
struct AttentionRule {
  double scale = 1, softcap = 0;     // softcap 0: none
  std::optional<double> sink_logit;  // enters the denominator only
  LayerWindow window;
  bool causal = true;  // false: the row sees every token of the trace
  int32_t ahead = 0;   // the last token that a row sees, relative to its own
};

struct RecordedRow {
  int64_t row = 0;    // index in q and out
  int32_t token = 0;  // token of the row
  std::vector<double> query, out;
};

// Keys or values of one kv head, [tokens, width].
struct Rows {
  std::span<const float> numbers;
  int64_t width = 0;
  int64_t count() const { return static_cast<int64_t>(numbers.size()) / width; }
  const float* at(int64_t token) const { return numbers.data() + token * width; }
};

// Products of one query with every key, and the root of the sum of their squared terms, which measures how far rounded
// coordinates move a product.
struct Products {
  std::vector<double> dot, spread;  // [tokens]
};
Products products_of(std::span<const double> query, const Rows& keys);

// The tokens first..end-1 that a row sees; empty if it sees none.
struct SeenTokens {
  int64_t first = 0, end = 0;
};
SeenTokens seen_by(const AttentionRule& rule, int32_t token, int64_t tokens);

// The output of a row, [width of values]; zeros if it sees no token.
std::vector<double> attend_row(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token);

// |found - recorded| divided by the larger of their norms; 0 if both are zero.
double deviation(std::span<const double> found, std::span<const double> recorded);

// The largest deviation that rounding explains: of numbers rounded by at most `unit` (relative), and of logits rounded
// by a model of that precision. `out`: the result of attend_row.
double rounding_deviation(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token,
                          std::span<const double> out, double unit);

// Half a step, relative, of the type through which the numbers passed.
double rounding_unit(DType type);

// Number of rows per query head that are recomputed, spread evenly up to the head's last row.
constexpr int64_t kRowsOfHead = 8;

// Compares attention over the recorded q, k and v with the model's recorded output `out`. Returns one line for each
// layer that disagrees, with the usual mistake that explains it; a prompt gets at most two explained layers and a count
// of the others. Throws TraceError if a number cannot be read.
std::vector<std::string> wrong_outputs(const Trace& trace);

}  // namespace kvreplay
