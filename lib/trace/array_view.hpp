#pragma once
#include <cstdint>
#include <functional>

#include "core/dtype.hpp"

namespace kvreplay {

// A tensor [heads, rows, width] owned by the caller: in memory, with its axes in any order, or supplied by `fetch`.
struct ArrayView {
  DType type = DType::float32;
  int64_t extents[3] = {};
  const void* data = nullptr;
  int64_t strides[3] = {};  // elements
  // Used if `data` is null: writes rows first..first+rows-1 of a head, [rows, width], in `type`.
  std::function<void(int64_t head, int64_t first, int64_t rows, void* into)> fetch;
  DeviceTensor on_device = {};  // where the numbers that are fetched lie, if that is known
};

// Rows first..first+rows-1 of a head, widened exactly to float, [rows, width].
void read_rows(const ArrayView& array, int64_t head, int64_t first, int64_t rows, float* into);

}  // namespace kvreplay
