#include "replay/runner.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>

#include "base/first_error.hpp"
#include "core/wide.hpp"
#include "kernels/kernels.hpp"
#include "replay/council.hpp"
#include "replay/head_replay.hpp"
#include "replay/read_ahead.hpp"

namespace kvreplay {
namespace {

// Cells that share tensors and the exact pass: of one kv head, or of a layer whose heads decide together.
struct Group {
  size_t trace;
  HeadRequest request;
  std::vector<std::vector<const Cell*>> decisions;
};

bool decides_together(const Cell& cell) {
  return cell.axes.gqa_level == GqaLevel::layer && cell.method->looks_at_queries;
}
bool same_decision(const Cell& a, const Cell& b) {
  return decides_together(a) && decides_together(b) && a.method == b.method && a.params == b.params &&
         a.budget == b.budget && a.allocated == b.allocated && a.seed == b.seed;
}

std::vector<Group> group_cells(const std::vector<Cell>& cells) {
  std::vector<Group> groups;
  std::map<std::tuple<size_t, std::string, int32_t, int32_t>, size_t> at;
  for (const Cell& cell : cells) {
    const int32_t head = decides_together(cell) ? HeadRequest::kWholeLayer : cell.kv_head;
    const auto [found, is_new] =
        at.emplace(std::tuple(cell.trace, cell.prompt, cell.layer, head), groups.size());
    if (is_new)
      groups.push_back({cell.trace,
                        {cell.prompt, cell.layer, head, cell.n_tokens, cell.n_prefill, false, false, false},
                        {}});
    Group& group = groups[found->second];
    group.request.rotation = group.request.rotation || cell.axes.positions == Positions::cache;
    const PromptNeeds needs = cell.method->needs(cell.params, cell.scene());
    group.request.classes = group.request.classes || needs.token_classes;
    group.request.all_queries =
        group.request.all_queries || needs.queries || cell.method->hindsight(cell.params).largest_query_norm;
    const auto same = std::find_if(group.decisions.begin(), group.decisions.end(),
                                   [&](const auto& d) { return same_decision(*d.front(), cell); });
    if (same == group.decisions.end()) group.decisions.push_back({&cell});
    else same->push_back(&cell);
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
    HeadStream<Real> stream = load_head<Real>(opened(trace), request);
    if (stream.query_rows == 0 && stream.all_query_rows > 0)
      stream.fetch_queries = [this, trace, request](int32_t first, int32_t count,
                                                    std::vector<Real>& queries) {
        const std::lock_guard fetching(mutex_);
        read_query_rows(opened(trace), request, first, count, queries);
      };
    return stream;
  }
  std::vector<HeldLayer> layers(size_t trace, const std::string& prompt) {
    const std::lock_guard lock(mutex_);
    std::vector<HeldLayer> held;
    for (const LayerInfo& l : opened(trace).prompt(prompt).layers) held.push_back({l.layer, l.kv_heads});
    return held;
  }

 private:
  const Trace& opened(size_t trace) {
    auto found = open_.find(trace);
    if (found == open_.end()) found = open_.emplace(trace, Trace(paths_.at(trace))).first;
    return found->second;
  }
  const std::vector<std::filesystem::path>& paths_;
  std::map<size_t, Trace> open_;
  std::mutex mutex_;
};

template <class Real>
void run_typed(std::vector<Cell> cells, const RunOptions& options) {
  Reader reader(options.traces);
  allocate_budgets<Real>(
      cells, options, [&](size_t trace, const HeadRequest& r) { return reader.load<Real>(trace, r); },
      [&](size_t trace, const std::string& prompt) { return reader.layers(trace, prompt); });
  const std::vector<Group> groups = group_cells(cells);
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
  ReadAhead<HeadStream<Real>> streams(
      groups.size(), [&](size_t g) { return reader.load<Real>(groups[g].trace, groups[g].request); });
#pragma omp parallel num_threads(std::min(options.jobs, std::max(1, int(groups.size()))))
  try {
    while (!stop()) {
      auto next = streams.next();
      if (!next) break;
      const Group& group = groups[next->first];
      const HeadStream<Real> stream = std::move(next->second);
      next.reset();
      start(*group.decisions.front().front());
      HeadReplay<Real> replay(stream, options);
      for (const auto& decision : group.decisions) replay.add(decision);
      replay.run(stop, report);
      const std::lock_guard lock(reporting);
      if (options.on_head) options.on_head();
    }
  } catch (...) {
    error.keep(std::current_exception());
  }
  error.rethrow();
}

}  // namespace

void run_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  WiderVectors::allowed = std::string(isa_path()) != "portable";
  if (options.double_precision) run_typed<double>(cells, options);
  else run_typed<float>(cells, options);
}

}  // namespace kvreplay
