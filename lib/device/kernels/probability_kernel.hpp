#pragma once
#include <cmath>

#include "core/layer_window.hpp"
#include "device/kernels/block.hpp"

// Exact probabilities of whole rows, for rankings: the mean over the query heads and, if some cache ranks by its own
// head, those of each head. Logits are float32 dot products, one term after the other, so that equal keys have equal
// probabilities and ties stay ties (convention C8).
//
// A block takes 64 rows and 64 tokens; a thread 8 of the rows and 4 of the tokens. Numbers are loaded 32 columns at a
// time through two buffers, head after head.

namespace kvreplay {

struct ProbabilityArgs {
  const float* q;            // [heads, rows, dim]
  const float* k;            // [blocks, tokens, dim]
  const int32_t* row_token;  // [rows], ascending
  const float *top, *z;      // [heads, rows]; top: in base 2; both include the sink logit, if there is one
  // [planes, count, pitch], for rows first..first + count - 1. Plane 0: the mean over the heads; planes 1..heads, if
  // present: each head's. 0 where a row does not attend; undefined after a row's own token.
  float* p;
  int32_t rows, tokens, heads, group, dim;
  int32_t first, count, planes, pitch;
  float scale, softcap;  // 0: no cap
  LayerWindow window;
};

struct ProbabilityKernel {
  static constexpr int kRows = 64, kTokens = 64, kThreads = 128;
  static constexpr int kRowsEach = 8, kTokensEach = 4;  // for each thread
  static constexpr int kColumns = 32;
  static constexpr int kPitch = kColumns + 4;  // neighbours' four numbers lie on different banks
  static constexpr float kLog2e = 1.44269504088896341f;
  static constexpr size_t kStageBytes = size_t(kRows + kTokens) * kPitch * sizeof(float);
  static constexpr size_t kSharedBytes = 2 * kStageBytes;
  static_assert(kRows * kTokens == kThreads * kRowsEach * kTokensEach);

  struct alignas(16) Four {
    float x[4];
  };

  ProbabilityArgs a;

  LaunchShape shape() const { return {row_tiles() * token_tiles(), kThreads, kSharedBytes}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int32_t row = int32_t(block.index() % row_tiles()) * kRows,
                  token = int32_t(block.index() / row_tiles()) * kTokens;
    const int32_t last_row = (row + kRows < a.count ? row + kRows : a.count) - 1;
    if (token > a.row_token[a.first + last_row]) return;  // no row sees that far
    Thread thread;
    thread.open(*this, block, row, token);
    if (token + kTokens - 1 < a.window.first(a.row_token[a.first + row]))  // outside every row's window
      for (int32_t head = 0; head < a.heads; ++head) thread.end_head(*this, block, head);
    else multiply(block, thread, row, token);
    thread.close(*this);
  }

 private:
  struct Thread;

  KVR_FN int64_t row_tiles() const { return (a.count + kRows - 1) / kRows; }
  KVR_FN int64_t token_tiles() const { return (a.tokens + kTokens - 1) / kTokens; }
  KVR_DEVICE float* queries(const Block auto& block, int stage) const {
    return reinterpret_cast<float*>(block.shared() + stage * kStageBytes);
  }
  KVR_DEVICE float* keys(const Block auto& block, int stage) const { return queries(block, stage) + kRows * kPitch; }

  KVR_DEVICE void multiply(const Block auto& block, Thread& thread, int32_t row, int32_t token) const {
    const int32_t chunks = (a.dim + kColumns - 1) / kColumns, stages = a.heads * chunks;
    fetch(block, row, token, 0, 0, 0);
    for (int32_t s = 0; s < stages; ++s) {
      block.template wait_copies<0>();
      block.sync();  // stage s has arrived, and no thread reads stage s - 1 any more
      const int32_t next = s + 1;
      if (next < stages) fetch(block, row, token, next / chunks, next % chunks, next % 2);
      thread.multiply(*this, block, s % 2);
      if (s % chunks == chunks - 1) thread.end_head(*this, block, s / chunks);
    }
  }
  KVR_DEVICE void fetch(const Block auto& block, int32_t row, int32_t token, int32_t head, int32_t chunk,
                        int stage) const {
    const int64_t q_row = int64_t(head) * a.rows + a.first + row, k_row = int64_t(head / a.group) * a.tokens + token;
    copy(block, queries(block, stage), a.q + q_row * a.dim, kRows, a.count - row, chunk * kColumns);
    copy(block, keys(block, stage), a.k + k_row * a.dim, kTokens, a.tokens - token, chunk * kColumns);
    block.commit_copies();
  }
  // Copies columns [first, first + 32) of `count` rows, of which `there` exist; the rest is 0.
  KVR_DEVICE void copy(const Block auto& block, float* to, const float* from, int count, int32_t there,
                       int32_t first) const {
    constexpr int kPieces = kColumns / 4;
    for (int i = block.thread(); i < count * kPieces; i += kThreads) {
      const int row = i / kPieces, column = i % kPieces * 4;
      float* const piece = to + row * kPitch + column;
      const int32_t left = row < there ? a.dim - first - column : 0;
      const float* const numbers = from + (left > 0 ? int64_t(row) * a.dim + first + column : 0);
      if (a.dim % 4 == 0) block.copy_async(piece, numbers, left > 0);
      else
        for (int j = 0; j < 4; ++j) piece[j] = j < left ? numbers[j] : 0;
    }
  }

  // Rows row + 8 i and tokens token + 16 j.
  struct Thread {
    float dot[kRowsEach][kTokensEach], sum[kRowsEach][kTokensEach];
    int32_t row_token[kRowsEach];  // -1 beyond the end
    int32_t row, token;            // among all rows and tokens
    int row_in_tile, token_in_tile;

    KVR_DEVICE void open(const ProbabilityKernel& k, const Block auto& block, int32_t first_row, int32_t first_token) {
      const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
      row_in_tile = warp % 2 * 4 + lane / 8, token_in_tile = warp / 2 * 8 + lane % 8;
      row = first_row + row_in_tile, token = first_token + token_in_tile;
      KVR_UNROLL for (int i = 0; i < kRowsEach; ++i) {
        row_token[i] = row + 8 * i < k.a.count ? k.a.row_token[k.a.first + row + 8 * i] : -1;
        KVR_UNROLL for (int j = 0; j < kTokensEach; ++j) dot[i][j] = sum[i][j] = 0;
      }
    }
    KVR_DEVICE void multiply(const ProbabilityKernel& k, const Block auto& block, int stage) {
      const float* const q = k.queries(block, stage) + row_in_tile * kPitch;
      const float* const keys = k.keys(block, stage) + token_in_tile * kPitch;
      for (int column = 0; column < kColumns; column += 4) {
        Four of_key[kTokensEach];
        KVR_UNROLL for (int j = 0; j < kTokensEach; ++j) of_key[j] =
            *reinterpret_cast<const Four*>(keys + 16 * j * kPitch + column);
        KVR_UNROLL for (int i = 0; i < kRowsEach; ++i) {
          const Four of_row = *reinterpret_cast<const Four*>(q + 8 * i * kPitch + column);
          KVR_UNROLL for (int j = 0; j < kTokensEach; ++j) KVR_UNROLL for (int x = 0; x < 4; ++x) dot[i][j] +=
              of_row.x[x] * of_key[j].x[x];
        }
      }
    }
    KVR_DEVICE void end_head(const ProbabilityKernel& k, const Block auto& block, int32_t head) {
      KVR_UNROLL for (int i = 0; i < kRowsEach; ++i) {
        const int64_t at = int64_t(head) * k.a.rows + k.a.first + row + 8 * i;
        const bool there = row_token[i] >= 0;
        const float top = there ? k.a.top[at] : 0, inverse = there ? 1 / k.a.z[at] : 0;
        KVR_UNROLL for (int j = 0; j < kTokensEach; ++j) {
          float l = dot[i][j] * k.a.scale;
          if (k.a.softcap > 0) l = k.a.softcap * std::tanh(l / k.a.softcap);
          const int32_t t = row_token[i], key = token + 16 * j;
          const bool sees = key <= t && (!k.a.window.any() || key >= k.a.window.first(t));
          const float p = sees ? block.exp2(l * kLog2e - top) * inverse : 0;
          if (k.a.planes > 1) k.put(1 + head, row + 8 * i, key, t, p);
          sum[i][j] += p, dot[i][j] = 0;
        }
      }
    }
    KVR_DEVICE void close(const ProbabilityKernel& k) {
      const float share = 1.0f / float(k.a.heads);
      KVR_UNROLL for (int i = 0; i < kRowsEach; ++i) KVR_UNROLL for (int j = 0; j < kTokensEach; ++j)
          k.put(0, row + 8 * i, token + 16 * j, row_token[i], sum[i][j] * share);
    }
  };

  KVR_DEVICE void put(int32_t plane, int32_t row, int32_t key, int32_t t, float p) const {
    if (key <= t) a.p[(int64_t(plane) * a.count + row) * a.pitch + key] = p;
  }
};

}  // namespace kvreplay
