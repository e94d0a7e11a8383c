#pragma once
#include "core/bf16.hpp"
#include "kernels/table.hpp"

// Products of bf16 numbers on tiles, shared by all machines that have such tiles. A translation unit defines Tiles in
// this unnamed namespace before it includes this file: eight tiles of 1 KiB, prepared for this thread by the
// constructor, with
//   zero<T>()                  16 x 16 floats
//   load<T>(p, stride)         16 rows of 32 bf16 numbers; the stride counts numbers, as in store
//   multiply<C, A, B>()        C += A B, where row r of B holds terms 2 r and 2 r + 1 of 16 columns in turn
//   store<T>(p, stride)
// As in vector_kernels.hpp nothing here is visible to other units.
//
// The columns are bf16 numbers. Each float of a row is split into a sum of three bf16 numbers (one if it is a bf16
// number itself), so the only error of a product is the rounding of sums.

namespace kvreplay::kernels {
namespace {

constexpr int32_t kTileRows = 16, kTileTerms = 32, kTileNumbers = kTileRows * kTileTerms;
constexpr int32_t kBlock = 2 * kTileRows;  // rows and columns of a block of four tiles
constexpr int32_t kSplitTerms = 512;       // terms that are split at a time
constexpr int32_t kParts = 3;              // numbers of 8 digits that add up to one of 24 digits

struct SplitRows {
  alignas(64) uint16_t parts[kParts][kBlock * kSplitTerms];
  int32_t stride;
  int32_t count;  // largest number of parts that any number needs
};

// Writes one part of `terms` numbers of a row and subtracts it from them; returns whether only zeros remain.
inline bool split_part(float* rest, int32_t terms, uint16_t* part) {
  uint32_t any = 0;
  for (int32_t c = 0; c < terms; ++c) {
    const uint16_t top = to_bf16(rest[c]);
    part[c] = top;
    rest[c] = (top & 0x7f80) == 0x7f80 ? 0 : rest[c] - from_bf16(top);
    any |= float_bits(rest[c]) & 0x7fffffff;
  }
  return any == 0;
}

inline void split_rows(const float* a, int64_t lda, int32_t rows, int32_t terms, SplitRows& to) {
  const int32_t padded = (terms + kTileTerms - 1) / kTileTerms * kTileTerms;
  to.stride = padded;
  to.count = 1;
  for (auto& part : to.parts) __builtin_memset(part, 0, size_t(kBlock * padded) * sizeof *part);
  float rest[kSplitTerms];
  for (int32_t i = 0; i < rows; ++i) {
    __builtin_memcpy(rest, a + i * lda, size_t(terms) * sizeof *rest);
    for (int32_t p = 0; p < kParts; ++p) {
      to.count = p < to.count ? to.count : p + 1;
      if (split_part(rest, terms, to.parts[p] + i * padded)) break;
    }
  }
}

// Tiles 0..3 hold a block of sums, 4 and 5 its rows, 6 and 7 its columns.
inline void multiply_block(Tiles& t, const uint16_t* a, int64_t stride, const uint16_t* b, int64_t next) {
  t.load<4>(a, stride);
  t.load<5>(a + kTileRows * stride, stride);
  t.load<6>(b, kTileTerms);
  t.load<7>(b + next, kTileTerms);
  t.multiply<0, 4, 6>();
  t.multiply<1, 4, 7>();
  t.multiply<2, 5, 6>();
  t.multiply<3, 5, 7>();
}

inline void sum_block(Tiles& t, const SplitRows& a, const TileMatrix& b, int64_t at) {
  const int64_t next = int64_t(b.term_blocks) * kTileNumbers;
  t.zero<0>();
  t.zero<1>();
  t.zero<2>();
  t.zero<3>();
  for (int32_t c = 0; c < a.stride; c += kTileTerms, at += kTileNumbers)
    for (int32_t p = 0; p < a.count; ++p) multiply_block(t, a.parts[p] + c, a.stride, b.numbers + at, next);
}

struct Target {
  float* out;
  int64_t ldo;
  int32_t rows, columns;  // wanted rows and columns of the block
  bool add;               // add to the numbers in `out`
};

inline void store_block(Tiles& t, const Target& to) {
  if (!to.add && to.rows == kBlock && to.columns == kBlock) {
    t.store<0>(to.out, to.ldo);
    t.store<1>(to.out + kTileRows, to.ldo);
    t.store<2>(to.out + kTileRows * to.ldo, to.ldo);
    t.store<3>(to.out + kTileRows * to.ldo + kTileRows, to.ldo);
    return;
  }
  alignas(64) float block[kBlock * kBlock];
  t.store<0>(block, kBlock);
  t.store<1>(block + kTileRows, kBlock);
  t.store<2>(block + kTileRows * kBlock, kBlock);
  t.store<3>(block + kTileRows * kBlock + kTileRows, kBlock);
  for (int32_t i = 0; i < to.rows; ++i)
    for (int32_t j = 0; j < to.columns; ++j)
      to.out[i * to.ldo + j] = (to.add ? to.out[i * to.ldo + j] : 0) + block[i * kBlock + j];
}

inline int32_t at_most(int32_t most, int32_t n) { return n < most ? n : most; }

inline void tile_product(const float* a, int64_t lda, int32_t m, const TileMatrix& b, int32_t terms, int32_t columns,
                         float* out, int64_t ldo) {
  Tiles tiles;
  SplitRows rows;
  if (terms == 0)
    for (int32_t i = 0; i < m; ++i)
      for (int32_t j = 0; j < columns; ++j) out[i * ldo + j] = 0;
  for (int32_t c = 0; c < terms; c += kSplitTerms)
    for (int32_t i = 0; i < m; i += kBlock) {
      const int32_t height = at_most(kBlock, m - i);
      split_rows(a + i * lda + c, lda, height, at_most(kSplitTerms, terms - c), rows);
      for (int32_t j = 0; j < columns; j += kBlock) {
        const int64_t block = int64_t(j / kTileRows) * b.term_blocks + c / kTileTerms;
        sum_block(tiles, rows, b, block * kTileNumbers);
        store_block(tiles, {out + i * ldo + j, ldo, height, at_most(kBlock, columns - j), c > 0});
      }
    }
}

}  // namespace
}  // namespace kvreplay::kernels
