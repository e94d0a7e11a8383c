#pragma once
#include "config/run_config.hpp"
#include "replay/runner.hpp"

namespace kvreplay::app {

// Options of the engine from a configuration. The caller sets the jobs and what is saved. `every_row`: whether the
// whole plan observes every decode row (plan.hpp).
RunOptions engine_options(const RunConfig& config, bool every_row, OpenTensors tensors);

}  // namespace kvreplay::app
