#pragma once
#include "catalog/method.hpp"

// Methods that installed Python packages offer (entry points of the group kvreplay.methods), beside the program's own.

namespace kvreplay::app {

// registry(), and behind it what the Python that KVREPLAY_HOST names offers; each is hosted by a process of that
// Python. Throws ConfigError where that cannot be started, or where two methods have one name.
const Registry& known_methods();

}  // namespace kvreplay::app
