#pragma once
#include <string>

#include "config/run_config.hpp"

namespace kvreplay::app {

// "snapkv window=16 phase=stream": the name and the parameters that are not defaults.
std::string instance_text(const MethodInstance& instance);

}  // namespace kvreplay::app
