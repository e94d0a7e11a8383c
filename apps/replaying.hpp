#pragma once
#include <functional>
#include <vector>

#include "apps/console.hpp"
#include "apps/progress.hpp"
#include "replay/runner.hpp"
#include "results/store.hpp"

namespace kvreplay::app {

// What `run` and `sweep work` have in common: replay what is missing, publish it, tell how far it is.
struct Replaying {
  const std::vector<Cell>& plan;  // whole families of `todo` are replayed (plan.hpp)
  RunOptions options;             // what is to be called is filled in here; `drain` is asked as well
  Store& store;
  Progress& progress;
  Console& console;
  bool fail_fast = false;
  std::function<void()> on_head = [] {};
  // Is a failure one of the surroundings, which is not to be recorded?
  std::function<bool(const Cell&, const CellResult&)> forgives = [](const Cell&, const CellResult&) { return false; };
};

// Returns when all of `todo` is published, or a signal or `options.drain` has asked for an end.
void replay_missing(const std::vector<Cell>& todo, Replaying replaying);

// Cells of a plan that are not published, or only as failed.
std::vector<Cell> missing_cells(const std::vector<Cell>& plan, const ResultsFolder& folder);

}  // namespace kvreplay::app
