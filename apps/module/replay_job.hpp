#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// A request of kvreplay.replay, after its arguments have become a configuration.
struct Request {
  std::string config;        // JSON, which is YAML, without traces
  nanobind::object input;    // apps/kvreplay/sources.py: a list of trace files, as bytes, or a dict of arrays or of a
                             // trace in memory
  nanobind::list methods;    // apps/kvreplay/own_methods.py
  nanobind::object on_plan;  // on_plan(cells, warnings, seconds): before anything runs
  nanobind::object on_cell;  // on_cell(row, index in the plan, arrays) for each cell, when it is finished
  // is_stopped() -> bool ends the replay where Ctrl-C cannot: in a thread that is not the main one.
  nanobind::object is_stopped;
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
