#pragma once
#include <cstdint>
#include <vector>

namespace kvreplay {

// Random numbers for row formats: read from a file, or drawn (docs/configuration.md, "uniforms").
struct RowUniforms {
  uint32_t seed = 0;
  std::vector<double> signs, rotation, sketch;  // in [0, 1), from a file; empty: drawn
};
// How many of each array a format reads; 0: none.
struct RowUniformCounts {
  int64_t signs = 0, rotation = 0, sketch = 0;
  bool any() const { return signs + rotation + sketch > 0; }
};

}  // namespace kvreplay
