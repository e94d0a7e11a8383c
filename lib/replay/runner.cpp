#include "replay/runner.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "replay/head_replay.hpp"

namespace kvreplay {
namespace {

// Cells that share tensors and the exact pass: [first, last) of the list.
struct Group {
  size_t first, last;
};

std::vector<Group> group_cells(const std::vector<Cell>& cells) {
  const auto head = [](const Cell& c) { return std::tie(c.trace, c.prompt, c.layer, c.kv_head); };
  std::vector<Group> groups;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (groups.empty() || head(cells[groups.back().first]) != head(cells[i])) groups.push_back({i, i});
    groups.back().last = i + 1;
  }
  return groups;
}

// HDF5 has one lock: one thread reads at a time, and traces are opened once.
class Reader {
 public:
  explicit Reader(const std::vector<std::filesystem::path>& paths) : paths_(paths) {}
  template <class Real>
  HeadStream<Real> load(size_t trace, const HeadRequest& request) {
    const std::lock_guard lock(mutex_);
    auto found = open_.find(trace);
    if (found == open_.end()) found = open_.emplace(trace, Trace(paths_.at(trace))).first;
    return load_head<Real>(found->second, request);
  }

 private:
  const std::vector<std::filesystem::path>& paths_;
  std::map<size_t, Trace> open_;
  std::mutex mutex_;
};

HeadRequest request_of(const std::vector<Cell>& cells, const Group& group) {
  const Cell& first = cells[group.first];
  HeadRequest request{first.prompt, first.layer, first.kv_head, first.n_tokens, first.n_prefill, false};
  for (size_t i = group.first; i < group.last; ++i)
    request.rotation = request.rotation || cells[i].axes.positions == Positions::cache;
  return request;
}

// Keeps the first exception of a parallel region, and tells the others to stop.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    stopped_ = true;
  }
  bool stopped() const { return stopped_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_ = false;
};

template <class Real>
void run_typed(const std::vector<Cell>& cells, const RunOptions& options) {
  const std::vector<Group> groups = group_cells(cells);
  Reader reader(options.traces);
  FirstError error;
  std::mutex reporting;
  const auto report = [&](const Cell& cell, const CellResult& result) {
    const std::lock_guard lock(reporting);
    if (options.on_cell) options.on_cell(cell, result);
  };
  const auto start = [&](const Cell& cell) {
    const std::lock_guard lock(reporting);
    if (options.on_start) options.on_start(cell);
  };
  const auto stop = [&] { return error.stopped() || (options.stop && options.stop()); };
#pragma omp parallel for schedule(dynamic, 1) num_threads(options.jobs)
  for (size_t g = 0; g < groups.size(); ++g) {
    if (stop()) continue;
    try {
      const Group& group = groups[g];
      start(cells[group.first]);
      const HeadStream<Real> stream = reader.load<Real>(cells[group.first].trace, request_of(cells, group));
      HeadReplay<Real> replay(stream, options);
      for (size_t i = group.first; i < group.last; ++i) replay.add(cells[i]);
      replay.run(stop, report);
    } catch (...) {
      error.keep(std::current_exception());
    }
  }
  error.rethrow();
}

}  // namespace

void run_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  if (options.double_precision) run_typed<double>(cells, options);
  else run_typed<float>(cells, options);
}

}  // namespace kvreplay
