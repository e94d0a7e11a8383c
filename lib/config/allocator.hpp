#pragma once
#include <optional>

#include "config/problems.hpp"
#include "config/tree.hpp"
#include "core/budget_curves.hpp"

namespace kvreplay {

// allocator: {name: lu_kv, calibration: self, weight: mass, lo: protected}.
std::optional<LuKv> read_lu_kv(Problems& problems, const Node& item);

}  // namespace kvreplay
