#include "trace/tensor_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "core/bf16.hpp"
#include "core/halves.hpp"
#include "trace/shape_checks.hpp"
#include "trace/tensors.hpp"

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

// How to store numbers that may be bfloat16 which the file does not call so; "" for other types. h5py stores bfloat16
// of ml_dtypes as opaque bytes.
std::string bfloat16_hint(const h5::Array& array) {
  const H5T_class_t kind = H5Tget_class(array.type.get());
  if (array.element_bytes != 2 || (kind != H5T_OPAQUE && kind != H5T_INTEGER)) return "";
  return fmt::format("; {} are stored as {}, with the attribute source_dtype = \"bfloat16\" of the layer's group",
                     kind == H5T_OPAQUE ? "those of ml_dtypes" : "the bits of bfloat16",
                     kind == H5T_OPAQUE ? "x.view(\"uint16\")" : "uint16");
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
  throw h5::Problem(fmt::format("{}: holds {}. Store float32, float16 or bfloat16{}", array.node.where(),
                                describe_type(array), bfloat16_hint(array)));
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

Tensor open_tensor(const h5::Node& layer, const std::string& name, const std::string& source_dtype, size_t rank,
                   const char* axes) {
  Tensor tensor;
  tensor.array = h5::open_array(layer, name);
  tensor.dtype = dtype_of(tensor.array, source_dtype);
  const H5T_order_t host = std::endian::native == std::endian::little ? H5T_ORDER_LE : H5T_ORDER_BE;
  tensor.swapped = H5Tget_order(tensor.array.type.get()) != host;
  expect_axes({tensor.array.node.where(), tensor.array.shape}, rank, axes);
  return tensor;
}

namespace {

// Reads rows of the block that the leading indices select, as floats. head: for messages.
void read_block(const Tensor& tensor, std::vector<int64_t> lead, int64_t begin, int64_t rows, std::span<float> into,
                const char* row) {
  assert(static_cast<int64_t>(into.size()) == rows * tensor.width());
  const int64_t width = tensor.width(), step = std::max<int64_t>(1, kPieceBytes / (4 * width)),
                head = lead.empty() ? 0 : lead.back();
  std::vector<int64_t> extent(lead.size(), 1);
  lead.insert(lead.end(), {0, 0}), extent.insert(extent.end(), {0, width});
  std::vector<uint16_t> bits;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    const std::span<float> piece = into.subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width));
    lead[lead.size() - 2] = begin + first, extent[lead.size() - 2] = count;
    if (tensor.dtype == DType::float32) {
      h5::read_box(tensor.array, H5T_NATIVE_FLOAT, lead, extent, piece.data());
    } else {
      bits.resize(piece.size());
      h5::read_box(tensor.array, tensor.array.type.get(), lead, extent, bits.data());
      widen(tensor, bits, piece.data());
    }
    check_numbers(tensor, head, begin + first, piece, row);
  }
}

}  // namespace

void read_rows(const Tensor& tensor, int64_t head, int64_t begin, int64_t rows, std::span<float> into,
               const char* row) {
  assert(head >= 0 && head < tensor.heads() && begin >= 0 && rows >= 0 && begin + rows <= tensor.rows());
  const bool has_heads = tensor.array.shape.size() > 2;
  read_block(tensor, has_heads ? std::vector{head} : std::vector<int64_t>{}, begin, rows, into, row);
}

void read_sample(const Tensor& tensor, int64_t sample, int64_t head, std::span<float> into) {
  assert(sample >= 0 && sample < tensor.array.shape[0] && head >= 0 && head < tensor.heads());
  read_block(tensor, {sample, head}, 0, tensor.rows(), into, "row");
}

void read_stored(const Tensor& tensor, std::span<std::byte> into) {
  const h5::Array& array = tensor.array;
  assert(static_cast<int64_t>(into.size()) == array.elements() * array.element_bytes);
  const bool halves = tensor.dtype != DType::float32;
  h5::read_box(array, halves ? array.type.get() : H5T_NATIVE_FLOAT, std::vector<int64_t>(array.shape.size(), 0),
               array.shape, into.data());
  if (!halves || !tensor.swapped) return;
  for (size_t i = 0; i < into.size(); i += 2) std::swap(into[i], into[i + 1]);
}

std::optional<int64_t> offset_of(const Tensor& tensor) {
  const h5::Array& array = tensor.array;
  if (!array.chunk.empty() || tensor.swapped || array.elements() == 0) return std::nullopt;
  const haddr_t offset = H5Dget_offset(array.node.id.get());
  if (offset == HADDR_UNDEF || offset % static_cast<haddr_t>(array.element_bytes) != 0) return std::nullopt;
  return static_cast<int64_t>(offset);
}

void for_each_piece(const h5::Array& array, const std::function<void(std::span<const std::byte>)>& use) {
  // Splits the dataset into boxes that follow each other in C order: whole rows of one head, or all of a smaller array.
  const size_t rank = array.shape.size();
  if (rank < 3 || array.elements() == 0) {
    std::vector<std::byte> all(static_cast<size_t>(array.elements() * array.element_bytes));
    h5::read_box(array, array.type.get(), std::vector<int64_t>(rank, 0), array.shape, all.data());
    return use(all);
  }
  const int64_t rows = array.shape[rank - 2], width = array.shape[rank - 1], row_bytes = width * array.element_bytes;
  const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes), blocks = array.elements() / (rows * width);
  std::vector<std::byte> piece;
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t count = std::min(step, rows - first);
      std::vector<int64_t> start(rank, 0), extent(rank, 1);
      int64_t rest = block;
      for (size_t axis = rank - 2; axis-- > 0; rest /= array.shape[axis]) start[axis] = rest % array.shape[axis];
      start[rank - 2] = first, extent[rank - 2] = count, extent[rank - 1] = width;
      piece.resize(static_cast<size_t>(count * row_bytes));
      h5::read_box(array, array.type.get(), start, extent, piece.data());
      use(piece);
    }
}

}  // namespace kvreplay
