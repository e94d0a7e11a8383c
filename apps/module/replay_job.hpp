#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// What kvreplay.replay asks for, once its arguments have become a configuration.
struct Request {
  std::string config;        // JSON, which is YAML, without traces
  nanobind::list traces;     // apps/kvreplay/sources.py
  nanobind::list methods;    // apps/kvreplay/own_methods.py
  nanobind::object on_plan;  // on_plan(cells, warnings, seconds): before anything runs
  nanobind::object on_cell;  // on_cell(row, place in the plan, arrays) for each cell, as it comes
};

// What is said of a replay when all its cells have come.
struct Ended {
  double seconds = 0;  // that the engine took
  std::string said;    // of the table, as results.meta.json says it: {"notes": [...], "unreachable": [...]}
};

// Replays with the interpreter's lock released; Python's functions are called by the thread that called this one,
// between cells. An exception of theirs, Ctrl-C included, ends the run.
Ended replay(const Request& request);

}  // namespace kvreplay::python
