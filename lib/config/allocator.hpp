#pragma once
#include <optional>

#include "config/common_options.hpp"
#include "config/problems.hpp"
#include "config/sections.hpp"

namespace kvreplay {

// Reads a value of the axis `allocator`: a word, file:PATH, or a map with a rule's parameters ({name: lu_kv,
// calibration: others, weight: mass, lo: protected}).
std::optional<OptionValue> read_allocator(Problems& problems, const Node& item, const Source& source);

}  // namespace kvreplay
