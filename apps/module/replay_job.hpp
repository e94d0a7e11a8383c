#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "apps/module/prepared_run.hpp"

namespace kvreplay::python {

// A request of kvreplay.replay, after its arguments have become a configuration.
struct Request {
  PlanRequest plan;
  nanobind::object on_plan;  // on_plan(cells, warnings, seconds): before anything runs
  nanobind::object on_cell;  // on_cell(row, index in the plan, arrays) for each cell, when it is finished
};

// Result of a replay after all cells.
struct Ended {
  double seconds = 0;  // run time of the engine
  std::string said;    // as in results.meta.json: {"traces": [...], "notes": [...], "unreachable": [...]}
};

// Replays with the interpreter's lock released. The calling thread calls Python's functions between cells. Their
// exceptions, Ctrl-C included, end the run.
Ended replay(const Request& request);

}  // namespace kvreplay::python
