#pragma once
#include <string>

#include "catalog/method.hpp"

// Methods that installed Python packages offer (entry points of the group kvreplay.methods), beside the program's own.

namespace kvreplay::app {

// registry(), and behind it the methods of installed packages, if Python's kvreplay hosts them and has named its socket
// in KVREPLAY_METHODS. Throws ConfigError if the host does not answer, or if two methods have one name.
const Registry& known_methods();

// A problem of a configuration, and where methods of installed packages are known, if it may be about one.
std::string with_offered_hint(const std::string& problem);

}  // namespace kvreplay::app
