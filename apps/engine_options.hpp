#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "replay/runner.hpp"

namespace kvreplay::app {

// What a configuration and the whole plan made of it ask of the engine. Jobs and what is saved are the
// caller's.
RunOptions engine_options(const RunConfig& config, const std::vector<Cell>& plan);

// The columns that `metrics:` may name.
std::vector<std::string> measure_names();

}  // namespace kvreplay::app
