#include "trace/shape_checks.hpp"

#include <fmt/format.h>

namespace kvreplay {

void expect_axes(const NamedShape& tensor, size_t rank, const char* axes) {
  if (tensor.shape.size() != rank)
    h5::fail(tensor.where,
             fmt::format("has shape {}, it must have {} axes: {}", h5::describe(tensor.shape), rank, axes));
}

int32_t checked_extent(const NamedShape& tensor, size_t axis, const char* what, int64_t most) {
  const int64_t extent = tensor.shape[axis];
  if (extent < 1 || extent > most)
    h5::fail(tensor.where, fmt::format("has shape {}: {} {}, it must be from 1 to {}", h5::describe(tensor.shape),
                                       extent, what, most));
  return static_cast<int32_t>(extent);
}

void expect_shape(const h5::Array& array, const std::vector<int64_t>& shape) {
  if (array.shape != shape)
    h5::fail(array.node, fmt::format("has shape {}, it must be {}", h5::describe(array.shape), h5::describe(shape)));
}

void expect_integers(const h5::Array& array, int64_t length) {
  expect_shape(array, {length});
  if (H5Tget_class(array.type.get()) != H5T_INTEGER) h5::fail(array.node, "does not hold integers");
}

bool has_integers(const h5::Node& node, const char* name, int64_t length) {
  if (!h5::has_child(node, name)) return false;
  expect_integers(h5::open_array(node, name), length);
  return true;
}

void expect_floats(const h5::Array& array, const std::vector<int64_t>& shape) {
  expect_shape(array, shape);
  if (H5Tget_class(array.type.get()) != H5T_FLOAT) h5::fail(array.node, "does not hold floating point numbers");
}

}  // namespace kvreplay
