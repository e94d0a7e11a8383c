#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "trace/h5_array.hpp"
#include "trace/trace.hpp"

// Tensors [.., heads, rows, width] or [rows, width] of a trace: raw bits from the file, widened to float here.

namespace kvreplay {

struct Tensor {
  h5::Array array;
  DType dtype = DType::float32;
  bool swapped = false;  // 16-bit numbers in the other byte order

  int64_t heads() const { return array.shape.size() < 3 ? 1 : array.shape[array.shape.size() - 3]; }
  int64_t rows() const { return array.shape[array.shape.size() - 2]; }
  int64_t width() const { return array.shape.back(); }
};

// source_dtype: the type that a uint16 dataset holds. axes: names of the axes in a message. Throws h5::Problem.
Tensor open_tensor(const h5::Node& layer, const std::string& name, const std::string& source_dtype, size_t rank = 3,
                   const char* axes = "[heads, tokens, head_dim]");

// Opens the dataset `g`, [samples, heads, rows, v_head_dim].
inline Tensor open_gradient(const h5::Node& layer, const std::string& source_dtype) {
  return open_tensor(layer, "g", source_dtype, 4, "[samples, heads, rows, v_head_dim]");
}

// Reads rows begin..begin+rows-1 of one head (0 if the tensor has no heads) as floats. Throws h5::Problem at the first
// NaN or infinity. row: what the message calls a row ("token", "query").
void read_rows(const Tensor& tensor, int64_t head, int64_t begin, int64_t rows, std::span<float> into, const char* row);
// Likewise, all rows of one head of one sample, for a tensor [samples, heads, rows, width].
void read_sample(const Tensor& tensor, int64_t sample, int64_t head, std::span<float> into);

// Reads all numbers as they are stored, in this machine's byte order; nothing is checked.
void read_stored(const Tensor& tensor, std::span<std::byte> into);
// Bytes from the file's begin to the numbers, if they lie there as in memory: in one piece, unfiltered, aligned, in
// this machine's byte order.
std::optional<int64_t> offset_of(const Tensor& tensor);

// Passes the stored bytes of the whole dataset to `use`, in C order, in pieces of bounded size.
void for_each_piece(const h5::Array& array, const std::function<void(std::span<const std::byte>)>& use);

}  // namespace kvreplay
