#pragma once
#include <optional>

#include "config/common_options.hpp"
#include "config/problems.hpp"
#include "config/values.hpp"
#include "core/common_options.hpp"

namespace kvreplay {

// Reads wrapper: none, critical, or {name: caote, level: kv} with the wrapper's parameters.
std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item);

// Reads merge: none, cam, d2o, pivot, weighted_v or gaussian, or a map with the rule's parameters.
std::optional<Merge> read_merge(Problems& problems, const Node& item);
// Why the tokens that a method evicts cannot be merged, and what to do instead, as the rule of a Refusal; ""
// if they can, or if merge is none.
std::string merge_problem(const MethodInstance& m, const Wording& words = file_wording());

}  // namespace kvreplay
