#pragma once
#include <cstddef>
#include <cstdint>

namespace kvreplay {

// How much of a head a device takes at a time at most. Memory bounds it too; results do not depend on it.
struct Portion {
  size_t rows = 8192;     // scored; rounded down to tiles of 64
  int32_t tokens = 4096;  // replayed in one launch
};

}  // namespace kvreplay
