#pragma once
#include <cstdint>
#include <vector>

#include "trace/h5_array.hpp"

// What a dataset must look like; all throw h5::Problem with its name, what it is and what it must be.

namespace kvreplay {

void expect_shape(const h5::Array& array, const std::vector<int64_t>& shape);
void expect_integers(const h5::Array& array, int64_t length);                   // [length]
void expect_floats(const h5::Array& array, const std::vector<int64_t>& shape);  // floating point numbers

}  // namespace kvreplay
