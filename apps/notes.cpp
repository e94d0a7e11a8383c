#include "apps/notes.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace kvreplay::app {

void print_notes(const Notes& notes, Console& console) {
  constexpr size_t kTold = 5;
  for (size_t i = 0; i < std::min(notes.size(), kTold); ++i) console.warning(notes[i].text);
  if (notes.size() > kTold)
    console.warning(fmt::format("and {} more notes, see `notes` in results.meta.json", notes.size() - kTold));
}

}  // namespace kvreplay::app
