#pragma once
#include <optional>

#include "config/common_options.hpp"

namespace kvreplay {

// merge: none, cam, d2o, pivot, weighted_v or gaussian, or a map with the rule's parameters.
std::optional<Merge> read_merge(Problems& problems, const Node& item);
// Why what a method evicts cannot be merged, and what to do instead; "" when it can, or nobody asks for it.
std::string senseless_merge(const MethodInstance& m);

}  // namespace kvreplay
