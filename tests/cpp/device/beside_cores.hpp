#pragma once
#include <vector>

#include "support.hpp"

// A device gives what the cores give: the same kept tokens, and every measure within 1e-3 of its size
// (docs/cuda.md).

namespace kvreplay::test {

// A run on the device under test.
RunOptions on_device();
// Checks that cells come out alike on the device under test and on the cores, whatever of `how` is asked for.
void check_device(const HeadStream<float>& stream, const std::vector<Cell>& cells, RunOptions how = {});
// To the last bit.
bool same_bits(const CellResult& a, const CellResult& b);

}  // namespace kvreplay::test
