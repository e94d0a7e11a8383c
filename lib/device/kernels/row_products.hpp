#pragma once
#include "core/attend.hpp"
#include "device/kernels/block.hpp"

// Products of a few vectors with rows at any addresses, and sums of such rows, by all threads of a block. Neighbouring
// lanes read neighbouring numbers of a row, so a row may have any width and any alignment.

namespace kvreplay {

// Vectors that rows are multiplied with: [count, dim], in shared memory.
struct ProductQueries {
  const float* numbers;
  int32_t count, dim;
};
// Output of products: number q * stride + i is that of vector q with row i.
struct ProductTable {
  float* to;
  int64_t stride;
};

// Product of a rotated key with a vector: number c of the key is multiplied with cosine * vector[c] + sine *
// vector[partner].
struct RotatedNumber {
  float cosine, sine;
  int32_t partner;
  KVR_FN static RotatedNumber of(const Rotation<float>& r, int32_t offset, int32_t c) {
    if (offset == 0 || c >= 2 * r.pairs) return {1, 0, c};
    const bool second = r.interleaved ? c % 2 != 0 : c >= r.pairs;
    const int32_t pair = r.interleaved ? c / 2 : second ? c - r.pairs : c;
    const int32_t distance = r.interleaved ? 1 : r.pairs;
    const float sine = r.sines[int64_t(offset) * r.pairs + pair];
    return {r.cosines[int64_t(offset) * r.pairs + pair], second ? -sine : sine, second ? c - distance : c + distance};
  }
};

class KeyProducts {
  // Lanes that share a row, rows of each of these at once, vectors at once, numbers of a lane at once.
  static constexpr int kLanes = 8, kRows = 2, kQueries = 4, kPiece = 8;
  static_assert(kRows * kQueries == kLanes);

 public:
  // Multiplies rows i < n with all vectors. key(i): numbers of row i; offset(i): positions by which row i is rotated
  // forward. The vectors must be complete; ends with a barrier.
  template <bool kRotates, class K, class O>
  KVR_DEVICE static void multiply(const Block auto& block, int32_t n, K key, const ProductQueries& q,
                                  const ProductTable& table, const Rotation<float>& rotation, O offset) {
    const int32_t lane = block.thread() % kLanes, group = block.thread() / kLanes, groups = block.threads() / kLanes;
    for (int32_t first = group; first - group < n; first += kRows * groups) {
      const float* keys[kRows];
      int32_t offsets[kRows];
      KVR_UNROLL for (int r = 0; r < kRows; ++r) {
        const int32_t i = first + r * groups < n ? first + r * groups : n - 1;
        keys[r] = key(i);
        offsets[r] = kRotates ? offset(i) : 0;
      }
      for (int32_t head = 0; head < q.count; head += kQueries) {
        float sums[kLanes];
        KVR_UNROLL for (float& s : sums) s = 0;
        for (int32_t c = lane; c < q.dim; c += kLanes * kPiece)
          add_piece<kRotates>(q, head, c, keys, rotation, offsets, sums);
        const float mine = sum_of_lanes(block, lane, sums);
        const int32_t i = first + lane / kQueries * groups, of = head + lane % kQueries;
        if (i < n && of < q.count) table.to[int64_t(of) * table.stride + i] = mine;
      }
    }
    block.sync();
  }

 private:
  template <bool kRotates>
  KVR_DEVICE static void add_piece(const ProductQueries& q, int32_t head, int32_t first,
                                   const float* const (&keys)[kRows], const Rotation<float>& rotation,
                                   const int32_t (&offsets)[kRows], float (&sums)[kLanes]) {
    float x[kRows][kPiece];
    KVR_UNROLL for (int r = 0; r < kRows; ++r) KVR_UNROLL for (int j = 0; j < kPiece; ++j) {
      const int32_t c = first + j * kLanes;
      x[r][j] = c < q.dim ? keys[r][c] : 0;
    }
    KVR_UNROLL for (int j = 0; j < kPiece; ++j) {
      const int32_t c = first + j * kLanes;
      if (c >= q.dim) break;
      KVR_UNROLL for (int r = 0; r < kRows; ++r) {
        RotatedNumber turned{1, 0, c};
        if constexpr (kRotates) turned = RotatedNumber::of(rotation, offsets[r], c);
        KVR_UNROLL for (int k = 0; k < kQueries; ++k) {
          const int32_t of = head + k < q.count ? head + k : q.count - 1;
          const float* const vector = q.numbers + int64_t(of) * q.dim;
          float y = vector[c];
          if constexpr (kRotates) y = turned.cosine * y + turned.sine * vector[turned.partner];
          sums[r * kQueries + k] += x[r][j] * y;
        }
      }
    }
  }
  // Lane l gets the sum over the 8 lanes of their number l.
  KVR_DEVICE static float sum_of_lanes(const Block auto& block, int32_t lane, float (&x)[kLanes]) {
    KVR_UNROLL for (int half = kLanes / 2; half > 0; half /= 2) {
      const bool upper = (lane & half) != 0;
      KVR_UNROLL for (int j = 0; j < kLanes / 2; ++j) {
        if (j >= half) break;
        const float keep = upper ? x[j + half] : x[j], give = upper ? x[j] : x[j + half];
        x[j] = keep + block.shuffle_xor(give, half);
      }
    }
    return x[0];
  }
};

// Sums of rows with weights. Each warp takes some rows; their sums are added in the order of the warps.
class RowSums {
  static constexpr int kHeads = 4, kColumns = 2, kRows = 4, kWidth = kColumns * kWarp;

 public:
  static constexpr size_t scratch_floats(int threads) { return size_t(threads / kWarp * kHeads * kWidth); }
  // Calls take(h, c, sum over i < n of weights[h * stride + i] row(i)[c]), h < heads, c < width. A row of weight 0 is
  // not read. partial: scratch_floats() of shared memory. Begins and ends with a barrier.
  template <class R, class F>
  KVR_DEVICE static void weigh(const Block auto& block, int32_t n, R row, const ProductTable& weights, int32_t heads,
                               int32_t width, float* partial, F take) {
    const int warps = block.threads() / kWarp, warp = block.thread() / kWarp, lane = block.thread() % kWarp;
    for (int32_t head = 0; head < heads; head += kHeads)
      for (int32_t column = 0; column < width; column += kWidth) {
        float sums[kHeads][kColumns];
        KVR_UNROLL for (auto& of_head : sums) KVR_UNROLL for (float& s : of_head) s = 0;
        const int32_t count = heads - head < kHeads ? heads - head : kHeads;
        for (int32_t first = warp * kRows; first < n; first += warps * kRows)
          add_rows(n, first, row, {weights.to + int64_t(head) * weights.stride, weights.stride}, count, column + lane,
                   width, sums);
        block.sync();  // previous content of `partial` has been read
        KVR_UNROLL for (int h = 0; h < kHeads; ++h) KVR_UNROLL for (int j = 0; j < kColumns; ++j)
            partial[(warp * kHeads + h) * kWidth + j * kWarp + lane] = sums[h][j];
        block.sync();
        for (int i = block.thread(); i < count * kWidth; i += block.threads()) {
          if (column + i % kWidth >= width) continue;
          float sum = 0;
          for (int w = 0; w < warps; ++w) sum += partial[w * kHeads * kWidth + i];
          take(head + i / kWidth, column + i % kWidth, sum);
        }
      }
    block.sync();
  }

 private:
  template <class R>
  KVR_DEVICE static void add_rows(int32_t n, int32_t first, R row, const ProductTable& weights, int32_t heads,
                                  int32_t column, int32_t width, float (&sums)[kHeads][kColumns]) {
    float w[kRows][kHeads], x[kRows][kColumns];
    KVR_UNROLL for (int r = 0; r < kRows; ++r) {
      bool counts = false;
      KVR_UNROLL for (int h = 0; h < kHeads; ++h) {
        w[r][h] = h < heads && first + r < n ? weights.to[int64_t(h) * weights.stride + first + r] : 0;
        counts = counts || w[r][h] != 0;
      }
      const float* const numbers = counts ? row(first + r) : nullptr;
      KVR_UNROLL for (int j = 0; j < kColumns; ++j) {
        const int32_t c = column + j * kWarp;
        x[r][j] = counts && c < width ? numbers[c] : 0;
      }
    }
    KVR_UNROLL for (int r = 0; r < kRows; ++r) KVR_UNROLL for (int h = 0; h < kHeads; ++h)
        KVR_UNROLL for (int j = 0; j < kColumns; ++j) sums[h][j] += w[r][h] != 0 ? w[r][h] * x[r][j] : 0;
  }
};

}  // namespace kvreplay
