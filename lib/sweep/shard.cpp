#include "sweep/shard.hpp"

#include <fmt/core.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "plan/plan.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

bool is_open(CellState state) { return state == CellState::missing || state == CellState::failed; }

}  // namespace

CellState state_of(const std::string& key, const ResultsFolder& folder) {
  if (folder.done().count(key) != 0) return CellState::ok;
  const int32_t failures = folder.failures(key);
  if (failures == 0) return CellState::missing;
  return failures < kMostAttempts ? CellState::failed : CellState::parked;
}

SweepStatus status_of(const Manifest& manifest, const ResultsFolder& folder) {
  SweepStatus status;
  const Keys keys = manifest.keys();
  status.cells = int64_t(keys.size());
  for (const SweepUnit& unit : manifest.units)
    for (const std::string& key : unit.keys_in(keys)) {
      const CellState state = state_of(key, folder);
      status.ok += state == CellState::ok;
      status.failed += state == CellState::failed;
      status.parked += state == CellState::parked;
      status.missing += state == CellState::missing;
      status.stale += state == CellState::ok && !folder.shards().cells.at(key).own_build;
      if (is_open(state)) status.cost_left += unit.cell_cost();
    }
  status.repeated = int64_t(folder.shards().repeats.size());
  status.damaged = int64_t(folder.shards().unreadable_lines);
  return status;
}

std::vector<int32_t> missing_shards(const Manifest& manifest, const ResultsFolder& folder, int32_t count) {
  const Keys keys = manifest.keys();
  const std::vector<int32_t> shard_of = shards_of_units(manifest.units, count);
  std::set<int32_t> open;
  for (size_t u = 0; u < manifest.units.size(); ++u)
    for (const std::string& key : manifest.units[u].keys_in(keys))
      if (is_open(state_of(key, folder))) open.insert(shard_of[u]);
  return {open.begin(), open.end()};
}

namespace {

constexpr int32_t kManyShards = 1'000'000;

}  // namespace

Shard parse_shard(const std::string& text) {
  const std::string_view whole = text;
  const size_t slash = whole.find('/');
  const auto index = parse_number<int32_t>(whole.substr(0, slash));
  const auto count = slash == whole.npos ? std::nullopt : parse_number<int32_t>(whole.substr(slash + 1));
  if (index && count && *count >= 1 && *count <= kManyShards && *index >= 0 && *index < *count) return {*index, *count};
  throw ConfigError(fmt::format("--shard {}: must be i/N with i from 0 to N-1, for example 0/20", text));
}

// Lays all costs end to end; a unit belongs to the shard that contains the middle of its cost.
std::vector<int32_t> shards_of_units(const std::vector<SweepUnit>& units, int32_t count) {
  double total = 0;
  for (const SweepUnit& unit : units) total += std::max(unit.cost, 1.0);
  std::vector<int32_t> shards;
  double before = 0;
  for (const SweepUnit& unit : units) {
    const double cost = std::max(unit.cost, 1.0);
    shards.push_back(std::min(count - 1, int32_t((before + cost / 2) / total * count)));
    before += cost;
  }
  return shards;
}

std::vector<size_t> units_of(const std::vector<SweepUnit>& units, const Shard& shard) {
  const std::vector<int32_t> of_unit = shards_of_units(units, shard.count);
  std::vector<size_t> mine;
  for (size_t u = 0; u < units.size(); ++u)
    if (of_unit[u] == shard.index) mine.push_back(u);
  return mine;
}

std::string ranges_text(const std::vector<int32_t>& numbers) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    ranges.push_back(end - i == 1 ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return join(ranges, ",");
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Units of one prompt of one trace: their layers are opened together.
struct Opened {
  size_t trace;
  std::string prompt;
  std::set<int32_t> layers;
  std::set<std::string> keys;

  TraceScope scope() const {
    return {std::vector<std::string>{prompt}, std::vector<int32_t>(layers.begin(), layers.end())};
  }
};

std::vector<Opened> opened_by(const Manifest& manifest, const std::vector<size_t>& units, const Keys& keys) {
  std::map<std::pair<size_t, std::string>, Opened> places;
  for (const size_t u : units) {
    const SweepUnit& unit = manifest.units[u];
    Opened& place = places[{unit.place.trace, unit.place.prompt}];
    place.trace = unit.place.trace, place.prompt = unit.place.prompt;
    place.layers.insert(unit.place.layer);
    const auto of_unit = unit.keys_in(keys);
    place.keys.insert(of_unit.begin(), of_unit.end());
  }
  std::vector<Opened> all;
  for (auto& [where, place] : places) all.push_back(std::move(place));
  return all;
}

std::string config_text(const Manifest& manifest, const Opened& place, const fs::path& trace) {
  json config = json::parse(manifest.config);
  config["traces"] = {trace.string()};
  config["select"]["prompts"] = {place.prompt};
  config["select"]["layers"] = place.layers;
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

void expect_same_trace(const TraceInfo& found, const SweepTrace& planned) {
  if (found.trace_id == planned.trace_id) return;
  throw TraceError(
      fmt::format("{}: is another trace than the one that was planned (trace_id {} instead of {}). Put "
                  "that one back, or plan the new one into another directory",
                  planned.path.string(), found.trace_id, planned.trace_id));
}

class Opening {
 public:
  Opening(const Manifest& manifest, const ShardRequest& request, const Registry& methods,
          const std::vector<std::string>& measures)
      : manifest_(manifest), request_(request), methods_(methods), measures_(measures) {}

  void open(const Opened& place, ShardWork& work) const {
    const SweepTrace& planned = manifest_.traces.at(place.trace);
    const TraceScope scope = manifest_.whole_traces ? TraceScope{} : place.scope();
    const fs::path trace = request_.place ? request_.place(planned, scope) : planned.path;
    LoadedRun loaded = load(place, trace, planned);
    expect_same_trace(loaded.traces.front(), planned);
    if (loaded.config.budget.has_shares()) take_budgets(place, loaded);
    std::vector<Cell> cells = plan_cells(loaded);
    std::erase_if(cells, [&](const Cell& cell) { return place.keys.count(cell.key) == 0; });
    if (cells.size() != place.keys.size())
      throw ConfigError(
          fmt::format("{}, prompt {}: {} of {} planned cells have other keys now: a file that the configuration names "
                      "has "
                      "changed, or the plan was made by another version. Plan again into another directory",
                      planned.path.string(), place.prompt, place.keys.size() - cells.size(), place.keys.size()));
    for (Cell& cell : cells) cell.place.trace = work.traces.size();
    std::move(cells.begin(), cells.end(), std::back_inserter(work.cells));
    work.traces.push_back(trace);
    work.config = std::move(loaded.config);
  }

 private:
  // The plan has solved budgets that were shares of the cache; they are taken from it.
  void take_budgets(const Opened& place, LoadedRun& loaded) const {
    std::map<int32_t, size_t> selected;  // by the number of the layer
    for (size_t i = 0; i < loaded.selection.size(); ++i) {
      SelectedLayer& at = loaded.selection[i];
      at.by_share.clear();
      selected[loaded.traces[at.trace].prompts[at.prompt].layers[at.layer].layer] = i;
    }
    for (const std::string& line : manifest_.cells) {
      const json cell = json::parse(line);
      if (!cell.contains("shares") || place.keys.count(cell.at("key")) == 0) continue;
      const size_t layer = selected.at(cell.at("layer"));
      std::optional<uint32_t> seed;
      if (!cell.at("seed").is_null()) seed = cell.at("seed").get<uint32_t>();
      add_variant(loaded, layer, cell.at("instance"), cell.at("budget_tokens"), cell.at("kv_head"), seed);
      loaded.selection[layer].variants.back().shares = cell.at("shares").get<std::vector<double>>();
    }
  }

  // If the configuration does not fit, the trace may be another one: that is then the better error.
  LoadedRun load(const Opened& place, const fs::path& trace, const SweepTrace& planned) const {
    try {
      return load_run(config_text(manifest_, place, trace), "/", "the plan", request_.overrides, methods_, measures_);
    } catch (const ConfigError&) {
      expect_same_trace(Trace(trace, {std::vector<std::string>{}, {}}).info(), planned);
      throw;
    }
  }

  const Manifest& manifest_;
  const ShardRequest& request_;
  const Registry& methods_;
  const std::vector<std::string>& measures_;
};

void sort_by_unit(const std::vector<size_t>& units, ShardWork& work) {
  std::unordered_map<size_t, size_t> rank;
  for (size_t i = 0; i < units.size(); ++i) rank[units[i]] = i;
  const auto rank_of = [&](const Cell& cell) { return rank.at(work.unit_of.at(cell.key)); };
  std::stable_sort(work.cells.begin(), work.cells.end(),
                   [&](const Cell& a, const Cell& b) { return rank_of(a) < rank_of(b); });
}

}  // namespace

ShardWork open_units(const Manifest& manifest, const ShardRequest& request, const Registry& methods,
                     const std::vector<std::string>& measures) {
  const Keys keys = manifest.keys();
  const Opening opening(manifest, request, methods, measures);
  ShardWork work;
  for (const Opened& place : opened_by(manifest, request.units, keys)) {
    try {
      opening.open(place, work);
    } catch (const UserError& e) {
      work.problems.emplace_back(e.what());
      if (work.exit_code == 0) work.exit_code = e.exit_code();
    }
  }
  for (const size_t u : request.units)
    for (const std::string& key : manifest.units[u].keys_in(keys)) work.unit_of[key] = u;
  sort_by_unit(request.units, work);
  return work;
}

}  // namespace kvreplay
