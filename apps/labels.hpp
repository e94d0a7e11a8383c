#pragma once
#include <string>

#include "config/run_config.hpp"

namespace kvreplay::app {

// "snapkv window=16 phase=stream": the name and what differs from the defaults.
std::string instance_text(const MethodInstance& instance);

// Of a method and its parameters that are `given`, as results and plans say them: JSON.
std::string label_text(const std::string& method, const std::string& given);

}  // namespace kvreplay::app
