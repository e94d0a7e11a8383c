#pragma once
#include <string>

#include "trace/kept_lists.hpp"

namespace kvreplay {

// Throws ConfigError where lists do not fit the replay: tokens that are not there yet, that come back, more
// than the budget, weights that leave nothing to divide by. where: "FILE: /GROUP".
void check_kept_lists(const KeptLists& lists, const KeptScope& scope, const std::string& where);

}  // namespace kvreplay
