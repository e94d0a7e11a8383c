#include "sizing/shares.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "catalog/cell.hpp"
#include "formats/registry.hpp"
#include "sizing/share_search.hpp"
#include "sizing/size_probe.hpp"

namespace kvreplay {
namespace {

// A kv head, or all heads that share one budget.
struct SearchUnit {
  size_t instance = 0;
  std::optional<uint32_t> seed;
  std::vector<std::pair<size_t, int32_t>> heads;  // (index in the selection, kv head)
  bool for_all = false;                           // its answer holds for every head and seed of the layer
  ShareSearch search;
};

const LayerInfo& layer_of(const LoadedRun& run, const SelectedLayer& at) {
  return run.traces[at.trace].prompts[at.prompt].layers[at.layer];
}

// Whether every kv head of a layer takes the same bytes at one budget, whatever its numbers. A block that is coded
// together is held until its last row is evicted, so its bytes depend on which rows are evicted.
bool is_fixed_by_budget(const MethodInstance& m, const LayerInfo& layer, bool random, bool prompt_streams) {
  const MethodInfo& info = m.method().info;
  const bool known_text = std::string(info.identity).empty();
  const bool evicts_coded = m.options.phase == Phase::stream || prompt_streams || m.values.traits().streams_prompt;
  const RowFormat& format = m.options.row_format;
  const bool by_rows = (!codes_by_token(format) && evicts_coded) || has_outliers(format) || !format.rules.empty();
  const bool by_pages = m.options.serving.pages.any();
  return !by_pages && info.exact_budget && known_text && !info.reads_full_cache && !random && !by_rows &&
         !layer.window().any();
}

// A method in Python fails with a traceback, whose last line is the reason.
std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

class Solver {
 public:
  Solver(LoadedRun& run, RunOptions options) : run_(run), probe_(run, std::move(options)), shares_(sorted_shares()) {
    for (size_t m = 0; m < run.config.methods.size(); ++m) add_units(m);
  }

  SolvedShares solve() {
    search_first_units();
    std::vector<SearchUnit*> all;
    for (SearchUnit& unit : units_) all.push_back(&unit);
    search(all);
    SolvedShares solved;
    for (size_t m = 0; m < run_.config.methods.size(); ++m) tell(m, solved);
    for (SearchUnit& unit : units_)
      if (raises(unit)) let_fail(unit, solved);
    for (SelectedLayer& at : run_.selection) at.by_share.clear();
    for (const SearchUnit& unit : units_) place(unit);
    for (SelectedLayer& at : run_.selection)
      std::stable_sort(at.variants.begin(), at.variants.end(),
                       [](const auto& a, const auto& b) { return a.instance < b.instance; });
    return solved;
  }

 private:
  std::vector<double> sorted_shares() const {
    std::vector<double> shares = run_.config.budget.shares;
    std::sort(shares.begin(), shares.end());
    return shares;
  }

  void add_units(size_t m) {
    std::map<std::pair<size_t, size_t>, std::vector<size_t>> layers;  // layers of each (trace, prompt)
    for (size_t i = 0; i < run_.selection.size(); ++i) {
      const SelectedLayer& at = run_.selection[i];
      if (std::count(at.by_share.begin(), at.by_share.end(), m) > 0) layers[{at.trace, at.prompt}].push_back(i);
    }
    for (const auto& [prompt, own] : layers) {
      const MethodInstance& instance = run_.config.methods[m];
      const SharedOver over = shared_over(instance.values, instance.options);
      const bool own_budgets = over == SharedOver::none ||
                               (instance.options.allocator == Allocator::uniform && !instance.values.shares_budget());
      if (own_budgets) {
        for (const size_t layer : own) add_heads(m, layer);
      } else if (over == SharedOver::layer) {
        for (const size_t layer : own) add_shared(m, {layer});
      } else {
        add_shared(m, own);
      }
    }
  }

  void add_heads(size_t m, size_t layer) {
    const SelectedLayer& at = run_.selection[layer];
    const auto seeds = seeds_of(m, layer);
    const MethodInstance& instance = run_.config.methods[m];
    const bool streams = run_.config.replay.streams_prompt(instance.options);
    if (is_fixed_by_budget(instance, layer_of(run_, at), seeds.front().has_value(), streams))
      return add(m, {}, {{layer, at.kv_heads.front()}}, true);
    for (const int32_t kv_head : at.kv_heads)
      for (const auto& seed : seeds) add(m, seed, {{layer, kv_head}}, false);
  }

  // Heads that are not selected also take part of a shared budget.
  void add_shared(size_t m, const std::vector<size_t>& layers) {
    std::vector<std::pair<size_t, int32_t>> heads;
    for (const size_t layer : layers)
      for (int32_t h = 0; h < layer_of(run_, run_.selection[layer]).kv_heads; ++h) heads.emplace_back(layer, h);
    for (const auto& seed : seeds_of(m, layers.front())) add(m, seed, heads, false);
  }

  void add(size_t m, std::optional<uint32_t> seed, std::vector<std::pair<size_t, int32_t>> heads, bool for_all) {
    const MethodInstance& instance = run_.config.methods[m];
    int32_t least = 1;
    for (const auto& [layer, head] : heads) least = std::max(least, least_budget(instance, context_at(m, layer)));
    const RowFormat& format = instance.options.row_format;
    const int32_t most = run_.selection[heads.front().first].extent.tokens;
    units_.push_back({m, seed, std::move(heads), for_all, ShareSearch(least, most, residual_of(format))});
  }

  MethodContext context_at(size_t m, size_t layer) const {
    const SelectedLayer& at = run_.selection[layer];
    return context_of(run_.config.methods[m], layer_of(run_, at), run_.traces[at.trace].n_layers, at.extent);
  }

  // A single empty seed if nothing is random.
  std::vector<std::optional<uint32_t>> seeds_of(size_t m, size_t layer) const {
    const MethodInstance& instance = run_.config.methods[m];
    MethodContext context = context_at(m, layer);
    const int32_t tokens = least_budget(instance, context);
    context.budget = {tokens, double(tokens)};
    if (!instance.uniforms.empty() || !draws(BoundMethod(instance.values, context), instance.options))
      return {std::nullopt};
    std::vector<std::optional<uint32_t>> seeds;
    for (uint32_t i = 0; i < run_.config.seed_count; ++i) seeds.emplace_back(run_.config.seed_first + i);
    return seeds;
  }

  // Searches one unit of each instance. The others start from its answer, and most of them end there.
  void search_first_units() {
    std::vector<SearchUnit*> first;
    std::set<size_t> seen;
    for (SearchUnit& unit : units_)
      if (seen.insert(unit.instance).second) first.push_back(&unit);
    search(first);
    for (const SearchUnit* unit : first)
      for (const double share : shares_) near_[{unit->instance, share}] = unit->search.answer(share).value_or(0);
  }

  void search(const std::vector<SearchUnit*>& units) {
    for (;;) {
      std::vector<std::pair<SearchUnit*, std::set<int32_t>>> rounds;
      for (SearchUnit* unit : units) {
        std::set<int32_t> budgets;
        for (const double share : shares_)
          for (const int32_t tokens : unit->search.next(share, near(*unit, share))) budgets.insert(tokens);
        if (!budgets.empty()) rounds.emplace_back(unit, std::move(budgets));
      }
      if (rounds.empty()) return;
      try_budgets(rounds);
    }
  }

  int32_t near(const SearchUnit& unit, double share) const {
    const auto found = near_.find({unit.instance, share});
    return found == near_.end() ? 0 : found->second;
  }

  static SizeProbe::Where where(const SearchUnit& unit, const std::pair<size_t, int32_t>& head, int32_t tokens) {
    return {head.first, head.second, unit.instance, unit.seed, tokens};
  }

  void try_budgets(const std::vector<std::pair<SearchUnit*, std::set<int32_t>>>& rounds) {
    std::vector<SizeProbe::Where> fixed, others;
    for (const auto& [unit, budgets] : rounds)
      for (const int32_t tokens : budgets)
        for (const auto& head : unit->heads)
          if (can_run(*unit, head.first, tokens))
            (unit->for_all ? fixed : others).push_back(where(*unit, head, tokens));
    auto sizes = probe_.sizes(fixed, true);
    sizes.merge(probe_.sizes(others, false));
    for (const auto& [unit, budgets] : rounds)
      for (const int32_t tokens : budgets) unit->search.add(tokens, share_of(*unit, tokens, sizes));
  }

  bool can_run(const SearchUnit& unit, size_t layer, int32_t tokens) const {
    MethodContext context = context_at(unit.instance, layer);
    context.budget = {tokens, double(tokens)};
    try {
      (void)BoundMethod(run_.config.methods[unit.instance].values, context);
      return true;
    } catch (const ParameterError&) {
      return false;
    }
  }

  static std::optional<double> share_of(const SearchUnit& unit, int32_t tokens,
                                        const std::map<SizeProbe::Where, SizeProbe::Bytes>& sizes) {
    SizeProbe::Bytes all;
    for (const auto& head : unit.heads) {
      const auto found = sizes.find(where(unit, head, tokens));
      if (found == sizes.end()) return std::nullopt;
      all.used += found->second.used, all.full += found->second.full;
    }
    return all.used / all.full;
  }

  // Whether the unit's method, which is not compiled in, raised at every budget.
  bool raises(const SearchUnit& unit) const {
    const bool hosted = !std::string(run_.config.methods[unit.instance].method().info.identity).empty();
    return hosted && !unit.search.floor() && !probe_.failure(unit.instance).empty();
  }

  // Gives the unit the budgets that it would have if its bytes were in proportion to its tokens: its cells then fail in
  // the run, with the reason in full.
  void let_fail(SearchUnit& unit, SolvedShares& solved) const {
    for (const double share : shares_) unit.search.add(unit.search.guess(share), share);
    for (Unreachable& lost : solved.unreachable) lost.fails_in_run |= lost.instance == unit.instance;
  }

  size_t heads_of(const SearchUnit& unit) const {
    return unit.for_all ? run_.selection[unit.heads.front().first].kv_heads.size() : unit.heads.size();
  }

  // Records the shares of an instance that no budget reaches, and those that the whole cache fits.
  void tell(size_t m, SolvedShares& solved) const {
    for (const double share : shares_) {
      Unreachable lost;
      lost.instance = m, lost.share = share;
      bool whole = true;
      for (const SearchUnit& unit : units_) {
        if (unit.instance != m) continue;
        lost.of_heads += heads_of(unit);
        const auto answer = unit.search.answer(share);
        whole = whole && answer == unit.search.most();
        if (answer) continue;
        const double floor = unit.search.floor().value_or(0);
        lost.floor_low = lost.heads == 0 ? floor : std::min(lost.floor_low, floor);
        lost.floor_high = std::max(lost.floor_high, floor);
        lost.heads += heads_of(unit);
      }
      if (lost.heads > 0 && lost.floor_high == 0) lost.failure = last_line(probe_.failure(m));
      if (lost.heads > 0) solved.unreachable.push_back(lost);
      if (lost.of_heads > 0 && whole) solved.whole.emplace_back(m, share);
    }
  }

  void place(const SearchUnit& unit) {
    std::map<int32_t, std::vector<double>> shares;
    for (const double share : shares_)
      if (const auto tokens = unit.search.answer(share)) shares[*tokens].push_back(share);
    for (const auto& [layer, kv_head] : unit.heads) {
      const auto& selected = run_.selection[layer].kv_heads;
      if (std::find(selected.begin(), selected.end(), kv_head) == selected.end()) continue;
      for (const auto& [tokens, own] : shares) {
        add_variant(run_, layer, unit.instance, tokens, kv_head, unit.seed);
        SelectedLayer::Variant& added = run_.selection[layer].variants.back();
        added.shares = own;
        if (unit.for_all) added.kv_head.reset();
      }
    }
  }

  LoadedRun& run_;
  SizeProbe probe_;
  std::vector<double> shares_;
  std::vector<SearchUnit> units_;
  std::map<std::pair<size_t, double>, int32_t> near_;  // answers of the first units
};

std::string name_of(const LoadedRun& run, size_t m) { return run.config.methods[m].method().info.name; }

// Throws: some instances asked for shares, and none of them reaches one.
[[noreturn]] void refuse(const LoadedRun& run, const SolvedShares& solved) {
  std::string floors;
  std::set<size_t> told;
  for (const Unreachable& one : solved.unreachable)
    if (told.insert(one.instance).second)
      floors += fmt::format("{}{} {}", floors.empty() ? "" : ", ", name_of(run, one.instance),
                            floor_text(one, run.config.budget.of.value()));
  throw ConfigError(run.config.at(run.config.mark_of({"budget"}), "error",
                                  fmt::format("no method reaches any share of {}: {}. Ask for larger shares",
                                              cache_text(run.config.budget.of.value()), floors)));
}

}  // namespace

std::string percent_text(double share) { return fmt::format("{:.6g}%", share * 100); }

std::string cache_text(BudgetList::Of of) {
  static const char* const kCaches[] = {"the cache", "the cache on average", "the prompt's cache"};
  return kCaches[size_t(of)];
}

std::string floor_text(const Unreachable& one, BudgetList::Of of) {
  const std::string where =
      one.heads == one.of_heads ? "" : fmt::format("in {} of {} caches ", one.heads, one.of_heads);
  if (one.floor_high == 0)
    return where + "cannot be replayed at any budget" + (one.failure.empty() ? "" : ": " + one.failure);
  const std::string low = fmt::format("{:.1f}", one.floor_low * 100),
                    high = fmt::format("{:.1f}", one.floor_high * 100);
  static const char* const kFull[] = {"the full cache", "the full cache on average", "the prompt's full cache"};
  return fmt::format("{}needs {} % of {}", where, low == high ? low : low + " to " + high, kFull[size_t(of)]);
}

SolvedShares solve_shares(LoadedRun& run, RunOptions options) {
  const auto asks = [](const SelectedLayer& at) { return !at.by_share.empty(); };
  if (std::none_of(run.selection.begin(), run.selection.end(), asks)) return {};
  const SolvedShares solved = Solver(run, std::move(options)).solve();
  const auto has_share = [](const SelectedLayer& at) {
    return std::any_of(at.variants.begin(), at.variants.end(), [](const auto& v) { return !v.shares.empty(); });
  };
  if (std::none_of(run.selection.begin(), run.selection.end(), has_share)) refuse(run, solved);
  return solved;
}

}  // namespace kvreplay
