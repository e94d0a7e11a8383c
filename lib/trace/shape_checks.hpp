#pragma once
#include <cstdint>
#include <vector>

#include "trace/h5_array.hpp"

// Checks of a dataset's type and shape. All throw h5::Problem, which gives its name, actual shape and expected shape.

namespace kvreplay {

// A tensor's shape, with the tensor's name in messages.
struct NamedShape {
  std::string where;
  std::vector<int64_t> shape;
};
// axes: their names in the message.
void expect_axes(const NamedShape& tensor, size_t rank = 3, const char* axes = "[heads, tokens, head_dim]");
// The extent of an axis, from 1 to `most`. what: what it counts.
int32_t checked_extent(const NamedShape& tensor, size_t axis, const char* what, int64_t most);

void expect_shape(const h5::Array& array, const std::vector<int64_t>& shape);
void expect_integers(const h5::Array& array, int64_t length);                   // [length]
bool has_integers(const h5::Node& node, const char* name, int64_t length);      // a dataset [length]; false: none
void expect_floats(const h5::Array& array, const std::vector<int64_t>& shape);  // floating point numbers

}  // namespace kvreplay
