#include "replay/runner.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "allocation/shared_budgets.hpp"
#include "base/threads.hpp"
#include "core/linear.hpp"
#include "core/wide.hpp"
#include "kernels/kernels.hpp"
#include "replay/head_replay.hpp"
#include "replay/read_ahead.hpp"
#include "trace/branch_tensors.hpp"
#include "trace/uniforms.hpp"

namespace kvreplay {

namespace {

// Cells that share tensors and the exact pass: those of one kv head, or of a layer whose heads decide together.
struct Group {
  HeadRequest request;
  std::vector<std::vector<const Cell*>> decisions;
  const Cell& first() const { return *decisions.front().front(); }
};

bool decides_together(const Cell& cell) {
  const bool joins = cell.method().looks_at_queries || cell.method().info.joins_heads;
  return cell.options().serving.pages.tied() || (cell.options().gqa_level == GqaLevel::layer && joins);
}
bool same_decision(const Cell& a, const Cell& b) {
  return decides_together(a) && decides_together(b) && &a.method() == &b.method() && a.seed == b.seed &&
         a.budget.tokens == b.budget.tokens && a.budget.share == b.budget.share &&
         a.variant->params == b.variant->params;
}

// Adds what the cell's method needs of the stream.
void add_needs(const Cell& cell, HeadRequest& request) {
  const BoundMethod method(cell.variant->values, cell.context());
  request.add_needs(method.needs(), cell.variant->values.calibration());
  request.all_queries = request.all_queries || method.reads_at_cuts();
  if (const auto& later = cell.variant->later; later != nullptr) {
    const BoundMethod second = later->method_for(cell.context());
    request.add_needs(second.needs(), later->values.calibration());
    request.all_queries = request.all_queries || second.reads_at_cuts();
  }
  request.rotation = request.rotation || cell.options().positions == Positions::cache;
  request.output_norms = request.output_norms || cell.options().wrapper.kind == Wrapper::Kind::critical;
  request.all_queries = request.all_queries || cell.variant->values.oracle_needs().largest_query_norm;
}

HeadRequest::Gradient gradient_for(const RunOptions& options) {
  if (options.save.projections) return HeadRequest::Gradient::required;
  return options.wanted.has(Work::projections) ? HeadRequest::Gradient::recorded : HeadRequest::Gradient::none;
}

std::vector<Group> group_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  std::vector<Group> groups;
  std::map<Place, size_t> at;
  for (const Cell& cell : cells) {
    Place place = cell.place;
    if (decides_together(cell)) place.kv_head = Place::kWholeLayer;
    const auto [found, is_new] = at.emplace(place, groups.size());
    if (is_new)
      groups.push_back(
          {{.place = place, .extent = cell.extent, .gradient = gradient_for(options), .all_queries = false}, {}});
    Group& group = groups[found->second];
    add_needs(cell, group.request);
    const auto same = std::find_if(group.decisions.begin(), group.decisions.end(),
                                   [&](const auto& d) { return same_decision(*d.front(), cell); });
    if (same == group.decisions.end()) group.decisions.push_back({&cell});
    else same->push_back(&cell);
  }
  return groups;
}

// The part of each trace that the cells need. If budgets are shared (to_share), this includes all layers of traces
// whose cells need them, and the prompts that allocators are calibrated on.
std::map<size_t, TraceScope> scopes_of(const std::vector<Cell>& cells, bool to_share) {
  struct Wanted {
    std::set<std::string> prompts;
    std::set<int32_t> layers;
    bool all_layers = false, all_prompts = false;
  };
  std::map<size_t, Wanted> wanted;
  for (const Cell& cell : cells) {
    Wanted& of = wanted[cell.place.trace];
    of.prompts.insert(cell.place.prompt);
    if (to_share)
      for (const CalibrationPrompt& prompt : cell.variant->calibration) of.prompts.insert(prompt.id);
    of.layers.insert(cell.place.layer);
    of.all_layers = of.all_layers || (to_share && needs_all_layers(cell));
    of.all_prompts = of.all_prompts || needs_other_prompts(cell);
  }
  std::map<size_t, TraceScope> scopes;
  for (const auto& [trace, of] : wanted) {
    scopes[trace];
    if (!of.all_prompts) scopes[trace].prompts.emplace(of.prompts.begin(), of.prompts.end());
    if (!of.all_layers) scopes[trace].layers.emplace(of.layers.begin(), of.layers.end());
  }
  return scopes;
}

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
  // See HeadSource::windows.
  std::vector<int32_t> windows(size_t trace, const std::string& prompt) {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> held;
    for (const LayerInfo& l : opened(trace).prompt(prompt).layers) held.push_back(l.window().most());
    return held;
  }
  // See HeadSource::layers.
  std::vector<Place> layers(size_t trace, const std::string& prompt) {
    const std::lock_guard lock(mutex_);
    std::vector<Place> held;
    for (const LayerInfo& l : opened(trace).prompt(prompt).layers) held.push_back({trace, prompt, l.layer, l.kv_heads});
    return held;
  }

 private:
  const Tensors& opened(size_t trace) {
    std::unique_ptr<Tensors>& tensors = opened_[trace];
    if (tensors == nullptr) tensors = open_(trace, scopes_.at(trace));
    return *tensors;
  }
  // The trace, or its context followed by a branch.
  const Tensors& text(const HeadRequest& request) {
    const Tensors& trace = opened(request.place.trace);
    const int32_t branch = request.extent.branch;
    if (branch < 0) return trace;
    std::unique_ptr<Tensors>& with = branches_[{request.place.trace, request.place.prompt, branch}];
    if (with == nullptr) with = with_branch(trace, request.place.prompt, size_t(branch));
    return *with;
  }
  const OpenTensors& open_;
  const std::map<size_t, TraceScope> scopes_;
  std::map<std::tuple<size_t, std::string, int32_t>, std::unique_ptr<Tensors>> branches_;
  std::map<size_t, std::unique_ptr<Tensors>> opened_;
  std::mutex mutex_;
};

// Calls the caller's functions, one at a time.
class Reports {
 public:
  explicit Reports(const RunOptions& options) : options_(options) {}

  void started(const Cell& cell) {
    const std::lock_guard lock(mutex_);
    if (options_.on_start) options_.on_start(named(cell));
  }
  void result(const Cell& cell, const CellResult& result) {
    const std::lock_guard lock(mutex_);
    if (options_.on_cell) options_.on_cell(named(cell), result);
  }
  void finish_head() {
    const std::lock_guard lock(mutex_);
    if (options_.on_head) options_.on_head();
  }
  void lost(const Cell& cell, const std::string& why) {
    CellResult failed;
    failed.ok = false, failed.lost = true;
    failed.error = why;
    result(cell, failed);
  }
  void lost(const Group& group, const std::string& why) {
    for (const auto& decision : group.decisions)
      for (const Cell* cell : decision) lost(*cell, why);
  }
  bool report_missing_budget(const Cell& cell, const WithoutBudget& without) {
    const auto found = without.find(cell.key);
    if (found != without.end()) lost(cell, found->second);
    return found != without.end();
  }

 private:
  static const Cell& named(const Cell& cell) { return cell.named != nullptr ? *cell.named : cell; }
  const RunOptions& options_;
  std::mutex mutex_;
};

// The requests for the branches of a group's prompt, one after the other; without branches the group's own.
std::vector<HeadRequest> texts_of(const Group& group) {
  const std::vector<BranchExtent>& branches = group.first().branches;
  if (branches.empty()) return {group.request};
  std::vector<HeadRequest> texts(branches.size(), group.request);
  for (size_t i = 0; i < texts.size(); ++i)
    texts[i].extent.branch = branches[i].number,
    texts[i].extent.tokens = group.request.extent.prompt_tokens + branches[i].tokens;
  return texts;
}

// Rows that the branches of a group score from the one of this index on.
int64_t rows_from(const Group& group, size_t branch, const QuerySelection& queries) {
  int64_t rows = 0;
  const std::vector<BranchExtent>& branches = group.first().branches;
  for (size_t i = branch; i < branches.size(); ++i)
    rows += count_scored(branches[i].tokens - branches[i].input_tokens, queries);
  return rows;
}

template <class Real>
struct Loaded {
  std::optional<HeadStream<Real>> stream;
  std::string lost;  // why there is no stream
};

template <class Real>
Loaded<Real> load_or_failure(Reader& reader, const Group& group, bool others_go_on) {
  try {
    return {reader.load<Real>(texts_of(group).front()), ""};
  } catch (...) {
    return {std::nullopt, head_failure_reason(others_go_on)};
  }
}

// A text and its replay.
template <class Real>
struct Pass {
  HeadStream<Real> stream;
  HeadReplay<Real> replay;
  Pass(HeadStream<Real> text, const RunOptions& options, int64_t more_rows)
      : stream(std::move(text)), replay(stream, options, more_rows) {}
};

// A head is reported when all of it is replayed, so a head that is lost on the way has reported nothing.
template <class Real, class Stop>
void replay_group(const Group& group, HeadStream<Real> first, Reader& reader, const RunOptions& options,
                  const Stop& stop, Reports& reports) {
  bool reported = false;
  try {
    // A branch cuts the context anew: what a method keeps of it depends on nothing behind it.
    const std::vector<HeadRequest> texts = texts_of(group);
    std::unique_ptr<Pass<Real>> last;
    for (size_t i = 0; i < texts.size(); ++i) {
      auto pass = std::make_unique<Pass<Real>>(i == 0 ? std::move(first) : reader.load<Real>(texts[i]), options,
                                               rows_from(group, i + 1, options.queries));
      for (const auto& decision : group.decisions) pass->replay.add(decision);
      if (last != nullptr) pass->replay.go_on(last->replay);
      pass->replay.run(stop);
      if (stop()) return;
      last = std::move(pass);
    }
    last->replay.report([&](const Cell& cell, const CellResult& result) {
      reported = true;
      reports.result(cell, result);
    });
  } catch (...) {
    reports.lost(group, head_failure_reason(options.continue_on_head_failure && !reported));
  }
}

// If a trace needed only for budget sharing cannot be read, only the cells that share fail.
template <class Real>
WithoutBudget share(std::vector<Cell>& cells, const RunOptions& options) {
  Reader reader(options.tensors, scopes_of(cells, true));
  const HeadSource<Real> heads{[&](const HeadRequest& request) { return reader.load<Real>(request); },
                               [&](size_t trace, const std::string& prompt) { return reader.layers(trace, prompt); },
                               [&](size_t trace, const std::string& prompt) { return reader.windows(trace, prompt); }};
  return share_budgets<Real>(
      cells, {options.jobs, options.audit, options.queries, options.stop, options.continue_on_head_failure}, heads);
}

template <class Real>
void run_typed(std::vector<Cell> cells, const RunOptions& options) {
  const WithoutBudget without = share<Real>(cells, options);
  if (options.stop && options.stop()) return;  // heads lost by the stop say nothing about the cells
  Reader reader(options.tensors, scopes_of(cells, false));
  Reports reports(options);
  std::erase_if(cells, [&](const Cell& cell) { return reports.report_missing_budget(cell, without); });
  const std::vector<Group> groups = group_cells(cells, options);
  FirstError error;
  const auto stop = [&] { return error.stopped() || (options.stop && options.stop()); };
  const auto drain = [&] { return stop() || (options.drain && options.drain()); };
  ReadAhead<Loaded<Real>> heads(groups.size(), [&](size_t g) {
    return load_or_failure<Real>(reader, groups[g], options.continue_on_head_failure);
  });
  on_threads(std::min(options.jobs, int(groups.size())), error, [&] {
    while (!drain()) {
      auto next = heads.next();
      if (!next) break;
      const Group& group = groups[next->first];
      Loaded<Real> head = std::move(next->second);
      next.reset();
      reports.started(group.first());
      if (head.stream) replay_group(group, std::move(*head.stream), reader, options, stop, reports);
      else reports.lost(group, head.lost);
      reports.finish_head();
    }
  });
}

}  // namespace

std::vector<Cell> with_budgets(std::vector<Cell> cells, const RunOptions& options) {
  if (options.double_precision) (void)share<double>(cells, options);
  else (void)share<float>(cells, options);
  return cells;
}

void run_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  WiderVectors::allowed = std::string(isa_path()) != "portable";
  if (options.double_precision) run_typed<double>(cells, options);
  else run_typed<float>(cells, options);
}

namespace {

template <class Real>
bool has_prompt_queries(const HeadStream<Real>& s) {
  const auto end = s.query_row.begin() + std::min<std::ptrdiff_t>(s.prompt, std::ptrdiff_t(s.query_row.size()));
  return std::any_of(s.query_row.begin(), end, [](int32_t row) { return row >= 0; });
}

// Mean of q q^T [dim, dim] over the prompt's rows and the query heads of one kv head.
template <class Real>
std::vector<double> query_moment(const HeadStream<Real>& s, int32_t block) {
  const int32_t d = s.shape.dim, group = s.shape.heads / s.shape.blocks;
  std::vector<double> moment(size_t(d) * size_t(d), 0), q(size_t(d), 0);
  int64_t count = 0;
  for (int32_t t = 0; t < s.prompt; ++t) {
    if (s.query_row[size_t(t)] < 0) continue;
    s.hold_queries(t, t);
    for (int32_t h = block * group; h < (block + 1) * group; ++h, ++count) {
      std::copy_n(s.query(h, t), d, q.begin());
      add_outer(SerialTeam{}, moment, q);
    }
  }
  for (double& number : moment) number /= double(count);
  complete(SerialTeam{}, moment, d, 0);
  return moment;
}

}  // namespace

template <class Real>
RowCoding::Stream coding_stream(const HeadStream<Real>& s) {
  const RopeView rope{s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
  const auto read = [&s](RowPart part, int32_t block, int32_t token, std::span<double> row) {
    const Real* from = part == RowPart::key ? s.block_keys(block) : s.block_values(block);
    std::copy_n(from + int64_t(token) * int64_t(row.size()), row.size(), row.begin());
  };
  const auto moment = [&s](int32_t block) { return query_moment(s, block); };
  RowCoding::Stream of_rows{s.shape, s.prompt, rope, s.positions.data(), read};
  if (has_prompt_queries(s)) of_rows.query_moment = moment;
  return of_rows;
}
template RowCoding::Stream coding_stream(const HeadStream<float>&);
template RowCoding::Stream coding_stream(const HeadStream<double>&);

template <class Real>
auto RowCodings<Real>::of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream, bool shares)
    -> Shared {
  if (format.is_source()) return {};
  const bool random = is_random(format);
  const std::string file = random ? cell.variant->uniforms : "";
  const uint32_t seed = random ? cell.seed.value_or(0) : 0;
  Shared& made = made_[{row_format_json(format), seed, file}];
  if (made.coding != nullptr) return made;
  RowUniforms uniforms;
  if (!file.empty())
    uniforms = read_row_uniforms(file, uniforms_of(format, stream.shape.dim, stream.shape.stored_v_dim()));
  uniforms.seed = seed;
  made.coding = std::make_shared<RowCoding>(format, coding_stream(stream), uniforms);
  if (shares && codes_by_token(format))
    made.tokens = std::make_shared<CodedTokens<Real>>(made.coding, stream.shape, stream.tokens, stream.keys.data(),
                                                      stream.values.data());
  return made;
}

template class RowCodings<float>;
template class RowCodings<double>;

}  // namespace kvreplay
