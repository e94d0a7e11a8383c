#pragma once
#include <cstdint>
#include <vector>

// Keys of one kv head, packed once for the kernels.

namespace kvreplay::kernels {

// A matrix [terms, columns] of bf16 numbers, in tiles (TileMatrix of table.hpp).
struct TilePanels {
  int32_t term_blocks = 0;
  std::vector<uint16_t> numbers;
  TilePanels() = default;
  // Number (term, column) is x[term * term_stride + column * column_stride]. Nothing is packed if one of them is not a
  // bf16 number.
  TilePanels(const float* x, int32_t terms, int32_t columns, int64_t term_stride, int64_t column_stride);
};

// Keys of one kv head, packed once so that scores() reads whole vectors: panels of kPanel keys, each [d, kPanel], zeros
// after the last key.
template <class Real>
struct KeyPanels {
  int32_t keys = 0, d = 0;
  std::vector<Real> numbers;  // [panels, d, kPanel]
  TilePanels tiles;           // filled if the keys are bf16 numbers passed at construction, and the chosen path has
                              // tiles
  KeyPanels() = default;
  KeyPanels(int32_t n, int32_t dim);                 // all zero
  KeyPanels(const Real* k, int32_t n, int32_t dim);  // k: [n, d]
  // Replaces a key. It may be no bf16 number: the tiles are given up.
  void put(int32_t at, const Real* key);

 private:
  void fill(int32_t at, const Real* key);
};

}  // namespace kvreplay::kernels
