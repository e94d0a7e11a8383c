#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace kvreplay {

// What is wrong with rows first_row.. of a head, [rows, width], or "": NaN, infinity, or a number so large that a
// product of two such vectors would overflow single precision. row: what a row is, "token" or "query".
std::string unusable_number(std::span<const float> values, int64_t width, int64_t head, int64_t first_row,
                            const char* row);

}  // namespace kvreplay
