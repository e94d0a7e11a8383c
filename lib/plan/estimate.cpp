#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <thread>

#include "exact/tile.hpp"
#include "formats/registry.hpp"
#include "plan/estimate.hpp"

// The model behind --dry-run and the ETA. A unit of work is a kv head with its group of G query heads; one multiply-add
// counts 2. n: tokens, P: prompt tokens, B: budget.
//   exact pass, once per unit:  rows * n * (2 d + 2 dv) * G, rows = those that have a strip: the scored ones,
//                               and on traces of up to kLongTrace tokens all that some method observes
//   prompt statistics:          (P^2 - F^2) / 2 * 2 d * G, once per unit, F the first row that a method reads
//   a cell:                     rows * min(B, n) * (2 d + 2 dv) * G, rows = those observed or scored;
//                               without a budget B = n;
//                               eight times that where the policy is followed step by step
//   arrays that are saved:      4000 for each number: most of it is compression
//   noise on probabilities:     1500 for each (row, token, head) that a method draws for
//   a cut of the prompt:        P * B * 2 d, as if each token were compared with each kept token
//   memory of a unit:           k twice, v, the queries of a tile or of the trace, a strip for every row of a
//                               tile; for every cache its notes on each token and each row (the rows themselves
//                               are those of k and v, unless a row format rewrites them: for each cache, or once
//                               where it codes rows one by one); k, v and queries of one unit that is read ahead
// The cost of a unit is spread evenly over its cells.

namespace kvreplay {
namespace {

constexpr double kBytesPerRow = 33;     // token, score, two weights, two marks, at most
constexpr double kBytesPerToken = 12;   // for each cache: copies, evictions and their ages
constexpr double kBytesPerStep = 12;    // in addition while it streams: where tokens stand in tiles and products
constexpr double kBytesPerScored = 48;  // for each cell and query head: what is kept of a scored row
constexpr double kProgramBytes = 40e6;  // the program before anything is loaded
constexpr double kOperationsPerSecond = 5e10;
constexpr double kStepByStep = 8;             // factor over the cost of shared sums
constexpr double kOperationsPerSaved = 4000;  // writing and compressing a number
constexpr double kOperationsPerDraw = 1500;   // a number of the generator and two logarithms

const LayerInfo& layer_of(const Cell& cell, const std::vector<TraceInfo>& traces) {
  const std::vector<LayerInfo>& layers = traces.at(cell.place.trace).find(cell.place.prompt)->layers;
  return *std::find_if(layers.begin(), layers.end(),
                       [&](const LayerInfo& info) { return info.layer == cell.place.layer; });
}

double scored_rows(const RunConfig::Replay& replay, double decode_rows) {
  using Queries = RunConfig::Replay::Queries;
  const double count = double(std::max<int64_t>(replay.queries_count, 1));
  if (replay.queries == Queries::last) return std::min(count, decode_rows);
  if (replay.queries == Queries::stride) return decode_rows / count;
  return decode_rows;
}

double cached_rows(const Cell& cell) {
  return cell.budget.none() ? cell.extent.tokens : std::min(cell.budget.tokens, cell.extent.tokens);
}

// Caches share the rows that are read back if tokens are coded one by one.
bool has_shared_codes(const Cell& cell, bool audit) {
  const RowFormat& format = cell.options().row_format;
  return !format.is_source() && codes_by_token(format) && !audit;
}
// Rows that a row format copies for one cache.
double coded_rows(const Cell& cell, bool audit) {
  if (cell.options().row_format.is_source() || has_shared_codes(cell, audit)) return 0;
  return cell.options().phase == Phase::stream ? cached_rows(cell) : cell.extent.tokens;
}

PromptNeeds needs_of(const Cell& cell) { return BoundMethod(cell.variant->values, cell.context()).needs(); }

bool observes(const Cell& cell) { return cell.variant->values.observes(cell.options()); }

// First row of the prompt whose probabilities the method looks at when all of it arrives; the prompt's end if there is
// none.
double first_read(const Cell& cell) {
  const PromptNeeds needs = needs_of(cell);
  double first = cell.extent.prompt_tokens;
  if (cell.variant->prompt_streams || !needs.reads_queries()) return first;
  for (const int32_t row : {needs.column_sums_from, needs.rows_from})
    if (row >= 0) first = std::min(first, double(row));
  return first;
}

// Rows that a method writes, chooses or scores in its own way cannot be shared with other caches.
bool is_step_by_step(const Cell& cell) {
  const Hooks hooks = cell.method().hooks;
  return hooks.has(Hook::append) || hooks.has(Hook::choose) || (observes(cell) && !hooks.has(Hook::score_rule)) ||
         !cell.options().row_format.is_source();
}

struct Unit {
  std::span<const Cell> cells;
  const LayerInfo& layer;

  double heads() const { return layer.group(); }
  double width() const { return layer.head_dim + layer.v_head_dim; }
  double tokens() const { return cells.front().extent.tokens; }
  double prompt() const { return cells.front().extent.prompt_tokens; }

  double strips(const RunConfig::Replay& replay) const {
    const bool observed = std::any_of(cells.begin(), cells.end(), observes);
    return observed && tokens() <= kLongTrace ? tokens() - prompt() : scored_rows(replay, tokens() - prompt());
  }
  double shared_cost(const RunConfig::Replay& replay) const {
    const double exact = strips(replay) * tokens() * 2 * width() * heads();
    double first = prompt();
    for (const Cell& cell : cells) first = std::min(first, first_read(cell));
    return exact + (prompt() * prompt() - first * first) * layer.head_dim * heads();
  }
  double cost(const Cell& cell, const RunConfig::Replay& replay) const {
    const double decoded = tokens() - prompt(), stepped = cell.variant->prompt_streams ? tokens() : decoded;
    const double rows = observes(cell) ? stepped : scored_rows(replay, decoded);
    const double cut =
        !cell.budget.none() && !cell.variant->prompt_streams ? prompt() * cached_rows(cell) * 2 * layer.head_dim : 0;
    const double step = cached_rows(cell) * 2 * width() * heads() * (is_step_by_step(cell) ? kStepByStep : 1);
    return rows * step + cut + noise(cell) * kOperationsPerDraw;
  }
  // Numbers that a run saves for a cell.
  double saved(const Cell& cell, const RunConfig& config) const {
    const double rows = scored_rows(config.replay, tokens() - prompt()), lists = tokens() - prompt() + 1;
    const SaveOptions& save = config.output;
    return (save.outputs ? rows * heads() * layer.out_dim() : 0) + (save.curves ? 2 * rows * heads() : 0) +
           (save.projections ? rows * heads() * (layer.all_gradients() + 1) : 0) +
           (save.kept ? cached_rows(cell) * (cell.options().phase == Phase::stream ? lists : 1) : 0);
  }
  // Random numbers of a method that puts noise on every probability that it observes.
  double noise(const Cell& cell) const {
    if (!cell.seed || !observes(cell)) return 0;
    const double decoded = tokens() - prompt(), read = prompt() - first_read(cell);
    return (read * (prompt() - read / 2) + decoded * cached_rows(cell)) * heads();
  }
  bool holds_all_queries() const {
    return tokens() <= kQueryRows ||
           std::any_of(cells.begin(), cells.end(), [](const Cell& cell) { return needs_of(cell).queries; });
  }
  // Cosines and sines of every distance, if a method re-assigns positions.
  double rotation() const {
    const bool some = layer.rope && std::any_of(cells.begin(), cells.end(), [](const Cell& cell) {
                        return cell.options().positions == Positions::cache;
                      });
    return some ? tokens() * 2 * double(layer.rope->inv_freq.size()) : 0;
  }
  double tensors(int32_t copies_of_keys) const {
    const double queries = holds_all_queries() ? tokens() : kQueryRows;
    return tokens() * (copies_of_keys * layer.head_dim + layer.v_head_dim) + queries * layer.head_dim * heads() +
           rotation();
  }
  double cache_bytes(const Cell& cell, double real_bytes, bool audit) const {
    const bool bounded =
        cell.options().phase == Phase::stream && !cell.budget.none() && !cell.method().info.reads_full_cache;
    const double prompt_rows = cell.variant->prompt_streams ? 0 : prompt();
    const double rows = bounded ? std::max(prompt_rows, cached_rows(cell)) : tokens();
    const double copied = (audit ? tokens() : 0) + coded_rows(cell, audit);
    const double per_token = kBytesPerToken + (cell.options().phase == Phase::stream ? kBytesPerStep : 0);
    return tokens() * per_token + rows * kBytesPerRow + copied * width() * real_bytes;
  }
  // Number of row formats that read back every token once, for all caches.
  double shared_formats(bool audit) const {
    std::set<std::pair<std::string, uint32_t>> formats;
    for (const Cell& cell : cells)
      if (const RowFormat& format = cell.options().row_format; has_shared_codes(cell, audit))
        formats.emplace(row_format_json(format), is_random(format) ? cell.seed.value_or(0) : 0);
    return double(formats.size());
  }
  double bytes(const RunConfig& config, double real_bytes) const {
    const double strip = tile_rows(int32_t(heads())) * heads() * tokens();
    const double coded = tokens() * (width() + layer.head_dim) + strip;  // rows, packed keys and their strips
    double total = (tensors(2) + strip + shared_formats(config.run.audit) * coded) * real_bytes;
    for (const Cell& cell : cells) {
      const double caches = cell.options().gqa_level == GqaLevel::query ? heads() : 1;
      total += caches * cache_bytes(cell, real_bytes, config.run.audit);
      total += scored_rows(config.replay, tokens() - prompt()) * heads() * kBytesPerScored;
    }
    return total;
  }
};

std::vector<Unit> units_of(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces) {
  std::vector<Unit> units;
  for (size_t begin = 0; begin < plan.size();) {
    size_t end = begin + 1;
    while (end < plan.size() && plan[begin].place == plan[end].place) ++end;
    units.push_back({std::span(plan).subspan(begin, end - begin), layer_of(plan[begin], traces)});
    begin = end;
  }
  return units;
}

// As many units as there are jobs are in memory at a time; assume that the largest ones coincide.
double peak_of(std::vector<double> bytes, int jobs) {
  const size_t at_once = jobs > 0 ? size_t(jobs) : std::max(1u, std::thread::hardware_concurrency());
  std::sort(bytes.begin(), bytes.end(), std::greater<>());
  bytes.resize(std::min(bytes.size(), at_once));
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

}  // namespace

double core_seconds(double cost) { return cost / kOperationsPerSecond; }

PlanEstimate estimate(const RunConfig& config, const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces) {
  const double real_bytes = config.run.double_precision ? sizeof(double) : sizeof(float);
  PlanEstimate result;
  std::vector<double> bytes;
  double ahead = 0;
  for (const Unit& unit : units_of(plan, traces)) {
    const double share = unit.shared_cost(config.replay) / double(unit.cells.size());
    for (const Cell& cell : unit.cells)
      result.cost.push_back(unit.cost(cell, config.replay) + share + unit.saved(cell, config) * kOperationsPerSaved);
    bytes.push_back(unit.bytes(config, real_bytes));
    ahead = std::max(ahead, unit.tensors(1) * real_bytes);
  }
  result.bytes_peak = int64_t(kProgramBytes + ahead + peak_of(std::move(bytes), config.run.jobs));
  return result;
}

}  // namespace kvreplay
