#pragma once
#include <cmath>

#include "core/layer_window.hpp"
#include "device/kernels/block.hpp"

// Column sums of the softmax, on tensor cores: for every token, how much attention the rows from some token on pay to
// it. The exact pass (AttendKernel) has run before: largest logit and normaliser of every row are known, so a
// probability needs no second pass over its row.
//
// A block takes 128 tokens of one query head, a warp 16 of them; their keys stay in the warp's registers. All rows that
// may see them are processed in order, 64 at a time through two buffers. Products are stored key by row, so a token's
// sum involves only one thread and three neighbours. Sums are float32 over the 16 rows of a tile that a thread sees,
// and double from tile to tile (convention C11).

namespace kvreplay {

struct ColumnArgs {
  // Numbers of 16 bits, rows padded with zeros to `width`. low: null if high is the whole number.
  const uint16_t *q_high, *q_low;  // [heads, rows, width]
  const uint16_t *k_high, *k_low;  // [blocks, tokens, width]
  const int32_t* row_token;        // [rows], ascending
  const float *top, *z;            // [heads, rows]; top: in base 2; both include the sink logit, if there is one
  double* sums;                    // [heads, columns]; of maxima: [columns]
  int32_t rows, tokens, heads, group;
  int32_t columns;       // tokens with a sum: 0..columns - 1
  int32_t first_row;     // rows of earlier tokens do not count
  float scale, softcap;  // 0: no cap
  LayerWindow window;
};

// kLogitProducts: 1 (high high) or 3. kMaxima: sums the probability of each row's largest head, over all heads.
template <int kWidth, int kLogitProducts, bool kMaxima = false>
struct ColumnKernel {
  static constexpr int kRows = 64, kKeys = 128, kThreads = 256;
  static constexpr int kPitch = kWidth + 8;  // 16 more bytes a row keep matrix loads off each other's banks
  static constexpr int kSteps = kWidth / 16, kRowBlocks = kRows / 8;
  static constexpr int kPlanes = kLogitProducts == 3 ? 2 : 1;
  static constexpr float kLog2e = 1.44269504088896341f;
  static_assert(kThreads / kWarp * 16 == kKeys);

  struct Entry {    // a row's entry in shared memory
    int32_t token;  // -1: does not count
    float top, inverse_z;
  };
  static constexpr size_t kPlaneBytes = size_t(kRows) * kPitch * 2;
  static constexpr size_t kStageBytes = kPlanes * kPlaneBytes + kRows * sizeof(Entry);
  static constexpr size_t kSharedBytes = 2 * kStageBytes;
  static_assert(kStageBytes % 16 == 0);

  ColumnArgs a;

  LaunchShape shape() const { return {key_tiles() * (kMaxima ? 1 : a.heads), kThreads, kSharedBytes}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    // Most rows see the first tokens: they go first.
    const int32_t first_key = int32_t(block.index() % key_tiles()) * kKeys,
                  first_head = int32_t(block.index() / key_tiles()), heads = kMaxima ? a.heads : 1;
    const int32_t first_tile = tile_from(first_key > a.first_row ? first_key : a.first_row);
    const int32_t stages = (tile_end(first_key + kKeys - 1) - first_tile) * heads;
    Warp warp;
    warp.open(block, first_key);
    Arrival next{};
    if (stages > 0) next = fetch(block, first_tile, first_head, 0);
    for (int32_t s = 0; s < stages; ++s) {
      const int32_t head = first_head + s % heads;
      put_entries(block, next, s % 2);
      block.template wait_copies<0>();
      block.sync();  // stage s has arrived, and no thread reads stage s - 1 any more
      if (s + 1 < stages) next = fetch(block, first_tile + (s + 1) / heads, first_head + (s + 1) % heads, (s + 1) % 2);
      if (s == 0 || (heads > a.group && head % a.group == 0)) warp.load_keys(*this, head / a.group);
      warp.take(*this, block, s % 2);
      if (s % heads == heads - 1) warp.end_tile();
    }
    warp.close(*this, block, a.sums + int64_t(first_head) * a.columns);
  }

 private:
  // A thread's data of the row that comes next.
  struct Arrival {
    int32_t token;
    float top, z;
  };

  KVR_FN int32_t key_tiles() const { return (a.columns + kKeys - 1) / kKeys; }
  KVR_DEVICE int32_t row_tiles() const { return (a.rows + kRows - 1) / kRows; }

  // The first tile for which is(tile) holds; it must hold for all later tiles.
  template <class F>
  KVR_DEVICE int32_t first_tile_where(F is) const {
    int32_t low = 0, high = row_tiles();
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (is(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  }
  // First tile with a row of this token or a later one.
  KVR_DEVICE int32_t tile_from(int32_t token) const {
    return first_tile_where([&](int32_t tile) {
      const int32_t end = (tile + 1) * kRows;
      return a.row_token[(end < a.rows ? end : a.rows) - 1] >= token;
    });
  }
  // First tile whose rows are all too late to see the key.
  KVR_DEVICE int32_t tile_end(int32_t key) const {
    if (!a.window.any()) return row_tiles();
    return first_tile_where([&](int32_t tile) { return a.window.first(a.row_token[tile * kRows]) > key; });
  }
  KVR_DEVICE bool sees(const Entry& row, int32_t key) const {
    return key <= row.token && (!a.window.any() || key >= a.window.first(row.token));
  }

  KVR_DEVICE uint16_t* queries(const Block auto& block, int stage, int index) const {
    return reinterpret_cast<uint16_t*>(block.shared() + stage * kStageBytes + index * kPlaneBytes);
  }
  KVR_DEVICE Entry* entries(const Block auto& block, int stage) const {
    return reinterpret_cast<Entry*>(block.shared() + stage * kStageBytes + kPlanes * kPlaneBytes);
  }

  // Starts the copies of a tile's queries and reads what put_entries() needs.
  KVR_DEVICE Arrival fetch(const Block auto& block, int32_t tile, int32_t head, int stage) const {
    constexpr int kPieces = kWidth / 8;
    for (int i = block.thread(); i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, column = i % kPieces * 8;
      const bool inside = tile * kRows + row < a.rows;
      const int64_t from = (int64_t(head) * a.rows + (inside ? tile * kRows + row : 0)) * kWidth + column;
      block.copy_async(queries(block, stage, 0) + row * kPitch + column, a.q_high + from, inside);
      if constexpr (kPlanes == 2)
        block.copy_async(queries(block, stage, 1) + row * kPitch + column, a.q_low + from, inside);
    }
    block.commit_copies();
    const int32_t row = tile * kRows + block.thread();
    if (block.thread() >= kRows || row >= a.rows) return {-1, 0, 1};
    const int64_t at = int64_t(head) * a.rows + row;
    return {a.row_token[row], a.top[at], a.z[at]};
  }
  KVR_DEVICE void put_entries(const Block auto& block, const Arrival& row, int stage) const {
    if (block.thread() < kRows)
      entries(block, stage)[block.thread()] = {row.token >= a.first_row ? row.token : -1, row.top, 1 / row.z};
  }

  // 16 tokens; a thread has tokens g and g + 8, and of every 8 rows c and c + 1.
  struct Warp {
    uint32_t keys[kSteps][kPlanes][4];
    float most[kMaxima ? kRowBlocks : 1][4];  // largest over the heads so far, in this tile
    float part[2];                            // sum over this tile
    double sum[2];                            // sum over this thread's rows until close()
    int32_t key[2];
    int c;

    KVR_DEVICE void open(const Block auto& block, int32_t first_key) {
      const int lane = block.thread() % kWarp;
      c = 2 * (lane % 4);
      KVR_UNROLL for (int i = 0; i < 2; ++i) {
        key[i] = first_key + block.thread() / kWarp * 16 + lane / 4 + 8 * i;
        part[i] = 0, sum[i] = 0;
      }
      KVR_UNROLL for (auto& m : most) KVR_UNROLL for (float& x : m) x = 0;
    }

    // Loads fragments of A directly from device memory: once for many rows.
    KVR_DEVICE void load_keys(const ColumnKernel& k, int32_t kv) {
      KVR_UNROLL for (int plane = 0; plane < kPlanes; ++plane) {
        const uint16_t* const all = plane == 0 ? k.a.k_high : k.a.k_low;
        KVR_UNROLL for (int i = 0; i < 4; ++i) {
          const int32_t token = key[i % 2] < k.a.tokens ? key[i % 2] : 0;  // a missing token has no sum
          const uint16_t* const from = all + (int64_t(kv) * k.a.tokens + token) * kWidth + c + i / 2 * 8;
          KVR_UNROLL for (int step = 0; step < kSteps; ++step) keys[step][plane][i] =
              *reinterpret_cast<const uint32_t*>(from + step * 16);
        }
      }
    }

    // Takes one tile of rows of one head.
    KVR_DEVICE void take(const ColumnKernel& k, const Block auto& block, int stage) {
      const Entry* const entry = k.entries(block, stage);
      // Rows ascend: if the first row sees the last key and the last row the first key, all rows see all keys.
      const int32_t first_key = key[0] - (block.thread() % kWarp) / 4, last = entry[kRows - 1].token;
      if (entry[0].token >= first_key + 15 && last >= 0 && (!k.a.window.any() || first_key >= k.a.window.first(last)))
        weigh<true>(k, block, stage, entry);
      else weigh<false>(k, block, stage, entry);
    }

    template <bool kPlain>
    KVR_DEVICE void weigh(const ColumnKernel& k, const Block auto& block, int stage, const Entry* entry) {
      KVR_UNROLL for (int n = 0; n < kRowBlocks; n += 2) {
        float s[2][4];
        find_logits(k, block, stage, n, s);
        KVR_UNROLL for (int i = 0; i < 2; ++i) KVR_UNROLL for (int j = 0; j < 4; ++j) {
          const Entry& row = entry[(n + i) * 8 + c + j % 2];
          float l = s[i][j] * k.a.scale;
          if (k.a.softcap > 0) l = k.a.softcap * std::tanh(l / k.a.softcap);
          const float p = kPlain || k.sees(row, key[j / 2]) ? block.exp2(l * kLog2e - row.top) * row.inverse_z : 0;
          if constexpr (!kMaxima) part[j / 2] += p;
          else if (p > most[n + i][j] || p != p) most[n + i][j] = p;  // NaN stays
        }
      }
    }

    // Products of the 16 keys and rows [8 n, 8 n + 16), summed in the order of AttendKernel.
    KVR_DEVICE void find_logits(const ColumnKernel& k, const Block auto& block, int stage, int n,
                                float (&s)[2][4]) const {
      KVR_UNROLL for (auto& rows : s) KVR_UNROLL for (float& x : rows) x = 0;
      const int lane = block.thread() % kWarp;
      // B of two blocks of rows: both halves of the first, then of the second.
      const int from = (n * 8 + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
      KVR_UNROLL for (int step = 0; step < kSteps; ++step) {
        uint32_t high[4], low[4];
        block.load_matrices(high, k.queries(block, stage, 0) + from + step * 16);
        if constexpr (kPlanes == 2) block.load_matrices(low, k.queries(block, stage, 1) + from + step * 16);
        KVR_UNROLL for (int i = 0; i < 2; ++i) {
          const uint32_t q_high[2] = {high[2 * i], high[2 * i + 1]};
          if constexpr (kPlanes == 2) {
            const uint32_t q_low[2] = {low[2 * i], low[2 * i + 1]};
            block.multiply_add(s[i], keys[step][0], q_low);
            block.multiply_add(s[i], keys[step][1], q_high);
          }
          block.multiply_add(s[i], keys[step][0], q_high);
        }
      }
    }

    KVR_DEVICE void end_tile() {
      if constexpr (kMaxima)
        KVR_UNROLL for (auto& m : most) KVR_UNROLL for (int j = 0; j < 4; ++j) part[j / 2] += m[j], m[j] = 0;
      KVR_UNROLL for (int i = 0; i < 2; ++i) sum[i] += double(part[i]), part[i] = 0;
    }

    KVR_DEVICE void close(const ColumnKernel& k, const Block auto& block, double* sums) {
      KVR_UNROLL for (int i = 0; i < 2; ++i) {
        for (int mask = 1; mask <= 2; mask *= 2) sum[i] += block.shuffle_xor(sum[i], mask);
        if (c == 0 && key[i] < k.a.columns) sums[key[i]] = sum[i];
      }
    }
  };
};

}  // namespace kvreplay
