#include "apps/replaying.hpp"

#include <fmt/core.h>
#include <signal.h>

#include <atomic>
#include <set>

#include "apps/console.hpp"
#include "plan/plan.hpp"

namespace kvreplay::app {

std::vector<Cell> missing_cells(const std::vector<Cell>& plan, const ResultsFolder& folder) {
  std::vector<Cell> todo;
  for (const Cell& cell : plan)
    if (folder.done().count(cell.key) == 0) todo.push_back(cell);
  return todo;
}

void replay_missing(const std::vector<Cell>& todo, Replaying replaying) {
  ::signal(SIGPIPE, SIG_IGN);  // a closed terminal or pipe must not lose a run
  std::atomic<bool> give_up{false};
  std::set<std::string> missing;
  for (const Cell& cell : todo) missing.insert(cell.key);
  RunOptions& options = replaying.options;
  const auto asked_to_drain = options.drain;
  const auto started = options.on_start;
  options.on_start = [&](const Cell& cell) {
    replaying.progress.started(cell);
    if (started) started(cell);
  };
  options.on_cell = [&](const Cell& cell, const CellResult& result) {
    if (missing.count(cell.key) == 0 || (!result.ok && replaying.is_environment_failure(cell, result))) return;
    const bool ok = replaying.store.publish(cell, result);
    replaying.progress.finished(cell, ok);
    if (!ok) replaying.console.detail(fmt::format("failed: {}: {}", cell_text(cell), result.error));
    if (!ok && replaying.fail_fast) give_up = true;
  };
  options.on_head = [&] {
    replaying.store.sync();
    replaying.on_head();
  };
  options.stop = [&] { return give_up || StopSignals::stop(); };
  options.drain = [&] { return StopSignals::drain() || (asked_to_drain && asked_to_drain()); };
  run_cells(with_families(todo, replaying.plan), options);
}

}  // namespace kvreplay::app
