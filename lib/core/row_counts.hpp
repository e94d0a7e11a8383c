#pragma once
#include <cstdint>

namespace kvreplay {

// Rows of a cache, or of what a step reads of it.
struct RowCounts {
  int32_t rows = 0, values = 0;              // all, and those that store a value
  int32_t exact_keys = 0, exact_values = 0;  // of both, those that no row format has coded
  int32_t outliers = 0;                      // numbers that coded rows store beside their codes
};

}  // namespace kvreplay
