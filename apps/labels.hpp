#pragma once
#include <string>

#include "config/run_config.hpp"

namespace kvreplay::app {

// "snapkv window=16 phase=stream": the name and what differs from the defaults.
std::string instance_text(const MethodInstance& instance);

}  // namespace kvreplay::app
