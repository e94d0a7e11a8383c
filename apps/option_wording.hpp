#pragma once
#include "base/refusal.hpp"

namespace kvreplay::app {

// The words of a run that the command line configures alone: options, and --set for keys without an option.
const Wording& option_wording();

}  // namespace kvreplay::app
