#pragma once
#include "apps/command_line.hpp"
#include "apps/run_options.hpp"

namespace kvreplay::app {

// `kvreplay run`: configuration -> traces -> cells -> results. Returns the exit code.
int run(const RunChoices& choices, Context& context);

}  // namespace kvreplay::app
