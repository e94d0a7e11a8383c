#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "apps/console.hpp"
#include "catalog/cell.hpp"

namespace kvreplay::app {

// "42s", "10m42s", "3h05m"
std::string duration_text(double seconds);
// "L15 h3 subgen B=256"
std::string cell_text(const Cell& cell);

// Shows the progress of a run: one redrawn line on a terminal, elsewhere a line every 30 s or 5 %. The remaining time
// weighs cells by their estimated cost.
class Progress {
 public:
  enum class Mode { none, bar, plain, json };
  static Mode mode_of(const std::string& word, bool quiet);  // auto, bar, plain, json, none

  // `todo` will be replayed, `done` cells are already there; cost[i] belongs to todo[i].
  Progress(Console& console, Mode mode, size_t done, const std::vector<Cell>& todo, const std::vector<double>& cost);
  ~Progress();

  void started(const Cell& cell);
  void finished(const Cell& cell, bool ok);
  void end();  // writes the last line; later calls do nothing

  size_t finished_now() const { return now_; }
  size_t failed() const { return failed_; }

 private:
  using Clock = std::chrono::steady_clock;
  void tick();
  void report_signal();
  void report_if_due();
  void report();
  std::string line() const;
  std::string json_line(const char* event) const;
  double seconds() const;
  double seconds_left() const;  // negative: not known yet

  Console& console_;
  const Mode mode_;
  const size_t done_before_, total_;
  std::unordered_map<std::string, double> cost_;
  double cost_total_ = 0, cost_done_ = 0;
  size_t now_ = 0, failed_ = 0;
  std::string current_;
  Clock::time_point start_ = Clock::now(), reported_ = start_;
  size_t reported_cells_ = 0;
  bool signal_reported_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread ticker_;
};

}  // namespace kvreplay::app
