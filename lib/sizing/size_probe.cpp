#include "sizing/size_probe.hpp"

#include <algorithm>

#include "plan/plan.hpp"

namespace kvreplay {
namespace {

struct Bound {
  Metric used, full;
};
// In the order of BudgetList::Of.
constexpr Bound kBounds[] = {
    {"total_bytes", "full_bytes"},
    {"mean_bytes", "mean_full_bytes"},
    {"prompt_bytes", "prompt_full_bytes"},
};

// Looks at the configured methods, not at the tried ones, so that probabilities are those of the run itself.
bool observes_rows(const RunConfig& config) {
  return std::any_of(config.methods.begin(), config.methods.end(),
                     [](const MethodInstance& m) { return m.values.observes(m.options); });
}

}  // namespace

SizeProbe::SizeProbe(const LoadedRun& run, RunOptions options) : run_(run), options_(std::move(options)) {
  options_.wanted.work = Work::none;
  options_.save = {};
  options_.every_row = observes_rows(run.config);
  options_.continue_on_head_failure = true;  // a cache that cannot be replayed has no size; the others do
  for (size_t i = 0; i < run.selection.size(); ++i) {
    const SelectedLayer& at = run.selection[i];
    const PromptInfo& prompt = run.traces[at.trace].prompts[at.prompt];
    layer_at_[{at.trace, prompt.id, prompt.layers[at.layer].layer, 0}] = i;
  }
}

// One budget that cannot be shared fails the other cells of its prompt too. Missing sizes are tried again, each
// instance and budget separately.
std::map<SizeProbe::Where, SizeProbe::Bytes> SizeProbe::sizes(const std::vector<Where>& asked, bool by_budget) {
  Found found;
  replay(asked, by_budget, found);
  std::map<std::pair<size_t, int32_t>, std::vector<Where>> missing;
  for (const Where& where : asked)
    if (found.count(where) == 0) missing[{where.instance, where.tokens}].push_back(where);
  const bool alone = missing.size() == 1 && missing.begin()->second.size() == asked.size();
  for (const auto& [what, places] : missing)
    if (!alone) replay(places, by_budget, found);
  return found;
}

std::string SizeProbe::failure(size_t instance) const {
  const auto found = failures_.find(instance);
  return found == failures_.end() ? "" : found->second;
}

void SizeProbe::replay(const std::vector<Where>& asked, bool by_budget, Found& found) {
  RunOptions options = options_;
  options.sizes_alone = by_budget;
  const Bound of = kBounds[size_t(run_.config.budget.of.value())];
  options.on_cell = [&](const Cell& cell, const CellResult& result) {
    if (!result.ok) {
      failures_.try_emplace(cell.variant->instance, result.error);
      return;
    }
    const Place layer{cell.place.trace, cell.place.prompt, cell.place.layer, 0};
    found[{layer_at_.at(layer), cell.place.kv_head, cell.variant->instance, cell.seed, cell.budget.tokens}] = {
        *result.measures[of.used], *result.measures[of.full]};
  };
  run_cells(cells_of(asked), options);
}

// Plans each instance separately, so that equal cells of two instances stay two cells.
std::vector<Cell> SizeProbe::cells_of(const std::vector<Where>& asked) const {
  std::map<size_t, std::vector<Where>> of_instance;
  for (const Where& where : asked) of_instance[where.instance].push_back(where);
  std::vector<Cell> cells;
  for (const auto& [instance, places] : of_instance) {
    LoadedRun one{run_.config, run_.traces, run_.selection};
    for (SelectedLayer& at : one.selection) {
      at.variants.clear(), at.by_share.clear(), at.kv_heads.clear();
      const PromptInfo& prompt = one.traces[at.trace].prompts[at.prompt];
      for (int32_t h = 0; h < prompt.layers[at.layer].kv_heads; ++h) at.kv_heads.push_back(h);
    }
    for (const Where& where : places)
      add_variant(one, where.layer, where.instance, where.tokens, where.kv_head, where.seed);
    const std::vector<Cell> planned = plan_cells(one);
    cells.insert(cells.end(), planned.begin(), planned.end());
  }
  return cells;
}

}  // namespace kvreplay
