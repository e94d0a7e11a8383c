#pragma once
#include <vector>

#include "support.hpp"

// Compares a device with the CPU: equal kept tokens, and every measure within 1e-3 of its size (docs/cuda.md).

namespace kvreplay::test {

// Options of a run on the device under test.
RunOptions on_device();
// Checks that cells have the same results on the device under test and on the CPU, under any options in `how`.
void check_device(const HeadStream<float>& stream, const std::vector<Cell>& cells, RunOptions how = {});
// Whether both results are equal to the last bit.
bool same_bits(const CellResult& a, const CellResult& b);

}  // namespace kvreplay::test
