#include "survey/recorded_row.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

// Relative error of a float32 model's sums: tensor cores round the factors of its products to 11 bits.
constexpr double kSumRounding = 1e-3;
// Roundings that a row accumulates: of queries, keys, values, probabilities and the output.
constexpr double kRoundings = 4;
// Safety factor for rounded logits, and the largest deviation that rounding may explain. Recorded models stay below
// half of what both allow.
constexpr double kLogitRoundingFactor = 1.5, kMaxRoundingDeviation = 0.25;

double logit_of(const AttentionRule& rule, double dot) {
  const double logit = rule.scale * dot;
  return rule.softcap > 0 ? rule.softcap * std::tanh(logit / rule.softcap) : logit;
}

double norm_of(std::span<const double> vector) {
  double sum = 0;
  for (const double x : vector) sum += x * x;
  return std::sqrt(sum);
}

double distance(const float* value, std::span<const double> out) {
  double sum = 0;
  for (size_t c = 0; c < out.size(); ++c) sum += (value[c] - out[c]) * (value[c] - out[c]);
  return std::sqrt(sum);
}

// Probabilities of the seen tokens.
std::vector<double> probabilities(const Products& products, const AttentionRule& rule, SeenTokens seen) {
  std::vector<double> p;
  double largest = rule.sink_logit.value_or(-1e300);
  for (int64_t i = seen.first; i < seen.end; ++i) {
    p.push_back(logit_of(rule, products.dot[static_cast<size_t>(i)]));
    largest = std::max(largest, p.back());
  }
  double sum = rule.sink_logit ? std::exp(*rule.sink_logit - largest) : 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

Products products_of(std::span<const double> query, const Rows& keys) {
  Products products;
  for (int64_t i = 0; i < keys.count(); ++i) {
    const float* const key = keys.at(i);
    double dot = 0, squares = 0;
    for (size_t c = 0; c < query.size(); ++c) {
      const double term = query[c] * key[c];
      dot += term;
      squares += term * term;
    }
    products.dot.push_back(dot);
    products.spread.push_back(std::sqrt(squares));
  }
  return products;
}

SeenTokens seen_by(const AttentionRule& rule, int32_t token, int64_t tokens) {
  if (!rule.causal) return {0, tokens};
  const int64_t end = std::clamp<int64_t>(int64_t{token} + rule.ahead + 1, 0, tokens);
  const int64_t first = rule.window > 0 ? std::max<int64_t>(0, end - rule.window) : 0;
  return {std::min(first, end), end};
}

std::vector<double> attend_row(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token) {
  const SeenTokens seen = seen_by(rule, token, values.count());
  const std::vector<double> p = probabilities(products, rule, seen);
  std::vector<double> out(static_cast<size_t>(values.width));
  for (size_t i = 0; i < p.size(); ++i) {
    const float* const value = values.at(seen.first + static_cast<int64_t>(i));
    for (size_t c = 0; c < out.size(); ++c) out[c] += p[i] * value[c];
  }
  return out;
}

double deviation(std::span<const double> found, std::span<const double> recorded) {
  double squares = 0;
  for (size_t c = 0; c < found.size(); ++c) squares += (found[c] - recorded[c]) * (found[c] - recorded[c]);
  return squares > 0 ? std::sqrt(squares) / std::max(norm_of(found), norm_of(recorded)) : 0;
}

double rounding_deviation(const Products& products, const Rows& values, const AttentionRule& rule, int32_t token,
                          std::span<const double> out, double unit) {
  const SeenTokens seen = seen_by(rule, token, values.count());
  const std::vector<double> p = probabilities(products, rule, seen);
  const double norm = norm_of(out);
  double moved = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const size_t at = static_cast<size_t>(seen.first) + i;
    const double logit = std::abs(logit_of(rule, products.dot[at]));
    moved += p[i] * (std::abs(rule.scale) * products.spread[at] + logit) *
             distance(values.at(static_cast<int64_t>(at)), out);
  }
  const double of_logits = norm > 0 ? kLogitRoundingFactor * unit * moved / norm : 0;
  return std::min(std::max(kSumRounding, kRoundings * unit) + of_logits, kMaxRoundingDeviation);
}

double rounding_unit(DType type) {
  return type == DType::bfloat16 ? 0x1p-9 : type == DType::float16 ? 0x1p-12 : 0x1p-25;
}

}  // namespace kvreplay
