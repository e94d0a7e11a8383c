#pragma once
#include <cmath>

#include "device/kernels/attend_kernel.hpp"
#include "measures/row_result.hpp"

// Computes rows from the sums of parts: the exact rows, and each cache's rows compared with them. Each part was summed
// against its own maximum; the merge rescales all to the largest. A warp takes one (query head, row).

namespace kvreplay {

// Input that all rows of a stream share.
struct MergeInput {
  AttendSums sums;           // sums of the parts, [parts, heads, rows]
  const float* sink_logits;  // [heads] or null: joins the denominator of every row
  int32_t heads, rows, width, v_dim;

  KVR_FN int64_t cell(int32_t part, int32_t head, int32_t row) const {
    return (int64_t(part) * heads + head) * rows + row;
  }
  KVR_FN float sink(int32_t head) const {
    return sink_logits == nullptr ? -INFINITY : sink_logits[head] * 1.44269504088896341f;
  }
};

// Exact attention of the rows, [heads, rows]; e_i as in AttendSums.
struct ExactRows {
  float *top, *z, *l2;  // z: with a sink logit; l2: ||x||_2 of the probabilities
  float* out;           // [heads, rows, width]
};

// A part and the weight of its sums in a cache.
struct PartRef {
  int32_t part;
  float num = 1, den = 1;
};
// [first, first + count) of a list of parts: those of the prompt first.
struct PartList {
  int32_t first, count, of_prompt;
};
struct MergeCache {
  PartList all;  // parts that the output sums
  PartList set;  // the same tokens at weight 1; count 0: not needed
  bool prefix;   // compare the prompt's parts with exact attention over the prompt
  int32_t first_head, heads;
  int64_t first_row;  // first row of its results, [heads, rows]
};

// Several parts of one row, to be summed against the largest of their maxima.
struct PartSum {
  const MergeInput& in;
  const PartRef* parts;
  int32_t count, head, row;
  float top, sink;

  KVR_FN PartSum(const MergeInput& input, const PartRef* list, int32_t n, int32_t h, int32_t r)
      : in(input), parts(list), count(n), head(h), row(r), top(input.sink(h)), sink(top) {
    for (int32_t i = 0; i < count; ++i) {
      const float t = in.sums.top[at(i)];
      if (t > top) top = t;
    }
  }
  KVR_FN int64_t at(int32_t i) const { return in.cell(parts[i].part, head, row); }
  // Whether some token was attended to.
  KVR_FN bool any() const {
    for (int32_t i = 0; i < count; ++i)
      if (in.sums.top[at(i)] > -INFINITY) return true;
    return false;
  }
  KVR_DEVICE float share(const Block auto& block, int32_t i) const {
    const float t = in.sums.top[at(i)];
    return t == -INFINITY ? 0 : block.exp2(t - top);
  }
  KVR_DEVICE float z(const Block auto& block) const {
    float sum = sink == -INFINITY ? 0 : block.exp2(sink - top);
    for (int32_t i = 0; i < count; ++i) sum += share(block, i) * parts[i].den * in.sums.z[at(i)];
    return sum;
  }
  KVR_DEVICE float tokens(const Block auto& block) const {
    float sum = 0;
    for (int32_t i = 0; i < count; ++i) sum += share(block, i) * in.sums.tokens[at(i)];
    return sum;
  }
  KVR_DEVICE float squares(const Block auto& block) const {
    float sum = 0;
    for (int32_t i = 0; i < count; ++i) {
      const float s = share(block, i);
      sum += s * s * in.sums.squares[at(i)];
    }
    return sum;
  }
  KVR_DEVICE float out(const Block auto& block, int32_t column) const {
    float sum = 0;
    for (int32_t i = 0; i < count; ++i) sum += share(block, i) * parts[i].num * in.sums.out[at(i) * in.width + column];
    return sum;
  }
};

KVR_DEVICE inline float sum_of_warp(const Block auto& block, float x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += block.shuffle_xor(x, mask);
  return x;
}

struct ExactMergeKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  MergeInput in;
  ExactRows exact;  // out may be null
  const PartRef* parts;
  int32_t count;

  LaunchShape shape() const { return {(int64_t(in.heads) * in.rows + kWarps - 1) / kWarps, kThreads, 0}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int64_t at = block.index() * kWarps + block.thread() / kWarp;
    if (at >= int64_t(in.heads) * in.rows) return;
    const int lane = block.thread() % kWarp;
    const PartSum sum(in, parts, count, int32_t(at / in.rows), int32_t(at % in.rows));
    const float z = sum.z(block);
    for (int32_t c = lane; exact.out != nullptr && c < in.width; c += kWarp)
      exact.out[at * in.width + c] = sum.out(block, c) / z;
    if (lane != 0) return;
    exact.top[at] = sum.top, exact.z[at] = z;
    exact.l2[at] = std::sqrt(sum.squares(block)) / z;
  }
};

// The gradients that errors are projected on, and the output of the projections.
struct ProjectionRows {
  const uint16_t* gradient;  // bf16 [heads, rows, samples, v_dim]; null: no projections
  float* out;                // in the layout of the results, [.., samples]
  int32_t samples;
};

struct CacheMergeKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  static constexpr float kClamp = 1e-8f;  // clamp of rel_err_clamped
  static constexpr int kWidest = 256;     // numbers of a value
  MergeInput in;
  ExactRows exact;
  const PartRef* parts;
  const MergeCache* caches;
  int32_t count;         // number of caches
  PartRef exact_prompt;  // exact attention over the prompt
  RowResult* results;    // for each cache, [heads, rows]
  float* out;            // in the layout of the results, [.., v_dim], or null
  ProjectionRows projections;

  LaunchShape shape() const { return {(int64_t(count) * in.heads * in.rows + kWarps - 1) / kWarps, kThreads, 0}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int64_t cells = int64_t(in.heads) * in.rows, at = block.index() * kWarps + block.thread() / kWarp;
    if (at >= count * cells) return;
    const MergeCache cache = caches[at / cells];
    const int32_t head = int32_t(at % cells / in.rows), row = int32_t(at % in.rows);
    if (head < cache.first_head || head >= cache.first_head + cache.heads) return;
    const int64_t to = cache.first_row + int64_t(head - cache.first_head) * in.rows + row;
    RowResult result{};
    compare(block, cache, head, row, to, result);
    if (cache.prefix) result.prefix_error = double(prefix_error(block, cache, head, row));
    if (cache.set.count > 0) result.set_error = double(set_error(block, cache, head, row));
    if (block.thread() % kWarp == 0) results[to] = result;
  }

 private:
  KVR_DEVICE void compare(const Block auto& block, const MergeCache& cache, int32_t head, int32_t row, int64_t to,
                          RowResult& result) const {
    const PartSum sum(in, parts + cache.all.first, cache.all.count, head, row);
    const int64_t cell = in.cell(0, head, row);
    const float z = sum.z(block), shift = sum.top - exact.top[cell];
    const double ratio = double(z) / double(exact.z[cell]), scale = std::exp2(double(shift));
    result.tau = ratio * scale;
    result.log_tau = std::log(ratio) + double(shift) * 0.69314718055994530942;
    result.kept_mass = double(sum.tokens(block)) / double(exact.z[cell]) * scale;
    float error2 = 0, exact2 = 0, mine2 = 0, inner = 0, positive2 = 0, numerator2 = 0;
    float errors[kWidest / kWarp];  // for this lane's columns
    for (int32_t c = block.thread() % kWarp; c < in.v_dim; c += kWarp) {
      const float mine = sum.out(block, c) / z, o = exact.out[cell * in.width + c], off = mine - o;
      errors[c / kWarp] = off;
      const float numerator = float(result.tau) * mine - o, positive = o > kClamp ? o : kClamp;
      error2 += off * off, exact2 += o * o, mine2 += mine * mine, inner += mine * o;
      positive2 += positive * positive, numerator2 += numerator * numerator;
      if (out != nullptr) out[to * in.v_dim + c] = mine;
    }
    result.error2 = double(sum_of_warp(block, error2)), result.exact2 = double(sum_of_warp(block, exact2));
    result.mine2 = double(sum_of_warp(block, mine2)), result.inner = double(sum_of_warp(block, inner));
    result.positive2 = double(sum_of_warp(block, positive2));
    result.numerator2 = double(sum_of_warp(block, numerator2));
    if (projections.gradient != nullptr) project(block, errors, cell, to);
  }
  KVR_DEVICE void project(const Block auto& block, const float* errors, int64_t cell, int64_t to) const {
    const int lane = block.thread() % kWarp;
    for (int32_t s = 0; s < projections.samples; ++s) {
      const uint16_t* const g = projections.gradient + (cell * projections.samples + s) * in.v_dim;
      float a = 0;
      for (int32_t c = lane; c < in.v_dim; c += kWarp) a += from_bf16(g[c]) * errors[c / kWarp];
      a = sum_of_warp(block, a);
      if (lane == 0) projections.out[to * projections.samples + s] = a;
    }
  }
  // Error of the prompt's tokens alone, against exact attention over the prompt.
  KVR_DEVICE float prefix_error(const Block auto& block, const MergeCache& cache, int32_t head, int32_t row) const {
    const PartSum mine(in, parts + cache.all.first, cache.all.of_prompt, head, row);
    const PartSum full(in, &exact_prompt, 1, head, row);
    const float z = mine.z(block), z_full = full.z(block);
    if (!(mine.top > -INFINITY) || !(full.top > -INFINITY)) return kNone;
    return relative(
        block, [&](int32_t c) { return mine.out(block, c) / z; },
        [&](int32_t c) { return full.out(block, c) / z_full; });
  }
  KVR_DEVICE float set_error(const Block auto& block, const MergeCache& cache, int32_t head, int32_t row) const {
    const PartSum set(in, parts + cache.set.first, cache.set.count, head, row);
    if (!set.any()) return kNone;
    const float z = set.z(block);
    const float* const o = exact.out + in.cell(0, head, row) * in.width;
    return relative(
        block, [&](int32_t c) { return set.out(block, c) / z; }, [&](int32_t c) { return o[c]; });
  }
  KVR_DEVICE float relative(const Block auto& block, auto mine, auto full) const {
    float error2 = 0, norm2 = 0;
    for (int32_t c = block.thread() % kWarp; c < in.v_dim; c += kWarp) {
      const float o = full(c), off = mine(c) - o;
      error2 += off * off, norm2 += o * o;
    }
    error2 = sum_of_warp(block, error2), norm2 = sum_of_warp(block, norm2);
    return norm2 == 0 ? kNone : std::sqrt(error2 / norm2);
  }
  static constexpr float kNone = float(RowResult::kNone);
};

}  // namespace kvreplay
