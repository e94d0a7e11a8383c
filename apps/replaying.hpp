#pragma once
#include <functional>
#include <vector>

#include "apps/console.hpp"
#include "apps/progress.hpp"
#include "replay/runner.hpp"
#include "results/store.hpp"

namespace kvreplay::app {

// The common part of `run` and `sweep work`: replays missing cells, publishes them and reports progress.
struct Replaying {
  const std::vector<Cell>& plan;  // whole families of `todo` are replayed (plan.hpp)
  RunOptions options;             // callbacks are set here; `drain` of the caller is asked as well
  Store& store;
  Progress& progress;
  Console& console;
  bool fail_fast = false;
  std::function<void()> on_head = [] {};
  // Whether a failure is due to the environment and is not to be recorded.
  std::function<bool(const Cell&, const CellResult&)> is_environment_failure = [](const Cell&, const CellResult&) {
    return false;
  };
};

// Returns when all of `todo` is published, or when a signal or `options.drain` has asked for an end.
void replay_missing(const std::vector<Cell>& todo, Replaying replaying);

// Cells of a plan that are not published, or only as failed.
std::vector<Cell> missing_cells(const std::vector<Cell>& plan, const ResultsFolder& folder);

}  // namespace kvreplay::app
