#include "sweep/shard_work.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "plan/plan.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
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
