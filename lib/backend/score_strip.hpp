#pragma once
#include <cmath>

#include "backend/block.hpp"
#include "backend/score_chain.hpp"

namespace kvreplay {

// The strip of a score chain's tile: logits of its steps with every column, found by tensor cores, their
// exponentials and the sums of rows; and where a chain's numbers are in shared memory.
//
// kProducts: 1 (high high) or 3 (and high low, low high). kWidth: 64, 128, 256.
template <int kWidth, int kProducts, int kBlockThreads>
class ScoreStrip {
 public:
  static constexpr int kThreads = kBlockThreads, kWarps = kThreads / kWarp;
  static constexpr int kTile = 16;            // steps: the rows of a tensor core's product
  static constexpr size_t kLowestBytes = 16;  // that a warp passes on a step

  // Extents, and where things are in shared memory, in bytes.
  struct Room {
    int32_t slots, columns, pitch, rows;
    size_t score, sum, weight, lowest, queries, strip, token, vacated, least, top, bytes;

    KVR_FN Room(int32_t heads, int32_t budget, bool with_strip) {
      constexpr int32_t kRound = 32;
      columns = (budget + kTile + kRound - 1) / kRound * kRound;
      slots = columns - kTile, rows = heads * kTile;
      pitch = columns + 8;  // 8 rows of 8 columns lie in different banks
      bytes = 0;
      lowest = take(2 * kWarps * kLowestBytes);
      queries = take(size_t(kPlanes) * size_t(rows) * kWidth * sizeof(uint16_t));
      strip = take(with_strip ? size_t(rows) * size_t(pitch) * sizeof(float) : 0);
      score = take(size_t(columns) * sizeof(double));
      sum = take(size_t(rows) * sizeof(double));
      weight = take(size_t(kWarps) * size_t(heads) * sizeof(double));
      token = take(size_t(columns) * sizeof(int32_t));
      vacated = take(kTile * sizeof(int32_t));
      least = take(size_t(rows) * sizeof(float));
      top = take(size_t(rows) * kWarps * sizeof(float));
    }
    KVR_FN size_t take(size_t n) {
      const size_t at = bytes;
      bytes += (n + 15) / 16 * 16;
      return at;
    }
  };

 protected:
  const ScoreChain& chain;  // in device memory: loops copy what they need of it
  const Room room;
  uint16_t* queries;             // [planes, width / 32, rows, 32]
  float *strip, *least, *top;    // [rows, pitch]; [rows] what z may fall to; [rows, warps]
  double* sum;                   // [rows]
  int32_t* token;                // [columns], -1: empty or gone
  int32_t begin = 0, steps = 0;  // of the tile

  KVR_DEVICE ScoreStrip(const ScoreChain& of, unsigned char* memory)
      : chain(of), room(chain.heads, chain.budget, chain.scratch == nullptr) {
    queries = reinterpret_cast<uint16_t*>(memory + room.queries);
    strip = chain.scratch != nullptr ? chain.scratch : reinterpret_cast<float*>(memory + room.strip);
    least = reinterpret_cast<float*>(memory + room.least);
    top = reinterpret_cast<float*>(memory + room.top);
    sum = reinterpret_cast<double*>(memory + room.sum);
    token = reinterpret_cast<int32_t*>(memory + room.token);
  }

  // Queries of a tile, to be waited for.
  KVR_DEVICE void fetch_queries(const Block auto& block, int32_t from) const {
    constexpr int32_t kPieces = kWidth / 8;
    const int32_t plane = room.rows * kWidth;
    KVR_ROLLED for (int32_t i = block.thread(); i < room.rows * kPieces; i += kThreads) {
      const int32_t row = i / kPieces, x = i % kPieces * 8, t = from + row % kTile;
      const bool inside = t < chain.last;
      const int64_t at =
          (int64_t(row / kTile) * chain.rows + (inside ? t - chain.first_row : 0)) * kWidth + x;
      uint16_t* const to = queries + (x / kChunk * room.rows + row) * kChunk + x % kChunk;
      block.copy_async(to, chain.q_high + at, inside);
      if constexpr (kPlanes == 2) block.copy_async(to + plane, chain.q_low + at, inside);
    }
    block.commit_copies();
  }

  // The strip and the sums of steps `from` and later, over what is held now.
  KVR_DEVICE void prepare(const Block auto& block, int32_t from) const {
    block.template wait_copies<0>();
    if (from > 0) {  // what was waited for are the next tile's
      fetch_queries(block, begin);
      block.template wait_copies<0>();
    }
    block.sync();
    find_products(block);
    block.sync();
    exponentiate(block, from);
    block.sync();
    fetch_queries(block, begin + kTile);
  }

 private:
  static constexpr int kPlanes = kProducts == 3 ? 2 : 1;
  static constexpr int kChunk = 32;  // numbers of a key that 4 threads load at once
  static constexpr int kChunks = kWidth / kChunk, kKeyWords = kChunks * kPlanes;
  // Keys that a warp holds in registers, by 8, and the most query heads that meet them there.
  static constexpr int kKeyBlocks = kKeyWords <= 2 ? 4 : kKeyWords <= 8 ? 2 : 1, kColumns = 8 * kKeyBlocks;
  static constexpr int kHeads = 4;
  static constexpr float kLog2e = 1.44269504088896341f;
  static_assert(kWidth % kChunk == 0 && (kProducts == 1 || kProducts == 3));
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);

  // 16 bytes: 8 numbers of a query or a key.
  struct Words {
    uint32_t w[4];
    KVR_DEVICE static Words at(const uint16_t* from) {
      Words x;
      __builtin_memcpy(&x, __builtin_assume_aligned(from, 16), sizeof x);
      return x;
    }
  };
  struct alignas(8) Two {
    float x[2];
  };
  struct alignas(16) Four {
    float x[4];
  };

  // A warp takes some columns at a time, for up to 4 query heads of one kv head.
  KVR_DEVICE void find_products(const Block auto& block) const {
    const int warp = block.thread() / kWarp;
    const ScoreChain c = chain;
    for (int32_t kv = 0; kv * c.group < c.heads; ++kv) {
      for (int32_t in_group = 0; in_group < c.group; in_group += kHeads) {
        const int32_t head = kv * c.group + in_group;
        const int32_t heads = c.group - in_group < kHeads ? c.group - in_group : kHeads;
        float most[kHeads][2];
        KVR_UNROLL for (auto& m : most) m[0] = m[1] = -INFINITY;
        for (int32_t column = warp * kColumns; column < room.columns; column += kWarps * kColumns) {
          Words high[kKeyBlocks][kChunks], low[kKeyBlocks][kChunks];
          load_keys(block, c, kv, column, high, low);
          KVR_ROLLED for (int32_t h = 0; h < heads; ++h) {
            float s[kKeyBlocks][4], m[2];
            multiply(block, (head + h) * kTile, high, low, s);
            put(block, c.scale, (head + h) * kTile, column, s, m);
            KVR_UNROLL for (int32_t i = 0; i < kHeads; ++i) {
              KVR_UNROLL for (int j = 0; j < 2; ++j) {
                if (i == h && m[j] > most[i][j]) most[i][j] = m[j];
              }
            }
          }
        }
        put_tops(block, head, heads, most);
      }
    }
  }

  // Sums may take the numbers of a row in any order, so a thread's fragments of two steps of 16 are the 8
  // neighbours that it loads at once.
  KVR_DEVICE void load_keys(const Block auto& block, const ScoreChain& c, int32_t kv, int32_t column,
                            Words (&high)[kKeyBlocks][kChunks], Words (&low)[kKeyBlocks][kChunks]) const {
    const int lane = block.thread() % kWarp;
    KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
      const int32_t t = token[column + 8 * n + lane / 4];
      const int64_t from = (int64_t(kv) * c.tokens + (t < 0 ? 0 : t)) * kWidth + lane % 4 * 8;
      KVR_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
        high[n][chunk] = Words::at(c.k_high + from + chunk * kChunk);
        if constexpr (kPlanes == 2) low[n][chunk] = Words::at(c.k_low + from + chunk * kChunk);
      }
    }
  }
  // s: products of 16 rows with the columns.
  KVR_DEVICE void multiply(const Block auto& block, int32_t row, const Words (&high)[kKeyBlocks][kChunks],
                           const Words (&low)[kKeyBlocks][kChunks], float (&s)[kKeyBlocks][4]) const {
    const int lane = block.thread() % kWarp;
    KVR_UNROLL for (auto& d : s) d[0] = d[1] = d[2] = d[3] = 0;
    KVR_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint16_t* const q = queries + (chunk * room.rows + row + lane / 4) * kChunk + lane % 4 * 8;
      const Words q_high[2] = {Words::at(q), Words::at(q + 8 * kChunk)};
      if constexpr (kPlanes == 2) {
        const uint16_t* const l = q + room.rows * kWidth;
        const Words q_low[2] = {Words::at(l), Words::at(l + 8 * kChunk)};
        KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
          multiply_add(block, s[n], q_low, high[n][chunk]);
          multiply_add(block, s[n], q_high, low[n][chunk]);
        }
      }
      KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) multiply_add(block, s[n], q_high, high[n][chunk]);
    }
  }
  // 32 terms of each sum. a: of rows g and g + 8.
  KVR_DEVICE static void multiply_add(const Block auto& block, float (&d)[4], const Words (&a)[2],
                                      const Words& b) {
    KVR_UNROLL for (int i = 0; i < 4; i += 2) {
      const uint32_t rows[4] = {a[0].w[i], a[1].w[i], a[0].w[i + 1], a[1].w[i + 1]};
      const uint32_t columns[2] = {b.w[i], b.w[i + 1]};
      block.multiply_add(d, rows, columns);
    }
  }
  // Scaled; -infinity where a row does not see the column. m: the rows' maxima.
  KVR_DEVICE void put(const Block auto& block, float scale, int32_t row, int32_t column,
                      const float (&s)[kKeyBlocks][4], float (&m)[2]) const {
    const int lane = block.thread() % kWarp, g = lane / 4, x = lane % 4 * 2;
    m[0] = m[1] = -INFINITY;
    KVR_UNROLL for (int n = 0; n < kKeyBlocks; ++n) {
      const int32_t at = column + 8 * n + x, of[2] = {token[at], token[at + 1]};
      KVR_UNROLL for (int i = 0; i < 2; ++i) {
        Two pair;
        KVR_UNROLL for (int j = 0; j < 2; ++j) {
          pair.x[j] = of[j] >= 0 && of[j] <= begin + g + 8 * i ? s[n][2 * i + j] * scale : -INFINITY;
          if (pair.x[j] > m[i]) m[i] = pair.x[j];
        }
        *reinterpret_cast<Two*>(strip + (row + g + 8 * i) * room.pitch + at) = pair;
      }
    }
  }
  KVR_DEVICE void put_tops(const Block auto& block, int32_t head, int32_t heads,
                           float (&most)[kHeads][2]) const {
    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    KVR_UNROLL for (int h = 0; h < kHeads; ++h) KVR_UNROLL for (int i = 0; i < 2; ++i) {
      float m = most[h][i];
      KVR_UNROLL for (int mask = 1; mask <= 2; mask *= 2) {  // the four threads of a row agree
        const float other = block.shuffle_xor(m, mask);
        if (other > m) m = other;
      }
      if (h < heads && lane % 4 == 0) top[((head + h) * kTile + lane / 4 + 8 * i) * kWarps + warp] = m;
    }
  }

  // A warp takes a row at a time.
  KVR_DEVICE void exponentiate(const Block auto& block, int32_t from) const {
    const ScoreChain c = chain;
    for (int32_t row = block.thread() / kWarp; row < room.rows; row += kWarps) {
      const int32_t s = row % kTile;
      if (s < from || s >= steps) continue;
      float most = -INFINITY;
      for (int w = 0; w < kWarps; ++w)
        if (const float x = top[row * kWarps + w]; x > most) most = x;
      most = logit(c.softcap, most);  // which grows with the product
      const float sink = c.sink_logits == nullptr ? -INFINITY : c.sink_logits[row / kTile] * kLog2e;
      if (sink > most) most = sink;
      double z = exponentiate_row(block, c.softcap, strip + row * room.pitch, most);
      KVR_UNROLL for (int mask = kWarp / 2; mask > 0; mask /= 2) z += block.shuffle_xor(z, mask);
      if (block.thread() % kWarp != 0) continue;
      if (c.sink_logits != nullptr) z += double(block.exp2(sink - most));
      sum[row] = z, least[row] = float(z) / 8;
    }
  }
  // Returns the sum of this thread's numbers.
  KVR_DEVICE double exponentiate_row(const Block auto& block, float softcap, float* row, float most) const {
    constexpr int kAtOnce = 2, kApart = 4 * kWarp;
    double z = 0;
    for (int32_t i = block.thread() % kWarp * 4; i < room.columns; i += kAtOnce * kApart) {
      Four f[kAtOnce];
      KVR_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * kApart >= room.columns) continue;
        f[j] = *reinterpret_cast<const Four*>(row + i + j * kApart);
      }
      KVR_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * kApart >= room.columns) continue;
        KVR_UNROLL for (float& x : f[j].x) x = x == -INFINITY ? 0 : block.exp2(logit(softcap, x) - most);
        *reinterpret_cast<Four*>(row + i + j * kApart) = f[j];
        z += double((f[j].x[0] + f[j].x[1]) + (f[j].x[2] + f[j].x[3]));
      }
    }
    return z;
  }
  // In base 2, of a product times the scale.
  KVR_DEVICE static float logit(float softcap, float x) {
    if (softcap > 0) x = softcap * std::tanh(x / softcap);
    return x * kLog2e;
  }
};

}  // namespace kvreplay
