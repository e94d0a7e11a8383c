#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace kvreplay {

// Describes the first unusable number in rows first_row.. of a head, [rows, width]; "" if there is none. Unusable are
// NaN, infinity, and numbers so large that a product of two such vectors would overflow single precision. row: "token"
// or "query".
std::string unusable_number(std::span<const float> values, int64_t width, int64_t head, int64_t first_row,
                            const char* row);

}  // namespace kvreplay
