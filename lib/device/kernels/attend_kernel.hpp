#pragma once
#include <cmath>

#include "core/layer_window.hpp"
#include "device/kernels/block.hpp"

// Attention of many rows over lists of tokens, on tensor cores. One kernel serves the exact pass (the list is a run of
// tokens) and every cache whose rows are tokens of the trace (the list is what it holds, with weights and with the
// token at which each entry is evicted).
//
// A block takes 64 rows (query tokens) of one query head and one part; a warp 16 of them. Keys are loaded 64 at a time
// (fewer for wider heads) through two buffers. Logits, exponentials and sums are float32. Factors are bf16 numbers: one
// for each float32 number, or two (high + low, 16 digits) that add up to it within 2^-17 of it. The maximum is updated
// on the way ("online softmax", Milakov and Gimelshein 2018; tiles as in FlashAttention-2, Dao 2023).

namespace kvreplay {

// Tokens that a tile of rows looks at: [first, first + count) of a part's list.
struct KeySpan {
  int32_t first, count;
};

// One list of tokens for some query heads, with a span for each tile of 64 rows. A row of token t attends to token j of
// its tile's span if j <= t, j is in the row's window, and t < until.
struct AttendPart {
  const KeySpan* spans;       // [row tiles]
  const int32_t* tokens;      // the list; null: the list is the trace itself
  const int32_t* until;       // for each entry; null: never evicted
  const float *num, *den;     // weights of each entry; null: 1
  int32_t first_head, heads;  // query heads that attend
};

// Sums over the tokens that a row attends to, with e_i = 2^(log2(e) l_i - top): [parts, heads, rows].
struct AttendSums {
  float* top;      // log2(e) times the largest logit; -infinity: no token attended to
  float* z;        // sum of den_i e_i
  float* tokens;   // sum of e_i
  float* squares;  // sum of e_i^2
  float* out;      // sum of num_i e_i v_i, [parts, heads, rows, width]; null if values are not needed
};

struct AttendArgs {
  // Numbers of 16 bits, rows padded with zeros to `width`. low: null if high is the whole number.
  const uint16_t *q_high, *q_low;  // [heads, rows, width]
  const uint16_t *k_high, *k_low;  // [blocks, tokens, width]
  const uint16_t *v_high, *v_low;  // [blocks, tokens, width]
  const int32_t* row_token;        // [rows]
  const AttendPart* parts;
  AttendSums sums;
  // The logits of runs of the trace, in base 2: [heads, rows, logit_pitch], column j is token j, up to a row's own.
  // Null: not kept. Kernels that sum values keep none.
  float* logits;
  int64_t logit_pitch;
  int32_t rows, tokens, heads, group, parts_count;
  float scale, softcap;  // 0: no cap
  LayerWindow window;
};

// kLogitProducts, kValueProducts: 1 (high high), 2 (values only: probabilities have two parts, values one) or 3.
template <int kWidth, int kLogitProducts, int kValueProducts>
struct AttendKernel {
  static constexpr int kRows = 64, kThreads = 128;
  static constexpr int kKeys = kWidth <= 64 ? 64 : kWidth <= 128 ? 32 : 16;  // keys at a time
  static constexpr int kPitch = kWidth + 8;  // 16 more bytes a row keep matrix loads off each other's banks
  static constexpr int kSteps = kWidth / 16, kKeyBlocks = kKeys / 8, kWidthBlocks = kWidth / 8;
  static constexpr bool kValues = kValueProducts > 0;
  static constexpr int kKeyPlanes = kLogitProducts == 3 ? 2 : 1, kValuePlanes = kValueProducts == 3 ? 2 : kValues;
  static constexpr int kPlanes = kKeyPlanes + kValuePlanes;
  static constexpr float kLog2e = 1.44269504088896341f;

  struct Entry {  // a key's entry in shared memory
    int32_t token, until;
    float num, den;
  };
  static constexpr size_t kPlaneBytes = size_t(kKeys) * kPitch * 2;
  static constexpr size_t kStageBytes = kPlanes * kPlaneBytes + kKeys * sizeof(Entry);
  static constexpr size_t kQueryBytes = size_t(kRows) * kPitch * 2 * kKeyPlanes;
  // Queries stay in registers if there is room; they then pass through the buffers of the keys.
  static constexpr bool kHolds = kWidth <= 128;
  static constexpr size_t kQueriesAt = kHolds ? 0 : 2 * kStageBytes;
  static constexpr size_t kSharedBytes = 2 * kStageBytes + (kHolds ? 0 : kQueryBytes);
  static_assert(kQueriesAt > 0 || kQueryBytes <= 2 * kStageBytes);

  AttendArgs a;

  LaunchShape shape() const {
    const int64_t tiles = (a.rows + kRows - 1) / kRows;
    return {tiles * a.heads * a.parts_count, kThreads, kSharedBytes};
  }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int32_t tiles = (a.rows + kRows - 1) / kRows;
    // The last rows see the most keys: they go first.
    const int32_t tile = tiles - 1 - int32_t(block.index() % tiles);
    const int64_t rest = block.index() / tiles;
    const int32_t head = int32_t(rest % a.heads), part_index = int32_t(rest / a.heads);
    const AttendPart part = a.parts[part_index];
    if (head < part.first_head || head >= part.first_head + part.heads) return;
    Warp warp;
    warp.open(*this, block, tile);
    warp.logits = a.logits == nullptr ? nullptr : a.logits + int64_t(head) * a.rows * a.logit_pitch;
    const KeySpan span = part.spans[tile];
    const int32_t stages = (span.count + kKeys - 1) / kKeys;
    load_queries(block, tile, head);
    if constexpr (kHolds) warp.hold_queries(*this, block);
    if (stages > 0) load_keys(block, part, span, head / a.group, 0);
    block.commit_copies();
    for (int32_t s = 0; s < stages; ++s) {
      if (s + 1 < stages) load_keys(block, part, span, head / a.group, s + 1);
      block.commit_copies();
      block.template wait_copies<1>();
      block.sync();
      warp.take(*this, block, s % 2, all_visible(part, span, s, warp.least_token));
      block.sync();  // before the buffer is refilled
    }
    block.template wait_copies<0>();  // no copy may run when the block ends
    warp.close(*this, block, (int64_t(part_index) * a.heads + head) * a.rows);
  }

 private:
  // Whether every row sees every key of the stage, at weight 1. Lists ascend.
  KVR_DEVICE bool all_visible(const AttendPart& part, KeySpan span, int32_t s, int32_t least_token) const {
    const int32_t end = (s + 1) * kKeys;
    return part.until == nullptr && part.num == nullptr && !a.window.any() && end <= span.count &&
           token_of(part, span.first + end - 1) <= least_token;
  }
  KVR_DEVICE uint16_t* plane(const Block auto& block, int stage, int index) const {
    return reinterpret_cast<uint16_t*>(block.shared() + stage * kStageBytes + index * kPlaneBytes);
  }
  KVR_DEVICE Entry* entries(const Block auto& block, int stage) const {
    return reinterpret_cast<Entry*>(block.shared() + stage * kStageBytes + kPlanes * kPlaneBytes);
  }
  KVR_DEVICE uint16_t* queries(const Block auto& block, int index) const {
    return reinterpret_cast<uint16_t*>(block.shared() + kQueriesAt + index * (kQueryBytes / kKeyPlanes));
  }

  KVR_DEVICE void load_queries(const Block auto& block, int32_t tile, int32_t head) const {
    constexpr int kPieces = kWidth / 8;
    for (int i = block.thread(); i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, column = i % kPieces * 8;
      const bool inside = tile * kRows + row < a.rows;
      const int64_t from = (int64_t(head) * a.rows + (inside ? tile * kRows + row : 0)) * kWidth + column;
      block.copy_async(queries(block, 0) + row * kPitch + column, a.q_high + from, inside);
      if constexpr (kKeyPlanes == 2)
        block.copy_async(queries(block, 1) + row * kPitch + column, a.q_low + from, inside);
    }
    block.commit_copies();
  }
  // Loads stage s of the span into buffer s % 2. The caller commits.
  KVR_DEVICE void load_keys(const Block auto& block, const AttendPart& part, KeySpan span, int32_t kv,
                            int32_t s) const {
    constexpr int kPieces = kWidth / 8;
    const int stage = s % 2;
    for (int i = block.thread(); i < kKeys * kPieces; i += kThreads) {
      const int key = i / kPieces, column = i % kPieces * 8;
      const int32_t at = s * kKeys + key;
      const bool inside = at < span.count;
      const int32_t token = inside ? token_of(part, span.first + at) : 0;
      const int64_t from = (int64_t(kv) * a.tokens + token) * kWidth + column;
      const int to = key * kPitch + column;
      block.copy_async(plane(block, stage, 0) + to, a.k_high + from, inside);
      if constexpr (kKeyPlanes == 2) block.copy_async(plane(block, stage, 1) + to, a.k_low + from, inside);
      if constexpr (kValues) block.copy_async(plane(block, stage, kKeyPlanes) + to, a.v_high + from, inside);
      if constexpr (kValuePlanes == 2)
        block.copy_async(plane(block, stage, kKeyPlanes + 1) + to, a.v_low + from, inside);
    }
    for (int key = block.thread(); key < kKeys; key += kThreads) {
      const int32_t at = s * kKeys + key, i = span.first + at;
      Entry entry{0, 0, 0, 0};  // until 0: no row attends to it
      if (at < span.count)
        entry = {token_of(part, i), part.until == nullptr ? a.tokens : part.until[i],
                 part.num == nullptr ? 1 : part.num[i], part.den == nullptr ? 1 : part.den[i]};
      entries(block, stage)[key] = entry;
    }
  }
  KVR_DEVICE bool sees(int32_t t, const Entry& e) const {
    return e.token <= t && t < e.until && (!a.window.any() || e.token >= a.window.first(t));
  }
  KVR_DEVICE static int32_t token_of(const AttendPart& part, int32_t i) {
    return part.tokens == nullptr ? i : part.tokens[i];
  }

  // 16 rows in the registers of a warp; a thread holds columns c, c + 1 of rows g and g + 8 of every 8 columns.
  struct Warp {
    int32_t row[2], token[2];                   // row of the launch; its token, -1 beyond the end
    float top[2], z[2], tokens[2], squares[2];  // in base 2; until close() only for this thread's columns
    float out[kValues ? kWidthBlocks : 1][4];
    uint32_t q[kHolds ? kSteps : 1][kKeyPlanes][4];
    float* logits;        // this query head's, or null
    int32_t least_token;  // among the 16 rows
    int g, c, first;      // first: row of the tile

    KVR_DEVICE void open(const AttendKernel& k, const Block auto& block, int32_t tile) {
      const int lane = block.thread() % kWarp;
      g = lane / 4, c = 2 * (lane % 4), first = block.thread() / kWarp * 16;
      const int32_t first_row = tile * kRows + first;
      least_token = first_row < k.a.rows ? k.a.row_token[first_row] : -1;
      KVR_UNROLL for (int i = 0; i < 2; ++i) {
        row[i] = tile * kRows + first + g + 8 * i;
        token[i] = row[i] < k.a.rows ? k.a.row_token[row[i]] : -1;
        top[i] = -INFINITY, z[i] = tokens[i] = squares[i] = 0;
      }
      KVR_UNROLL for (auto& o : out) KVR_UNROLL for (float& x : o) x = 0;
    }

    KVR_DEVICE void hold_queries(const AttendKernel& k, const Block auto& block) {
      block.template wait_copies<0>();
      block.sync();
      KVR_UNROLL for (int step = 0; step < kSteps; ++step) load_step(k, block, step, q[step]);
      block.sync();  // before keys overwrite them
    }
    // A: rows 0-7 and 8-15, then the same 8 columns further.
    KVR_DEVICE void load_step(const AttendKernel& k, const Block auto& block, int step,
                              uint32_t (&to)[kKeyPlanes][4]) const {
      const int lane = block.thread() % kWarp;
      const int from = (first + lane % 16) * kPitch + step * 16 + lane / 16 * 8;
      KVR_UNROLL for (int plane = 0; plane < kKeyPlanes; ++plane)
          block.load_matrices(to[plane], k.queries(block, plane) + from);
    }

    // Takes one stage of keys.
    KVR_DEVICE void take(const AttendKernel& k, const Block auto& block, int stage, bool plain) {
      float s[kKeyBlocks][4];
      find_logits(k, block, stage, s);
      const Entry* const entry = k.entries(block, stage);
      if (plain) weigh<true>(k, block, entry, s);
      else weigh<false>(k, block, entry, s);
      if constexpr (kValues) add_values(k, block, stage, s);
    }

    KVR_DEVICE void find_logits(const AttendKernel& k, const Block auto& block, int stage,
                                float (&s)[kKeyBlocks][4]) const {
      KVR_UNROLL for (auto& block_of_keys : s) KVR_UNROLL for (float& x : block_of_keys) x = 0;
      const int lane = block.thread() % kWarp;
      KVR_UNROLL for (int step = 0; step < kSteps; ++step) {
        uint32_t loaded[kKeyPlanes][4];
        if constexpr (!kHolds) load_step(k, block, step, loaded);
        const auto& of_step = kHolds ? q[kHolds ? step : 0] : loaded;
        KVR_UNROLL for (int n = 0; n < kKeyBlocks; n += 2) {
          // B of two blocks of keys: both halves of the first, then of the second.
          const int key = (n * 8 + lane / 16 * 8 + lane % 8) * kPitch + step * 16 + lane / 8 % 2 * 8;
          uint32_t high[4], low[4];
          block.load_matrices(high, k.plane(block, stage, 0) + key);
          if constexpr (kKeyPlanes == 2) block.load_matrices(low, k.plane(block, stage, 1) + key);
          KVR_UNROLL for (int i = 0; i < 2; ++i) {
            const uint32_t b_high[2] = {high[2 * i], high[2 * i + 1]};
            if constexpr (kKeyPlanes == 2) {
              const uint32_t b_low[2] = {low[2 * i], low[2 * i + 1]};
              block.multiply_add(s[n + i], of_step[1], b_high);
              block.multiply_add(s[n + i], of_step[0], b_low);
            }
            block.multiply_add(s[n + i], of_step[0], b_high);
          }
        }
      }
    }

    // Turns logits into probabilities against the new maximum, times num, and rescales the sums.
    template <bool kPlain>
    KVR_DEVICE void weigh(const AttendKernel& k, const Block auto& block, const Entry* entry,
                          float (&s)[kKeyBlocks][4]) {
      float most[2] = {top[0], top[1]};
      KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) KVR_UNROLL for (int i = 0; i < 4; ++i) {
        float l = s[n][i] * k.a.scale;
        if (k.a.softcap > 0) l = k.a.softcap * std::tanh(l / k.a.softcap);
        const Entry& of = entry[n * 8 + c + i % 2];
        const bool seen = kPlain || k.sees(token[i / 2], of);
        s[n][i] = seen ? l * kLog2e : -INFINITY;
        if constexpr (!kValues)
          if (logits != nullptr && seen && token[i / 2] >= 0) logits[row[i / 2] * k.a.logit_pitch + of.token] = s[n][i];
        if (s[n][i] > most[i / 2]) most[i / 2] = s[n][i];
      }
      float shrink[2];
      KVR_UNROLL for (int i = 0; i < 2; ++i) {  // the four threads of a row agree
        KVR_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {
          const float other = block.shuffle_xor(most[i], mask);
          if (other > most[i]) most[i] = other;
        }
        shrink[i] = most[i] > -INFINITY ? block.exp2(top[i] - most[i]) : 1;
        z[i] *= shrink[i], tokens[i] *= shrink[i], squares[i] *= shrink[i] * shrink[i];
        top[i] = most[i];
      }
      if constexpr (kValues)
        KVR_UNROLL for (auto& o : out) KVR_UNROLL for (int i = 0; i < 4; ++i) o[i] *= shrink[i / 2];
      // A stage is summed separately first: added one by one to a long row's sum, its numbers would lose digits.
      float new_z[2] = {}, new_tokens[2] = {}, new_squares[2] = {};
      KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) KVR_UNROLL for (int i = 0; i < 4; ++i) {
        const float e = s[n][i] == -INFINITY ? 0 : block.exp2(s[n][i] - most[i / 2]);
        const Entry& of = entry[n * 8 + c + i % 2];
        new_z[i / 2] += kPlain ? e : of.den * e;
        new_tokens[i / 2] += e;
        new_squares[i / 2] += e * e;
        s[n][i] = kPlain ? e : of.num * e;
      }
      KVR_UNROLL for (int i = 0; i < 2; ++i) z[i] += new_z[i], tokens[i] += new_tokens[i], squares[i] += new_squares[i];
    }

    // D of two blocks of keys becomes A of 16 terms, as numbers of 16 bits.
    struct Shares {
      uint32_t high[4], low[4];
    };
    KVR_DEVICE static Shares shares_of(const float (&s)[kKeyBlocks][4], int step) {
      Shares p;
      KVR_UNROLL for (int i = 0; i < 4; ++i) {
        const float *const pair = s[2 * step + i / 2] + 2 * (i % 2), x = pair[0], y = pair[1];
        const uint16_t high_x = to_bf16(x), high_y = to_bf16(y);
        p.high[i] = uint32_t(high_x) | uint32_t(high_y) << 16;
        if constexpr (kValueProducts > 1)
          p.low[i] = uint32_t(to_bf16(x - from_bf16(high_x))) | uint32_t(to_bf16(y - from_bf16(high_y))) << 16;
      }
      return p;
    }

    // A stage is summed separately first. Tensor cores truncate, always towards zero, below the last digit of the sum
    // that they add to, so over a long row the errors would add up.
    KVR_DEVICE void add_values(const AttendKernel& k, const Block auto& block, int stage,
                               const float (&s)[kKeyBlocks][4]) {
      const int lane = block.thread() % kWarp;
      constexpr int kTerms = kKeys / 16;
      Shares p[kTerms];
      KVR_UNROLL for (int step = 0; step < kTerms; ++step) p[step] = shares_of(s, step);
      KVR_UNROLL for (int n = 0; n < kWidthBlocks; n += 2) {
        float sum[2][4] = {};
        KVR_UNROLL for (int step = 0; step < kTerms; ++step) {
          // B of two blocks of columns: 8 keys and the next 8, for the first, then for the second.
          const int from = (step * 16 + lane % 16) * kPitch + n * 8 + lane / 16 * 8;
          uint32_t high[4], low[4];
          block.load_matrices_transposed(high, k.plane(block, stage, kKeyPlanes) + from);
          if constexpr (kValuePlanes == 2)
            block.load_matrices_transposed(low, k.plane(block, stage, kKeyPlanes + 1) + from);
          KVR_UNROLL for (int i = 0; i < 2; ++i) {
            const uint32_t b_high[2] = {high[2 * i], high[2 * i + 1]};
            if constexpr (kValuePlanes == 2) {
              const uint32_t b_low[2] = {low[2 * i], low[2 * i + 1]};
              block.multiply_add(sum[i], p[step].high, b_low);
            }
            if constexpr (kValueProducts > 1) block.multiply_add(sum[i], p[step].low, b_high);
            block.multiply_add(sum[i], p[step].high, b_high);
          }
        }
        KVR_UNROLL for (int i = 0; i < 2; ++i) KVR_UNROLL for (int j = 0; j < 4; ++j) out[n + i][j] += sum[i][j];
      }
    }

    // at: index of the part's head in the sums.
    KVR_DEVICE void close(const AttendKernel& k, const Block auto& block, int64_t at) {
      KVR_UNROLL for (int i = 0; i < 2; ++i) {
        for (int mask = 1; mask <= 2; mask *= 2) {
          z[i] += block.shuffle_xor(z[i], mask);
          tokens[i] += block.shuffle_xor(tokens[i], mask);
          squares[i] += block.shuffle_xor(squares[i], mask);
        }
        if (row[i] >= k.a.rows) continue;
        const int64_t cell = at + row[i];
        if (c == 0) {
          k.a.sums.top[cell] = top[i];
          k.a.sums.z[cell] = z[i], k.a.sums.tokens[cell] = tokens[i], k.a.sums.squares[cell] = squares[i];
        }
        if constexpr (kValues)
          KVR_UNROLL for (int n = 0; n < kWidthBlocks; ++n) KVR_UNROLL for (int j = 0; j < 2; ++j)
              k.a.sums.out[cell * kWidth + n * 8 + c + j] = out[n][2 * i + j];
      }
    }
  };
};

}  // namespace kvreplay
