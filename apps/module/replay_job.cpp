#include "apps/module/replay_job.hpp"

#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "apps/meta.hpp"
#include "apps/module/numpy.hpp"
#include "apps/module/raised.hpp"
#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/version.hpp"
#include "kernels/kernels.hpp"
#include "plan/estimate.hpp"
#include "plan/plan.hpp"
#include "results/columns.hpp"
#include "results/notes.hpp"

namespace kvreplay::python {
namespace {

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;

struct Finished {
  size_t place;               // index in the plan
  std::string row, segments;  // as in Row
  CellResult result;
};

// Passes results from the engine's threads to the thread that holds the interpreter.
class Queue {
 public:
  void put(Finished finished) {
    {
      const std::lock_guard lock(mutex_);
      finished_.push_back(std::move(finished));
    }
    changed_.notify_one();
  }
  void close(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error), closed_ = true;
    }
    changed_.notify_one();
  }
  // Returns all results so far; waits for one for kPatience at most. closed: no more will follow.
  std::deque<Finished> take(bool& closed) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return closed_ || !finished_.empty(); });
    closed = closed_;
    return std::exchange(finished_, {});
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Finished> finished_;
  std::exception_ptr error_;
  bool closed_ = false;
};

// The engine's run, in a thread that is joined in every case.
class Running {
 public:
  Running(const std::vector<Cell>& cells, const RunOptions& options, const ProcessRecord& record,
          std::atomic<bool>& stop)
      : cells_(cells), options_(options), record_(record), stop_(stop) {
    for (const Cell& cell : cells) places_.emplace(cell.key, places_.size());
    thread_ = std::thread([this] { run(); });
  }
  // The engine's threads may wait for the interpreter, so the thread that joins them must not hold it.
  ~Running() {
    stop_ = true;
    const nb::gil_scoped_release unlocked;
    thread_.join();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Queue queue;
  double seconds = 0;  // valid after the queue is closed

 private:
  void run() {
    const Clock::time_point started = Clock::now();
    std::exception_ptr error;
    try {
      // The engine's cells are copies, some with a share of a budget: their rows are made here.
      options_.on_cell = [this](const Cell& cell, const CellResult& result) {
        Row row = row_of(cell, result, record_);
        queue.put({places_.at(cell.key), std::move(row.json), std::move(row.segments), result});
      };
      options_.stop = [this] { return stop_.load(); };
      run_cells(cells_, options_);
    } catch (...) {
      error = std::current_exception();
    }
    seconds = std::chrono::duration<double>(Clock::now() - started).count();
    queue.close(error);
  }

  const std::vector<Cell>& cells_;
  RunOptions options_;
  const ProcessRecord record_;
  std::unordered_map<std::string, size_t> places_;
  std::atomic<bool>& stop_;
  std::thread thread_;
};

std::vector<size_t> shape_of(const CellResult& result, bool outputs) {
  std::vector<size_t> shape{size_t(result.heads), result.rows.size()};
  if (outputs) shape.push_back(size_t(result.v_dim));
  return shape;
}

// All samples of each row: first those drawn from the model's predictions; the answer's is the last one.
void put_projections(nb::dict& arrays, CellResult& result) {
  const size_t heads = size_t(result.heads), rows = result.rows.size();
  arrays["projections"] = numpy_of(std::move(result.projections), {heads, rows, size_t(result.projected.samples)});
  arrays["cosine_distance"] = numpy_of(std::move(result.distances), {heads, rows});
  arrays["drawn"] = result.projected.drawn;
  arrays["answer"] = result.projected.answer;
}

void put_curves(nb::dict& arrays, CellResult& result) {
  const bool has_partition = !result.partition_err.empty() || result.rel_err.empty();
  arrays["rel_err"] = numpy_of(std::move(result.rel_err), shape_of(result, false));
  if (has_partition) arrays["partition_err"] = numpy_of(std::move(result.partition_err), shape_of(result, false));
}

void put_lists(nb::dict& arrays, TokensHeld& held) {
  const auto lists = [&](const char* flat, const char* off, TokenLists& of) {
    const size_t tokens = of.flat.size(), bounds = of.off.size();
    arrays[flat] = numpy_of(std::move(of.flat), {tokens});
    arrays[off] = numpy_of(std::move(of.off), {bounds});
  };
  const bool attended = held.attended.off.size() > 1;
  lists("kept_flat", "kept_off", held.kept);
  if (attended) lists("attended_flat", "attended_off", held.attended);
  const size_t weights = held.num.size();
  if (weights > 0) arrays["num"] = numpy_of(std::move(held.num), {weights});
  if (weights > 0) arrays["den"] = numpy_of(std::move(held.den), {weights});
}

// With branches the lists of each are in a dict of its own.
void put_kept(nb::dict& arrays, CellResult& result) {
  put_lists(arrays, result);
  arrays["oneshot"] = result.oneshot;
  if (result.branches.empty()) return;
  nb::dict branches;
  for (auto& [number, held] : result.branches) {
    nb::dict own;
    put_lists(own, held);
    branches[nb::int_(number)] = own;
  }
  arrays["branches"] = branches;
}

// The arrays that the cell saves; for a failed cell the error text.
nb::dict arrays_of(CellResult& result, const std::string& segments, const SaveOptions& save) {
  nb::dict arrays;
  if (!segments.empty()) arrays["segments"] = nb::bytes(segments.data(), segments.size());
  if (!result.ok) {
    arrays["error"] = nb::bytes(result.error.data(), result.error.size());
    return arrays;
  }
  if (save.curves || save.outputs || save.projections)
    arrays["rows"] = numpy_of(std::vector<int32_t>(result.rows), {result.rows.size()});
  if (save.curves) put_curves(arrays, result);
  if (save.outputs) arrays["out"] = numpy_of(std::move(result.out), shape_of(result, true));
  if (save.projections) put_projections(arrays, result);
  if (save.kept) put_kept(arrays, result);
  return arrays;
}

ProcessRecord record_of(const RunConfig& config) {
  ProcessRecord record{version(),         git_commit(), config.run.double_precision ? "double" : "single",
                       config.run.device, isa_path(),   "",
                       kEngineSchema};
  return record;
}

// JSON list of the replayed traces. JSON cannot hold a name that is not UTF-8.
std::string traces_json(std::vector<TraceInfo> traces) {
  for (TraceInfo& trace : traces)
    if (!is_utf8(trace.path.string())) trace.path.clear();
  return app::trace_records(traces);
}

// The content of results.meta.json about a table, apart from its columns: JSON.
std::string said_of(const std::vector<std::string>& rows, const Prepared& all) {
  SeenCells seen(all.methods->registry);
  for (const std::string& row : rows)
    if (!row.empty()) seen.add(fields_of(row));
  JsonObject said;
  said.add_json("traces", traces_json(all.loaded.traces));
  said.add_json("notes", notes_json(notes_of(seen))).add_json("unreachable", all.unreachable);
  const BudgetList& budget = all.loaded.config.budget;
  if (budget.has_shares()) said.add("budget_of", kSizesOfShares[size_t(budget.of.value())]);
  return said.text();
}

}  // namespace

Ended replay(const Request& request) {
  const std::unique_ptr<Prepared> all = planned(request.plan);
  const RunConfig& config = all->loaded.config;
  double cost = 0;
  for (const double c : estimate(config, all->cells, all->loaded.traces).cost) cost += c;
  request.on_plan(all->cells.size(), warnings_of(config), core_seconds(cost));
  RunOptions options = options_of(*all, observes_rows(all->cells));
  options.save = config.output;
  Running running(all->cells, options, record_of(config), all->stop);
  std::vector<std::string> rows(all->cells.size());  // in the order of the plan
  for (bool closed = false; !closed;) {
    std::deque<Finished> finished;
    {
      const nb::gil_scoped_release unlocked;
      finished = running.queue.take(closed);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (nb::cast<bool>(request.plan.is_stopped())) throw_stopped();
    for (Finished& f : finished) {
      request.on_cell(f.row, f.place, arrays_of(f.result, f.segments, config.output));
      rows[f.place] = std::move(f.row);
    }
  }
  running.queue.rethrow();
  return {running.seconds, said_of(rows, *all)};
}

}  // namespace kvreplay::python
