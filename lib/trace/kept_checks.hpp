#pragma once
#include <string>

#include "trace/kept_lists.hpp"

namespace kvreplay {

// Throws ConfigError if the lists do not fit the replay: tokens that do not exist yet, evicted tokens that return, more
// tokens than the budget, or denominator weights that sum to 0. where: "FILE: /GROUP".
void check_kept_lists(const KeptLists& lists, const KeptScope& scope, const std::string& where);

}  // namespace kvreplay
