#pragma once
#include <string>

#include "tests/bench/rates/plan.hpp"

namespace kvreplay::app {

// The subject on a device, by wall time: exact rows with everything in its memory, each method at all budgets
// as a run computes it, copies included, and everything; beside what add_replays() measures of a core. Throws
// DeviceError where there is no such device, or UserError where it leaves a method to the cores.
void add_device(BenchPlan& plan, const Subject& subject, const std::string& device);

}  // namespace kvreplay::app
