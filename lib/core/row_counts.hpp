#pragma once
#include <cstdint>

namespace kvreplay {

// Counts of rows of a cache, or of the rows that a step reads.
struct RowCounts {
  int32_t rows = 0, values = 0;              // all rows, and those that store a value
  int32_t exact_keys = 0, exact_values = 0;  // keys and values that no row format has coded
  int32_t outliers = 0;                      // numbers that coded rows store besides their codes
};

}  // namespace kvreplay
