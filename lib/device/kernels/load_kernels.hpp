#pragma once
#include "core/dtype.hpp"
#include "device/kernels/block.hpp"

// Rows in the forms that the other kernels read.

namespace kvreplay {

// Rows of a tensor that the device holds, in the type and order that its owner chose.
struct RowsInPlace {
  const void* data;
  DType type;
  int64_t strides[3];  // between heads, rows and columns, in numbers
  const int32_t* row;  // [rows] rows of the tensor; null: 0, 1, ...
  int64_t heads, rows;
  int32_t dim;

  KVR_FN int64_t count() const { return heads * rows * dim; }
  // Number i of [heads, rows, dim].
  KVR_FN float operator[](int64_t i) const {
    const int64_t r = i / dim % rows, at = row == nullptr ? r : row[r];
    return number_at(data, type, i / dim / rows * strides[0] + at * strides[1] + i % dim * strides[2]);
  }
};

// Copies rows, widened to float32.
struct GatherKernel {
  static constexpr int kThreads = 256;
  RowsInPlace from;
  float* to;  // [heads, rows, dim]

  LaunchShape shape() const { return {(from.count() + kThreads - 1) / kThreads, kThreads, 0}; }
  KVR_DEVICE void operator()(const Block auto& block) const {
    const int64_t i = block.index() * kThreads + block.thread();
    if (i < from.count()) to[i] = from[i];
  }
};

// Sets `found` if a number is not usable.
struct UnusableKernel {
  static constexpr int kThreads = 256;
  RowsInPlace from;
  int32_t* found;

  LaunchShape shape() const { return {(from.count() + kThreads - 1) / kThreads, kThreads, 0}; }
  KVR_DEVICE void operator()(const Block auto& block) const {
    const int64_t i = block.index() * kThreads + block.thread();
    if (i < from.count() && !is_usable(from[i])) *found = 1;
  }
};

// Splits float32 numbers into one or two numbers of 16 bits that add up to them, with rows padded by zeros.
struct PackKernel {
  static constexpr int kThreads = 256;
  const float* from;     // [rows, dim]
  uint16_t *high, *low;  // [rows, width]; low may be null
  int64_t rows;
  int32_t dim, width;

  LaunchShape shape() const { return {(rows * width + kThreads - 1) / kThreads, kThreads, 0}; }

  KVR_DEVICE void operator()(const Block auto& block) const {
    const int64_t i = block.index() * kThreads + block.thread();
    if (i >= rows * width) return;
    const int32_t c = int32_t(i % width);
    const float x = c < dim ? from[i / width * dim + c] : 0;
    high[i] = to_bf16(x);
    if (low != nullptr) low[i] = to_bf16(x - from_bf16(high[i]));
  }
};

}  // namespace kvreplay
