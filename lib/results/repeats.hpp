#pragma once
#include <cstddef>

#include "results/folder.hpp"

namespace kvreplay {

// Cells that were computed more than once: two workers on one shard, a job that was started again.
struct Repeats {
  size_t equal = 0;      // the same numbers
  size_t elsewhere = 0;  // other numbers, on another path (device, instruction set, precision); the first line stands
  size_t replaced = 0;   // by this build, which stands
};

// Compares all lines of the cells in a folder, times aside. Throws InconsistentError where one path gave two
// results.
Repeats compare_repeats(const ResultsFolder& folder);

}  // namespace kvreplay
