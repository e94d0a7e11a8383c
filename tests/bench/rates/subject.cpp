#include "tests/bench/rates/subject.hpp"

#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "apps/config_options.hpp"
#include "apps/engine_options.hpp"
#include "apps/method_text.hpp"
#include "apps/summary.hpp"
#include "base/errors.hpp"
#include "config/run_config.hpp"
#include "exact/tile.hpp"
#include "measures/metrics.hpp"
#include "plan/plan.hpp"
#include "replay/head_replay.hpp"
#include "trace/synth.hpp"

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

// The runner's request for the head of these cells.
HeadRequest request_of(const std::vector<Cell>& cells) {
  HeadRequest request{cells.front().place, cells.front().extent};
  for (const Cell& cell : cells) {
    const BoundMethod method(cell.variant->values, cell.context());
    request.rotation = request.rotation || cell.options().positions == Positions::cache;
    request.classes = request.classes || method.needs().token_classes;
  }
  return request;
}

void keep_first_head(std::vector<Cell>& cells) {
  const Place first = cells.front().place;
  std::erase_if(cells, [&](const Cell& cell) { return cell.place != first; });
}

// Sum of t + 1 over tokens first <= t < end.
double causal_pairs(double first, double end) { return (end * (end + 1) - first * (first + 1)) / 2; }

}  // namespace

std::vector<Cell> Subject::chosen(std::optional<size_t> method, std::optional<int32_t> budget) const {
  std::vector<Cell> found;
  for (const Cell& cell : cells)
    if ((!method || cell.variant->instance == *method) && (!budget || cell.budget.tokens == *budget))
      found.push_back(cell);
  return found;
}

std::optional<int32_t> Subject::largest_budget(size_t method) const {
  std::optional<int32_t> largest;
  for (const Cell& cell : chosen(method, {}))
    if (!cell.budget.none()) largest = std::max(largest, std::optional(cell.budget.tokens));
  return largest;
}

bool Subject::streams(size_t method) const {
  const std::vector<Cell> own = chosen(method, {});
  return !own.empty() && own.front().options().phase == Phase::stream && !own.front().method().info.reads_full_cache;
}

Subject load_subject(const SubjectRequest& request) {
  open_trace(request.trace);  // its message lists the neighbours of a missing file
  std::vector<std::string> settings = {"schema=1", text_override("traces", request.trace)};
  settings.insert(settings.end(), request.settings.begin(), request.settings.end());
  const LoadedRun loaded = load_run({}, settings, registry(), metric_names());
  Subject subject;
  subject.cells = plan_cells(loaded);
  subject.options = engine_options(loaded.config, observes_rows(subject.cells), open_files(loaded.config.traces));
  keep_first_head(subject.cells);
  for (const MethodInstance& instance : loaded.config.methods) subject.methods.push_back(instance_text(instance));
  subject.stream = load_head<float>(Trace(request.trace), request_of(subject.cells));
  return subject;
}

SyntheticTrace::SyntheticTrace(int64_t tokens, int32_t group, int32_t dim, int32_t v_dim) {
  std::string pattern = (fs::temp_directory_path() / "kvreplay-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw OutputError(fmt::format("{}: cannot be made. Point TMPDIR to a folder that can be written",
                                  fs::temp_directory_path().string()));
  folder_ = pattern;
  SynthOptions options;
  options.tokens = tokens, options.prompt = tokens / 2;
  options.q_heads = group, options.kv_heads = 1;
  options.head_dim = dim, options.v_head_dim = v_dim;
  write_synthetic_trace(options, file());
}

SyntheticTrace::~SyntheticTrace() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void replay_cells(const Subject& subject, const std::vector<Cell>& cells, const RunOptions& options) {
  HeadReplay<float> replay(subject.stream, options);
  for (const Cell& cell : cells) replay.add(cell);
  std::string failure;
  replay.run([] { return false; });
  replay.report([&](const Cell& cell, const CellResult& result) {
    const char* const name = cell.method().info.name;
    if (!result.ok) failure = fmt::format("{}: {}", name, result.error);
    else if (options.device && result.on_cpu) failure = fmt::format("{}: the device leaves it to the cores", name);
  });
  if (!failure.empty()) throw UserError(1, fmt::format("bench: a cell failed: {}", failure));
}

void exact_outputs(const Subject& subject) {
  const ExactAttention<float> exact(subject.stream);
  Tile<float> tile;
  for (tile.begin = subject.stream.prompt; tile.begin < subject.stream.tokens; tile.begin = tile.end) {
    tile.end = std::min(subject.stream.tokens, tile.begin + tile_rows(subject.stream.shape.heads));
    tile.rows.clear();
    for (int32_t t = tile.begin; t < tile.end; ++t)
      if (subject.stream.query_row[size_t(t)] >= 0) tile.rows.push_back(t);
    if (tile.rows.empty()) continue;
    tile.scored.assign(tile.rows.size(), 1);
    exact.exact_pass(tile);
  }
}

void prompt_statistics(const Subject& subject) {
  const ExactAttention<float> exact(subject.stream);
  PromptPass pass;
  pass.sums = {ColumnSum{}};
  prompt_pass(exact, pass);
}

double exact_operations(const HeadStream<float>& stream) {
  const double of_logit = 2.0 * (stream.shape.dim + stream.shape.v_dim);
  return of_logit * stream.shape.heads * causal_pairs(stream.prompt, stream.tokens);
}
double prompt_logits(const HeadStream<float>& stream) { return stream.shape.heads * causal_pairs(0, stream.prompt); }
double tokens_and_heads(const HeadStream<float>& stream) { return double(stream.tokens) * stream.shape.heads; }

}  // namespace kvreplay::app
