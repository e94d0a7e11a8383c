#pragma once
#include <cstddef>

#include "results/folder.hpp"

namespace kvreplay {

// Cells that were computed more than once: two workers on one shard, or a restarted job.
struct Repeats {
  size_t equal = 0;      // equal numbers
  size_t elsewhere = 0;  // other numbers, on another path (device, instruction set, precision); the first line is kept
  size_t replaced = 0;   // replaced by a line of this build
};

// Compares all lines of the cells in a folder, except timings. Throws InconsistentError if one path gave two results.
Repeats compare_repeats(const ResultsFolder& folder);

}  // namespace kvreplay
