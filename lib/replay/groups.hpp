#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "allocation/shared_budgets.hpp"
#include "exact/head_stream.hpp"
#include "replay/runner.hpp"
#include "trace/branch_tensors.hpp"

// The cells of a run by head, and the reader of the heads' streams.

namespace kvreplay {

// Cells that share tensors and the exact pass: those of one kv head, or of a layer whose heads decide together.
struct Group {
  HeadRequest request;
  std::vector<std::vector<const Cell*>> decisions;
  const Cell& first() const { return *decisions.front().front(); }
};
// The cells must live as long as the groups.
std::vector<Group> group_cells(const std::vector<Cell>& cells, const RunOptions& options);

// The part of each trace that the cells need. If budgets are shared (to_share), this includes all layers of traces
// whose cells need them, and the prompts that allocators are calibrated on.
std::map<size_t, TraceScope> scopes_of(const std::vector<Cell>& cells, bool to_share);

// HDF5 has one lock: one thread reads at a time, and traces are opened once.
class Reader {
 public:
  Reader(const OpenTensors& open, std::map<size_t, TraceScope> scopes) : open_(open), scopes_(std::move(scopes)) {}
  template <class Real>
  HeadStream<Real> load(const HeadRequest& request) {
    const std::lock_guard lock(mutex_);
    HeadStream<Real> stream = load_head<Real>(text(request), request);
    if (stream.query_rows == 0 && stream.all_query_rows > 0)
      stream.fetch_queries = [this, request](int32_t first, int32_t count, std::vector<Real>& queries) {
        const std::lock_guard fetching(mutex_);
        read_query_rows(text(request), request, first, count, queries);
      };
    return stream;
  }
  // See HeadSource::windows and HeadSource::layers.
  std::vector<int32_t> windows(size_t trace, const std::string& prompt);
  std::vector<Place> layers(size_t trace, const std::string& prompt);

 private:
  const Tensors& opened(size_t trace);
  // The trace, or its context followed by a branch.
  const Tensors& text(const HeadRequest& request);
  const OpenTensors& open_;
  const std::map<size_t, TraceScope> scopes_;
  std::map<std::tuple<size_t, std::string, int32_t>, std::unique_ptr<Tensors>> branches_;
  std::map<size_t, std::unique_ptr<Tensors>> opened_;
  std::mutex mutex_;
};

// Sets the shares of cells whose budgets are shared. If a trace needed only for that cannot be read, only the cells
// that share fail.
template <class Real>
WithoutBudget divide_budgets(std::vector<Cell>& cells, const RunOptions& options);

}  // namespace kvreplay
