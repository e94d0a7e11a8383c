#pragma once
#include "config/run_config.hpp"
#include "replay/runner.hpp"

namespace kvreplay::app {

// What a configuration asks of the engine. Jobs and what is saved are the caller's; `every_row`: does the
// whole plan observe every decode row (plan.hpp)?
RunOptions engine_options(const RunConfig& config, bool every_row, OpenTensors tensors);

}  // namespace kvreplay::app
