#pragma once
#include <cstddef>
#include <cstdint>

namespace kvreplay {

// The largest part of a head that a device takes at a time. Memory bounds it too; results do not depend on it.
struct Portion {
  size_t rows = 8192;     // scored rows; rounded down to tiles of 64
  int32_t tokens = 4096;  // tokens replayed in one launch
};

}  // namespace kvreplay
