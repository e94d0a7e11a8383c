#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <thread>

#include "plan/plan.hpp"

// The model behind --dry-run and the ETA. A unit of work is a kv head with its group of G query heads;
// one multiply-add counts 2.
//   exact pass, once per unit:  rows * n * (2 d + 2 dv) * G, rows = scored decode rows
//   prompt statistics:          P^2 / 2 * 2 d * G, once per unit, if a method reads prompt queries
//   a cell:                     (n - P) * min(B, n) * (2 d + 2 dv) * G; without a budget B = n
//   memory of a unit:           q, k, v, a strip of 48 rows a query head, and for every cache the
//                               bookkeeping of its rows (the rows themselves are those of k and v, unless a
//                               row format rewrites them)
// The cost of a unit is spread evenly over its cells.

namespace kvreplay {
namespace {

constexpr double kStripRows = 48;
constexpr double kBytesPerCachedRow = 33;  // token, score, two weights, two marks, at most

const LayerInfo& layer_of(const Cell& cell, const std::vector<TraceInfo>& traces) {
  const std::vector<LayerInfo>& layers = traces.at(cell.trace).prompts.at(cell.prompt_rank).layers;
  return *std::find_if(layers.begin(), layers.end(),
                       [&](const LayerInfo& info) { return info.layer == cell.layer; });
}

bool same_unit(const Cell& a, const Cell& b) {
  return a.trace == b.trace && a.prompt_rank == b.prompt_rank && a.layer == b.layer && a.kv_head == b.kv_head;
}

double scored_rows(const RunConfig::Replay& replay, double decode_rows) {
  using Queries = RunConfig::Replay::Queries;
  const double count = double(std::max<int64_t>(replay.queries_count, 1));
  if (replay.queries == Queries::last) return std::min(count, decode_rows);
  if (replay.queries == Queries::stride) return decode_rows / count;
  return decode_rows;
}

double cached_rows(const Cell& cell) { return std::min(cell.budget.value_or(cell.n_tokens), cell.n_tokens); }

// Rows that a row format keeps a copy of.
double coded_rows(const Cell& cell) {
  if (cell.axes.row_format.kind == RowFormat::Kind::source) return 0;
  return cell.axes.phase == Phase::stream ? cached_rows(cell) : cell.n_tokens;
}

bool reads_prompt_queries(const Cell& cell) {
  return cell.method->needs(cell.params, cell.scene()).reads_queries();
}

struct Unit {
  std::span<const Cell> cells;
  const LayerInfo& layer;

  double heads() const { return layer.group(); }
  double width() const { return layer.head_dim + layer.v_head_dim; }
  double tokens() const { return cells.front().n_tokens; }
  double prompt() const { return cells.front().n_prefill; }

  double shared_cost(const RunConfig::Replay& replay) const {
    const double exact = scored_rows(replay, tokens() - prompt()) * tokens() * 2 * width() * heads();
    const bool statistics = std::any_of(cells.begin(), cells.end(), reads_prompt_queries);
    return exact + (statistics ? prompt() * prompt() * layer.head_dim * heads() : 0);
  }
  double cost(const Cell& cell) const {
    return (tokens() - prompt()) * cached_rows(cell) * 2 * width() * heads();
  }
  double bytes(double real_bytes, bool audit) const {
    const double tensors = tokens() * (width() + layer.head_dim * heads());
    double total = (tensors + kStripRows * tokens() * heads()) * real_bytes;
    for (const Cell& cell : cells) {
      const double caches = cell.axes.gqa_level == GqaLevel::query ? heads() : 1;
      const double copied = (audit ? tokens() : 0) + coded_rows(cell);
      total += caches * (tokens() * kBytesPerCachedRow + copied * width() * real_bytes);
    }
    return total;
  }
};

std::vector<Unit> units_of(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces) {
  std::vector<Unit> units;
  for (size_t begin = 0; begin < plan.size();) {
    size_t end = begin + 1;
    while (end < plan.size() && same_unit(plan[begin], plan[end])) ++end;
    units.push_back({std::span(plan).subspan(begin, end - begin), layer_of(plan[begin], traces)});
    begin = end;
  }
  return units;
}

// As many units as there are jobs are in memory at a time; the largest ones may meet.
int64_t peak_of(std::vector<double> bytes, int jobs) {
  const size_t at_once = jobs > 0 ? size_t(jobs) : std::max(1u, std::thread::hardware_concurrency());
  std::sort(bytes.begin(), bytes.end(), std::greater<>());
  bytes.resize(std::min(bytes.size(), at_once));
  return int64_t(std::accumulate(bytes.begin(), bytes.end(), 0.0));
}

}  // namespace

PlanEstimate estimate(const RunConfig& config, const std::vector<Cell>& plan,
                      const std::vector<TraceInfo>& traces) {
  const double real_bytes = config.run.double_precision ? sizeof(double) : sizeof(float);
  PlanEstimate result;
  std::vector<double> bytes;
  for (const Unit& unit : units_of(plan, traces)) {
    const double share = unit.shared_cost(config.replay) / double(unit.cells.size());
    for (const Cell& cell : unit.cells) result.cost.push_back(unit.cost(cell) + share);
    bytes.push_back(unit.bytes(real_bytes, config.run.audit));
  }
  result.bytes_peak = peak_of(std::move(bytes), config.run.jobs);
  return result;
}

}  // namespace kvreplay
