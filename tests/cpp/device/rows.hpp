#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "device/kernels/block.hpp"
#include "gaussian.hpp"

namespace kvreplay::test {

// Some rows of exact attention, by plain loops in double precision.
struct PlainRows {
  int32_t heads = 2, group = 1, tokens = 200, dim = 64;
  std::vector<int32_t> row_token;  // ascending
  float scale = 0.125f, softcap = 0;
  int32_t window = 0;
  std::vector<float> sink_logits;  // [heads] or empty
  std::vector<float> q, k;         // [heads, rows, dim], [blocks, tokens, dim]
  bool split = false;              // logits are computed as three products of 16-bit numbers

  int32_t rows() const { return int32_t(row_token.size()); }
  int32_t blocks() const { return heads / group; }
  // halves: draw numbers that a tensor core takes without splitting.
  void draw(uint32_t seed, bool halves) {
    q = gaussian<float>(size_t(heads) * row_token.size() * size_t(dim), seed);
    k = gaussian<float>(size_t(blocks()) * size_t(tokens) * size_t(dim), seed + 1);
    for (std::vector<float>* x : {&q, &k})
      for (float& number : *x)
        if (halves) number = from_bf16(to_bf16(number));
  }
  bool sees(int32_t t, int32_t token) const { return token <= t && (window <= 0 || token > t - window); }
  double logit(int32_t head, int32_t row, int32_t token) const {
    const float* a = q.data() + (size_t(head) * row_token.size() + size_t(row)) * size_t(dim);
    const float* b = k.data() + (size_t(head / group) * size_t(tokens) + size_t(token)) * size_t(dim);
    double dot = 0;
    for (int32_t c = 0; c < dim; ++c) dot += split ? split_product(a[c], b[c]) : double(a[c]) * double(b[c]);
    const double l = dot * double(scale), cap = double(softcap);
    return cap > 0 ? cap * std::tanh(l / cap) : l;
  }
  static double split_product(float a, float b) {
    const float high_a = from_bf16(to_bf16(a)), high_b = from_bf16(to_bf16(b));
    const double low_a = double(from_bf16(to_bf16(a - high_a))), low_b = double(from_bf16(to_bf16(b - high_b)));
    return (double(high_a) + low_a) * (double(high_b) + low_b) - low_a * low_b;
  }
  double largest(int32_t head, int32_t row) const {
    const int32_t t = row_token[size_t(row)];
    double top = sink(head);
    for (int32_t j = 0; j <= t; ++j)
      if (sees(t, j)) top = std::max(top, logit(head, row, j));
    return top;
  }
  double normaliser(int32_t head, int32_t row, double shift) const {
    const int32_t t = row_token[size_t(row)];
    double z = std::exp(sink(head) - shift);
    for (int32_t j = 0; j <= t; ++j)
      if (sees(t, j)) z += std::exp(logit(head, row, j) - shift);
    return z;
  }
  // Probabilities of tokens 0..t.
  std::vector<double> probabilities(int32_t head, int32_t row) const {
    const int32_t t = row_token[size_t(row)];
    const double shift = largest(head, row), z = normaliser(head, row, shift);
    std::vector<double> p(size_t(t) + 1, 0.0);
    for (int32_t j = 0; j <= t; ++j)
      if (sees(t, j)) p[size_t(j)] = std::exp(logit(head, row, j) - shift) / z;
    return p;
  }
  double sink(int32_t head) const {
    return sink_logits.empty() ? -double(INFINITY) : double(sink_logits[size_t(head)]);
  }
};

}  // namespace kvreplay::test
