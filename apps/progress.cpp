#include "apps/progress.hpp"

#include <fmt/core.h>

#include <utility>

#include "apps/console.hpp"
#include "base/errors.hpp"
#include "base/json_text.hpp"

namespace kvreplay::app {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kRedraw{200}, kJsonEvery{1000}, kPlainEvery{30'000}, kPlainApart{1000};
constexpr double kPlainShare = 0.05;

// Cuts at `width` columns; every character of a line takes one.
std::string cut(const std::string& line, int width) {
  int columns = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (starts && ++columns > width) return line.substr(0, i);
  }
  return line;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto s = int64_t(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string cell_text(const Cell& cell) {
  std::string text = fmt::format("L{} h{} {}", cell.place.layer, cell.place.kv_head, cell.method().info.name);
  if (!cell.budget.none()) text += fmt::format(" B={}", cell.budget.tokens);
  if (cell.seed) text += fmt::format(" seed={}", *cell.seed);
  return text;
}

Progress::Mode Progress::mode_of(const std::string& word, bool quiet) {
  if (word == "bar") return Mode::bar;
  if (word == "plain") return Mode::plain;
  if (word == "json") return Mode::json;
  if (word == "none" || quiet) return Mode::none;
  return stderr_is_terminal() ? Mode::bar : Mode::plain;
}

Progress::Progress(Console& console, Mode mode, size_t done, const std::vector<Cell>& todo,
                   const std::vector<double>& cost)
    : console_(console), mode_(mode), done_before_(done), total_(done + todo.size()) {
  for (size_t i = 0; i < todo.size(); ++i) {
    cost_[todo[i].key] = cost[i];
    cost_total_ += cost[i];
  }
  ticker_ = std::thread([this] { tick(); });
}

Progress::~Progress() { end(); }

void Progress::started(const Cell& cell) {
  const std::lock_guard lock(mutex_);
  current_ = cell_text(cell);
}

void Progress::finished(const Cell& cell, bool ok) {
  const std::lock_guard lock(mutex_);
  ++now_;
  failed_ += !ok;
  current_ = cell_text(cell);
  if (const auto cost = cost_.find(cell.key); cost != cost_.end()) cost_done_ += cost->second;
  report_if_due();
}

void Progress::end() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  wake_.notify_all();
  ticker_.join();
  current_.clear();
  if (mode_ == Mode::json) console_.note(json_line("end"));
  if (mode_ == Mode::plain) console_.note(line());
  if (mode_ == Mode::bar) {
    console_.redraw(line());
    console_.end_redraw();
  }
  if (mode_ == Mode::bar || mode_ == Mode::none) console_.log_only(line());
}

// Updates the display regularly, even if no cell finishes.
void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    wake_.wait_for(lock, kRedraw);
    report_signal();
    if (!ended_) report_if_due();
  }
}

void Progress::report_signal() {
  if (!StopSignals::drain() || std::exchange(signal_reported_, true)) return;
  console_.note(StopSignals::stop() ? "interrupted: heads in work are abandoned; another signal ends at once"
                                    : "stopping: kv heads in work are finished first; another signal ends at once");
}

void Progress::report_if_due() {
  const auto since = Clock::now() - reported_;
  const bool share = double(now_ - reported_cells_) >= kPlainShare * double(total_);
  const bool due = mode_ == Mode::bar    ? since >= kRedraw
                   : mode_ == Mode::json ? since >= kJsonEvery || share
                                         : since >= kPlainEvery || (share && since >= kPlainApart);
  if (due && now_ + done_before_ < total_) report();  // end() writes the last line
}

void Progress::report() {
  reported_ = Clock::now();
  reported_cells_ = now_;
  if (mode_ == Mode::bar) console_.redraw(cut(line(), terminal_width() - 1));
  if (mode_ == Mode::plain) console_.note(line());
  if (mode_ == Mode::json) console_.note(json_line("progress"));
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

double Progress::seconds_left() const {
  return cost_done_ > 0 ? seconds() * (cost_total_ - cost_done_) / cost_done_ : -1;
}

std::string Progress::line() const {
  const double rate = seconds() > 0 ? double(now_) / seconds() : 0;
  std::string text =
      fmt::format("cells {}/{} · failed {} · {:.1f} cells/s", done_before_ + now_, total_, failed_, rate);
  if (ended_) return text + " · " + duration_text(seconds());
  text += " · ETA " + (seconds_left() < 0 ? "?" : duration_text(seconds_left()));
  return current_.empty() ? text : text + " · " + current_;
}

std::string Progress::json_line(const char* event) const {
  JsonObject j;
  j.add("event", std::string(event)).add("cells_done", done_before_ + now_).add("cells_total", total_);
  j.add("failed", failed_).add("elapsed_s", seconds()).add("cell", current_);
  return j.add_json("eta_s", seconds_left() < 0 ? "null" : json_of(seconds_left())).text();
}

}  // namespace kvreplay::app
