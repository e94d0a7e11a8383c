#pragma once
#include "apps/command_line.hpp"

// One function for each command of the program: declares the command and what it runs.

namespace kvreplay::app {

void add_run(Command& program);
void add_sweep(Command& program);
void add_list(Command& program);
void add_inspect(Command& program);
void add_synth(Command& program);
void add_calibrate(Command& program);
void add_clusterability(Command& program);
void add_bounds(Command& program);
void add_bench(Command& program);
void add_budgets(Command& program);
void add_table(Command& program);

}  // namespace kvreplay::app
