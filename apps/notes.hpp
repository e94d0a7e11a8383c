#pragma once
#include "apps/console.hpp"
#include "results/note.hpp"

namespace kvreplay::app {

// Prints the first notes as warnings, and how many more there are.
void print_notes(const Notes& notes, Console& console);

}  // namespace kvreplay::app
