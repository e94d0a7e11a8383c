#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/module/arrays_from_python.hpp"
#include "apps/module/hosted_in_python.hpp"
#include "config/run_config.hpp"
#include "replay/runner.hpp"

// What comes before a replay: a configuration and inputs from Python become a plan.

namespace kvreplay::python {

// Tokens that follow a prompt later, without rows yet.
struct Room {
  std::string prompt;
  int64_t tokens = 0;  // 0: none; every row is there
};

struct PlanRequest {
  std::string config;      // JSON, which is YAML, without traces
  nanobind::object input;  // apps/kvreplay/sources.py: a list of trace files, as bytes, or a dict of arrays or of a
                           // trace in memory
  nanobind::list methods;  // apps/kvreplay/own_methods.py
  // is_stopped() -> bool ends the replay where Ctrl-C cannot: in a thread that is not the main one.
  nanobind::object is_stopped;
  Room room = {};
};

// Everything of a run; members are in the order that their destruction needs.
struct Prepared {
  std::atomic<bool> stop{false};         // set when the results are no longer needed
  nanobind::object is_stopped;           // as in PlanRequest
  std::unique_ptr<PythonArrays> arrays;  // null: files or a trace in memory are replayed
  std::unique_ptr<PythonTrace> memory;
  OpenTensors open;
  std::optional<AllMethods> methods;
  LoadedRun loaded;
  std::vector<Cell> cells;
  std::string unreachable = "[]";  // shares of the cache: JSON
};

[[noreturn]] void throw_stopped();

constexpr auto kPatience = std::chrono::milliseconds(50);  // interval between checks for Ctrl-C

// Works in another thread, which may call Python, and waits for it. Ctrl-C or the caller asks it to stop.
template <class Work>
auto interruptible(Prepared& all, const Work& work) {
  auto working = std::async(std::launch::async, work);
  const auto is_done = [&] {
    const nanobind::gil_scoped_release unlocked;
    return working.wait_for(kPatience) == std::future_status::ready;
  };
  while (!is_done()) {
    const bool interrupted = PyErr_CheckSignals() != 0;
    if (!interrupted && !nanobind::cast<bool>(all.is_stopped())) continue;
    all.stop = true;
    while (!is_done()) {
    }
    if (interrupted) throw nanobind::python_error();
    throw_stopped();
  }
  return working.get();
}

// Opens the input, checks the configuration against it, solves budgets that are shares of the cache, plans the cells.
std::unique_ptr<Prepared> planned(const PlanRequest& request);

RunOptions options_of(const Prepared& all, bool every_row);

nanobind::list warnings_of(const RunConfig& config);

}  // namespace kvreplay::python
