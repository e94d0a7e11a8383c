#pragma once
#include <cstdint>
#include <vector>

#include "trace/h5_array.hpp"

// Checks of a dataset's type and shape. All throw h5::Problem, which gives its name, actual shape and expected shape.

namespace kvreplay {

void expect_shape(const h5::Array& array, const std::vector<int64_t>& shape);
void expect_integers(const h5::Array& array, int64_t length);                   // [length]
void expect_floats(const h5::Array& array, const std::vector<int64_t>& shape);  // floating point numbers

}  // namespace kvreplay
