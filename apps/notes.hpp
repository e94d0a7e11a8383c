#pragma once
#include "apps/console.hpp"
#include "results/note.hpp"

namespace kvreplay::app {

// The first notes as warnings, and how many more there are.
void tell_notes(const Notes& notes, Console& console);

}  // namespace kvreplay::app
