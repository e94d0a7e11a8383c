#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trace/trace_info.hpp"

// One row of a query head beside what the model recorded as its output.

namespace kvreplay {

// What a row attends to, and how.
struct AttentionRule {
  double scale = 1, softcap = 0;     // softcap 0: none
  std::optional<double> sink_logit;  // joins the denominator only
  int32_t window = 0;                // 0: none
  bool causal = true;                // false: every token of the trace
  int32_t ahead = 0;                 // the last token that a row sees, counted from its own
};

struct RecordedRow {
  int64_t row = 0;    // of q and out
  int32_t token = 0;  // that the row belongs to
  std::vector<double> query, out;
};

// Keys or values of one kv head, [tokens, width].
struct Rows {
  std::span<const float> numbers;
  int64_t width = 0;
  int64_t count() const { return static_cast<int64_t>(numbers.size()) / width; }
  const float* at(int64_t token) const { return numbers.data() + token * width; }
};

// One query with every key: the products, and the root of the sum of their squared terms, which says how far rounded
// coordinates move a product.
struct Products {
  std::vector<double> dot, spread;  // [tokens]
};
Products products_of(std::span<const double> query, const Rows& keys);

// Logits of the tokens first..end-1 that a row sees; empty where it sees none.
struct SeenTokens {
  int64_t first = 0, end = 0;
};
SeenTokens seen_by(const AttentionRule& rule, int32_t token, int64_t tokens);

// The output of a row [width of values]; zeros where it sees no token.
std::vector<double> attend_row(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token);

// |found - recorded| over the larger of their norms; 0 where both are zero.
double deviation(std::span<const double> found, std::span<const double> recorded);

// The deviation that rounding explains: numbers that were rounded by `unit` at most (relative), logits that a model of
// that precision rounded as well. `out`: what attend_row gave.
double believed_deviation(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token,
                          std::span<const double> out, double unit);

// Half a step of the coarsest type that the numbers of the layer went through, relative.
double rounding_unit(DType type);

}  // namespace kvreplay
