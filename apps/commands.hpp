#pragma once
#include "apps/command_line.hpp"

// One function a command of the program: declares it and what it runs.

namespace kvreplay::app {

void add_run(Command& program);
void add_sweep(Command& program);
void add_list(Command& program);
void add_inspect(Command& program);
void add_synth(Command& program);
void add_calibrate(Command& program);
void add_cluster(Command& program);
void add_report(Command& program);
void add_compare(Command& program);
void add_python_commands(Command& program);
void add_bounds(Command& program);
void add_bench(Command& program);
void add_budgets(Command& program);

}  // namespace kvreplay::app
