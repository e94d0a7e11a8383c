#include "trace/array_view.hpp"

#include <cstring>
#include <vector>

#include "core/bf16.hpp"
#include "core/halves.hpp"

namespace kvreplay {
namespace {

template <class T, class Widen>
void copy_rows(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* to, Widen widen) {
  const T* from = static_cast<const T*>(array.data) + head * array.strides[0] + first * array.strides[1];
  for (int64_t r = 0; r < rows; ++r, from += array.strides[1])
    for (int64_t c = 0; c < array.extents[2]; ++c) *to++ = widen(from[c * array.strides[2]]);
}

void copy_floats(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* to) {
  const auto* from = static_cast<const float*>(array.data) + head * array.strides[0] + first * array.strides[1];
  const size_t width = size_t(array.extents[2]);
  if (array.strides[2] != 1) return copy_rows<float>(array, head, first, rows, to, [](float x) { return x; });
  for (int64_t r = 0; r < rows; ++r, from += array.strides[1], to += width) std::memcpy(to, from, width * sizeof *to);
}

void widen_rows(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* to) {
  if (array.type == DType::float32) return copy_floats(array, head, first, rows, to);
  if (array.type == DType::float16) return copy_rows<uint16_t>(array, head, first, rows, to, widen_float16);
  copy_rows<uint16_t>(array, head, first, rows, to, [](uint16_t x) { return from_bf16(x); });
}

// Fetches the rows into a temporary array, then widens them like an array in memory.
void fetch_rows(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* to) {
  std::vector<std::byte> held(size_t(rows * array.extents[2] * bytes_of(array.type)));
  array.fetch(head, first, rows, held.data());
  ArrayView fetched{array.type, {1, rows, array.extents[2]}, held.data(), {0, array.extents[2], 1}, {}};
  widen_rows(fetched, 0, 0, rows, to);
}

}  // namespace

void read_rows(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* into) {
  if (array.fetch) fetch_rows(array, head, first, rows, into);
  else widen_rows(array, head, first, rows, into);
}

}  // namespace kvreplay
