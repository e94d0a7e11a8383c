#include "replay/runner.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>

#include "base/threads.hpp"
#include "core/linear.hpp"
#include "core/wide.hpp"
#include "kernels/kernels.hpp"
#include "replay/groups.hpp"
#include "replay/head_replay.hpp"
#include "replay/read_ahead.hpp"
#include "trace/uniforms.hpp"

namespace kvreplay {

namespace {

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

template <class Real>
void run_typed(std::vector<Cell> cells, const RunOptions& options) {
  const WithoutBudget without = divide_budgets<Real>(cells, options);
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
  if (options.double_precision) (void)divide_budgets<double>(cells, options);
  else (void)divide_budgets<float>(cells, options);
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
