#pragma once
#include <vector>

#include "apps/console.hpp"
#include "catalog/cell.hpp"
#include "results/note.hpp"
#include "trace/tensors.hpp"

namespace kvreplay::app {

// The first notes as warnings, and how many more there are.
void tell_notes(const Notes& notes, Console& console);
// Warns of prompts whose trace holds a gradient that the planned replay cannot use; others are not opened.
void tell_unused_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces, const OpenTensors& open,
                           Console& console);

}  // namespace kvreplay::app
