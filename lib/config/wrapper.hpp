#pragma once
#include <optional>

#include "config/problems.hpp"
#include "config/tree.hpp"
#include "core/wrapper.hpp"

namespace kvreplay {

// Reads wrapper: none, critical, or {name: caote, level: kv} with the wrapper's parameters.
std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item);

}  // namespace kvreplay
