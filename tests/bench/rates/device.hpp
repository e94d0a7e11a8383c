#pragma once
#include <string>

#include "tests/bench/rates/plan.hpp"

namespace kvreplay::app {

// Adds measurements of the subject on a device, by wall time: exact rows with everything in its memory, each method at
// all budgets as in a run, copies included, and everything. They stand beside the CPU's from add_replays(). Throws
// DeviceError if there is no such device, or UserError if it leaves a method to the CPU.
void add_device(BenchPlan& plan, const Subject& subject, const std::string& device);

}  // namespace kvreplay::app
