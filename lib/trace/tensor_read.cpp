#include "trace/tensor_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "core/bf16.hpp"
#include "trace/halves.hpp"
#include "trace/usable_numbers.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

struct Fields {
  size_t sign, exponent, exponent_bits, mantissa, mantissa_bits, bias;
  bool operator==(const Fields&) const = default;
};
constexpr Fields kFloat16{15, 10, 5, 0, 10, 15}, kBFloat16{15, 7, 8, 0, 7, 127};

bool is_float32(hid_t type) { return H5Tequal(type, H5T_IEEE_F32LE) > 0 || H5Tequal(type, H5T_IEEE_F32BE) > 0; }

Fields fields_of(hid_t type) {
  Fields f{};
  H5Tget_fields(type, &f.sign, &f.exponent, &f.exponent_bits, &f.mantissa, &f.mantissa_bits);
  f.bias = H5Tget_ebias(type);
  return f;
}

std::string describe_type(const h5::Array& array) {
  const char* names[] = {"an integer type",     "a floating point type", "a time type",     "a string type",
                         "a bit field",         "an opaque type",        "a compound type", "references",
                         "an enumeration type", "variable-length lists", "an array type"};
  const int kind = H5Tget_class(array.type.get());
  return fmt::format("{} of {} bytes", kind >= 0 && kind < 11 ? names[kind] : "an unknown type", array.element_bytes);
}

bool is_raw_bfloat16(const h5::Array& array, const std::string& source_dtype) {
  if (H5Tget_class(array.type.get()) != H5T_INTEGER || array.element_bytes != 2 ||
      H5Tget_sign(array.type.get()) != H5T_SGN_NONE)
    return false;
  return h5::text(array.node, "source_dtype").value_or(source_dtype) == name_of(DType::bfloat16);
}

DType dtype_of(const h5::Array& array, const std::string& source_dtype) {
  const hid_t type = array.type.get();
  if (H5Tget_class(type) == H5T_FLOAT) {
    if (is_float32(type)) return DType::float32;
    const bool implied = H5Tget_norm(type) == H5T_NORM_IMPLIED && array.element_bytes == 2;
    if (implied && fields_of(type) == kFloat16) return DType::float16;
    if (implied && fields_of(type) == kBFloat16) return DType::bfloat16;
  }
  if (is_raw_bfloat16(array, source_dtype)) return DType::bfloat16;
  throw h5::Problem(
      fmt::format("{}: holds {}. Store float32, float16 or bfloat16", array.node.where(), describe_type(array)));
}

void widen(const Tensor& tensor, std::span<const uint16_t> bits, float* into) {
  const auto ordered = [&](uint16_t x) { return tensor.swapped ? static_cast<uint16_t>(x << 8 | x >> 8) : x; };
  if (tensor.dtype == DType::bfloat16)
    std::transform(bits.begin(), bits.end(), into, [&](uint16_t x) { return from_bf16(ordered(x)); });
  else std::transform(bits.begin(), bits.end(), into, [&](uint16_t x) { return widen_float16(ordered(x)); });
}

void check_numbers(const Tensor& tensor, int64_t head, int64_t first_row, std::span<const float> values,
                   const char* row) {
  const std::string problem = unusable_number(values, tensor.width(), head, first_row, row);
  if (!problem.empty()) throw h5::Problem(tensor.array.node.where() + ": " + problem);
}

}  // namespace

Tensor open_tensor(const h5::Node& layer, const std::string& name, const std::string& source_dtype) {
  Tensor tensor;
  tensor.array = h5::open_array(layer, name);
  tensor.dtype = dtype_of(tensor.array, source_dtype);
  const H5T_order_t host = std::endian::native == std::endian::little ? H5T_ORDER_LE : H5T_ORDER_BE;
  tensor.swapped = H5Tget_order(tensor.array.type.get()) != host;
  if (tensor.array.shape.size() != 3)
    throw h5::Problem(fmt::format("{}: has shape {}, it must have 3 axes: [heads, tokens, head_dim]",
                                  tensor.array.node.where(), h5::describe(tensor.array.shape)));
  return tensor;
}

void read_rows(const Tensor& tensor, int64_t head, int64_t begin, int64_t rows, std::span<float> into,
               const char* row) {
  assert(head >= 0 && head < tensor.heads() && begin >= 0 && rows >= 0 && begin + rows <= tensor.rows());
  assert(static_cast<int64_t>(into.size()) == rows * tensor.width());
  const int64_t width = tensor.width(), step = std::max<int64_t>(1, kPieceBytes / (4 * width));
  std::vector<uint16_t> bits;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    const std::span<float> piece = into.subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width));
    if (tensor.dtype == DType::float32) {
      h5::read_box(tensor.array, H5T_NATIVE_FLOAT, {head, begin + first, 0}, {1, count, width}, piece.data());
    } else {
      bits.resize(piece.size());
      h5::read_box(tensor.array, tensor.array.type.get(), {head, begin + first, 0}, {1, count, width}, bits.data());
      widen(tensor, bits, piece.data());
    }
    check_numbers(tensor, head, begin + first, piece, row);
  }
}

void for_each_piece(const h5::Array& array, const std::function<void(std::span<const std::byte>)>& use) {
  // Boxes that follow each other in C order: whole rows of one head, or the whole of a smaller array.
  const size_t rank = array.shape.size();
  if (rank != 3 || array.elements() == 0) {
    std::vector<std::byte> all(static_cast<size_t>(array.elements() * array.element_bytes));
    h5::read_box(array, array.type.get(), std::vector<int64_t>(rank, 0), array.shape, all.data());
    return use(all);
  }
  const int64_t row_bytes = array.shape[2] * array.element_bytes, step = std::max<int64_t>(1, kPieceBytes / row_bytes);
  std::vector<std::byte> piece;
  for (int64_t head = 0; head < array.shape[0]; ++head)
    for (int64_t first = 0; first < array.shape[1]; first += step) {
      const int64_t count = std::min(step, array.shape[1] - first);
      piece.resize(static_cast<size_t>(count * row_bytes));
      h5::read_box(array, array.type.get(), {head, first, 0}, {1, count, array.shape[2]}, piece.data());
      use(piece);
    }
}

}  // namespace kvreplay
