#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "trace/h5_array.hpp"
#include "trace/trace.hpp"

// Tensors [heads, rows, width] of a trace: raw bits from the file, widened here.

namespace kvreplay {

struct Tensor {
  h5::Array array;
  DType dtype = DType::float32;
  bool swapped = false;  // 16-bit numbers in the other byte order

  int64_t heads() const { return array.shape[0]; }
  int64_t rows() const { return array.shape[1]; }
  int64_t width() const { return array.shape[2]; }
};

// `source_dtype` tells what a uint16 dataset holds. Throws h5::Problem.
Tensor open_tensor(const h5::Node& layer, const std::string& name, const std::string& source_dtype);

// Rows 0..rows-1 of one head as floats; throws h5::Problem at the first NaN or infinity. `row` is what a
// row is called in the message ("token", "query").
void read_rows(const Tensor& tensor, int64_t head, int64_t begin, int64_t rows, std::span<float> into, const char* row);

// Hands the stored bytes of the whole dataset to `use`, in C order, in bounded pieces.
void for_each_piece(const h5::Array& array, const std::function<void(std::span<const std::byte>)>& use);

}  // namespace kvreplay
