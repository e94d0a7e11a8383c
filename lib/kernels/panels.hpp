#pragma once
#include <cstdint>
#include <vector>

// Keys and values of one kv head, packed once for the kernels.

namespace kvreplay::kernels {

// A matrix [terms, columns] as bf16 numbers in tiles (TileMatrix of table.hpp): each number the sum of a high
// and a low one, or of a high one alone if that is all of it for every number.
struct HalfPanels {
  int32_t term_blocks = 0;
  std::vector<uint16_t> high, low;
  HalfPanels() = default;
  // Number (term, column) is x[term * term_stride + column * column_stride].
  HalfPanels(const float* x, int32_t terms, int32_t columns, int64_t term_stride, int64_t column_stride);
};

// Keys of one kv head, packed once so that scores() reads whole vectors: panels of kPanel keys, each
// [d, kPanel], zeros behind the last key.
template <class Real>
struct KeyPanels {
  int32_t keys = 0, d = 0;
  std::vector<Real> numbers;  // [panels, d, kPanel]
  HalfPanels halves;  // of float keys that are packed at once, where the chosen path multiplies in tiles
  KeyPanels() = default;
  KeyPanels(int32_t n, int32_t dim);                 // all zero
  KeyPanels(const Real* k, int32_t n, int32_t dim);  // k: [n, d]
  void put(int32_t at, const Real* key);
};

// Values of one kv head, made ready for products once. `numbers` are the caller's and must outlive this.
template <class Real>
struct ValuePanels {
  const Real* numbers = nullptr;  // [tokens, dim]
  int32_t tokens = 0, dim = 0;
  HalfPanels halves;  // of float values, where the chosen path multiplies in tiles
  ValuePanels() = default;
  ValuePanels(const Real* v, int32_t n, int32_t d);
};

}  // namespace kvreplay::kernels
