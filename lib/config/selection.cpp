#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.hpp"
#include "config/budget.hpp"
#include "config/common_options.hpp"
#include "config/extents.hpp"
#include "config/list_checks.hpp"
#include "config/row_format.hpp"
#include "config/sections.hpp"
#include "config/serving.hpp"
#include "config/trace_checks.hpp"
#include "formats/row_coding.hpp"
#include "trace/uniforms.hpp"

// Selects what a configuration asks for from its traces, and reports what they lack.

namespace kvreplay {
namespace {

template <class T, class Member>
auto names_of(const std::vector<T>& items, Member member) {
  std::vector<std::decay_t<decltype(items[0].*member)>> names;
  for (const T& item : items) names.push_back(item.*member);
  return names;
}
template <class T>
size_t place_of(const T& name, const std::vector<T>& names) {
  return size_t(std::find(names.begin(), names.end(), name) - names.begin());
}

class Selection {
 public:
  Selection(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems)
      : config_(config),
        traces_(traces),
        problems_(problems),
        lists_(config, traces, problems),
        checks_(config, problems) {}

  // In the order of the configuration where it names prompts and layers, otherwise of the trace.
  std::vector<SelectedLayer> take() {
    for (size_t i = 0; i < traces_.size(); ++i) {
      checks_.check_prompts(traces_[i]);
      const auto ids = names_of(traces_[i].prompts, &PromptInfo::id);
      for (const std::string& id : config_.select.prompts.value_or(ids))
        if (const size_t p = place_of(id, ids); p < ids.size()) add_prompt(i, p);
    }
    for (size_t m = 0; m < config_.methods.size(); ++m) tell_skipped(m);
    tell_readers();
    return std::move(selected_);
  }

 private:
  void add_prompt(size_t trace_index, size_t prompt_index) {
    const TraceInfo& trace = traces_[trace_index];
    const PromptInfo& prompt = trace.prompts[prompt_index];
    checks_.check_layers(trace, prompt);
    if (prompt.layers.empty()) return;  // no selected layer exists: already reported
    checks_.check_text(trace, prompt);
    checks_.check_needles(trace, prompt);
    if (!prompt.odd_positions.empty())
      problems_.warning(config_.mark_of({"select.prompts", "traces"}),
                        fmt::format("{}: prompt {}: {}", trace.path.string(), prompt.id, prompt.odd_positions));
    const auto extent = extent_of(config_, trace, prompt, problems_);
    for (const MethodInstance& instance : config_.methods)
      for (const CalibrationPrompt& other : calibration_of(config_, instance, trace, prompt, problems_))
        checks_.check_calibration_prompt(instance, trace, *trace.find(other.id), other.extent);
    const auto numbers = names_of(prompt.layers, &LayerInfo::layer);
    for (const int32_t number : config_.select.layers.value_or(numbers)) {
      const size_t l = place_of(number, numbers);
      if (l == numbers.size()) continue;  // already reported
      if (is_counted_elsewhere(prompt.layers[l], numbers)) continue;
      SelectedLayer selected{trace_index, prompt_index, l, extent.value_or(Extent{}), {}, {}};
      add_layer(trace, prompt, extent, selected);
      if (extent) selected_.push_back(std::move(selected));
    }
    if (extent) check_budgets(trace, prompt, *extent);
  }

  // Without a choice of layers, a layer that reads the keys and values of another replayed one has no cache of its own.
  bool is_counted_elsewhere(const LayerInfo& layer, const std::vector<int32_t>& numbers) {
    if (config_.select.layers || place_of(layer.kv_layer, numbers) == numbers.size()) return false;
    readers_.insert(layer.layer);
    return true;
  }

  void tell_readers() {
    if (readers_.empty()) return;
    const std::string numbers = fmt::format("{}", fmt::join(readers_, ", "));
    const std::string who = readers_.size() == 1
                                ? "layer " + numbers + " reads the keys and values of another layer and is left out"
                                : "layers " + numbers + " read the keys and values of other layers and are left out";
    problems_.warning(config_.mark_of({"select.layers"}),
                      Refusal{.rule = who + ": caches are cut and bytes are counted once"});
  }

  void add_layer(const TraceInfo& trace, const PromptInfo& prompt, const std::optional<Extent>& extent,
                 SelectedLayer& selected) {
    const LayerInfo& layer = prompt.layers[selected.layer];
    checks_.check_heads(trace, prompt, layer);
    checks_.check_gradient(trace, prompt, layer);
    for (int32_t h = 0; h < layer.kv_heads && !config_.select.kv_heads; ++h) selected.kv_heads.push_back(h);
    if (config_.select.kv_heads) selected.kv_heads = *config_.select.kv_heads;
    for (size_t m = 0; m < config_.methods.size(); ++m) {
      checks_.check_needs(m, trace, prompt, layer, extent);
      if (extent) add_variants(m, trace, prompt, layer, selected);
    }
  }

  const Wording& words() const { return problems_.words(); }

  void add_variants(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                    SelectedLayer& selected) {
    const MethodInstance& instance = config_.methods[m];
    MethodContext context = context_of(instance, layer, trace.n_layers, selected.extent);
    if (!can_store(m, trace, prompt, layer)) return;
    if (runs_without_budget(instance, config_.budget)) return add_variant(m, context, prompt, selected);
    const bool by_lists = !instance.method().lists_in.empty();
    if (config_.budget.has_shares() && !by_lists) add_by_share(m, context, selected);
    if (config_.budget.has_shares() && config_.budget.values.empty()) return;
    const RowFormat format = at_layer(instance.options.row_format, layer.layer, trace.n_layers);
    const BudgetList budgets = budgets_for(instance, config_.budget);
    if (budgets.kind == BudgetList::Kind::bytes && !format.rules.empty())
      return problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                                    .rule = "the heads of {methods} take different bytes a row",
                                                    .remedy = "give a budget in tokens"});
    if (budgets.kind == BudgetList::Kind::ratio_of_seen) return add_growing(m, budgets, context, prompt, selected);
    for (const double value : budgets.values) {
      const double asked = real_budget(budgets.kind, value, context.prompt_tokens, layer, format);
      context.budget = {int32_t(asked), asked};
      if (context.budget.none()) report_empty_budget(value, layer, format);
      else add_variant(m, context, prompt, selected);
    }
  }

  void add_growing(size_t m, const BudgetList& budgets, MethodContext context, const PromptInfo& prompt,
                   SelectedLayer& selected) {
    const MethodInstance& instance = config_.methods[m];
    if (const std::string why = growth_problem(instance); !why.empty())
      return problems_.error(instance.mark, Refusal{.methods = {instance.named()}, .rule = why});
    for (const double ratio : budgets.values) {
      CutPlan plan{{}, {ratio, budgets.floor}};
      const int32_t last = plan.target(context.tokens);
      context.budget = {last, double(last), std::nullopt, plan.growth};
      add_variant(m, context, prompt, selected);
    }
  }

  bool can_store(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
    const MethodInstance& instance = config_.methods[m];
    const RowFormat& format = instance.options.row_format;
    const bool streams = config_.replay.streams_prompt(instance.options) || instance.values.traits().streams_prompt;
    std::vector<int32_t> heads;
    for (int32_t h = 0; h < layer.kv_heads; ++h)
      if (!config_.select.kv_heads ||
          std::count(config_.select.kv_heads->begin(), config_.select.kv_heads->end(), h) > 0)
        heads.push_back(h);
    Refusal refusal = rules_refusal(format, layer, trace.n_layers, heads, instance.options.spans_layer());
    for (const int32_t head : heads)
      if (refusal.empty())
        refusal = storage_refusal(*at_head(format, layer.layer, trace.n_layers, head), layer, trace.n_layers, streams,
                                  words(), trace.path.string());
    if (!at_layer(format, layer.layer, trace.n_layers).is_source()) codes_some_layer_.insert(m);
    if (refusal.empty()) return true;
    refusal.places = places_of(trace, prompt, layer);
    const std::string place = fmt::format("methods[{}]", m);
    problems_.error(config_.mark_of({place + "." + std::string(kRowFormat), place}), std::move(refusal));
    return false;
  }

  void tell_skipped(size_t m) {
    const RowFormat& format = config_.methods[m].options.row_format;
    if (format.skip_layers.empty() || codes_some_layer_.count(m) > 0) return;
    const std::string place = fmt::format("methods[{}]", m);
    problems_.warning(config_.mark_of({place + "." + std::string(kRowFormat), place}),
                      "skip_layers names every layer that is replayed: rows stay as the trace has them");
  }

  // The budget that a share corresponds to is found later, by replaying.
  void add_by_share(size_t m, const MethodContext& context, SelectedLayer& selected) {
    try {
      (void)least_budget(config_.methods[m], context);
      selected.by_share.push_back(m);
    } catch (const ParameterError& e) {
      tell_parameter(m, context, e);
    }
  }

  void add_variant(size_t m, const MethodContext& context, const PromptInfo& prompt, SelectedLayer& selected) {
    const MethodInstance& instance = config_.methods[m];
    try {
      BoundMethod method(instance.values, context);
      check_later(instance, context);
      if (!instance.uniforms.empty()) check_uniforms(instance, method, prompt, selected);
      if (!instance.method().lists_in.empty()) lists_.check(m, prompt, context);
      selected.variants.push_back({m, std::move(method), context.budget});
    } catch (const ParameterError& e) {
      tell_parameter(m, context, e);
    }
  }

  void tell_parameter(size_t m, const MethodContext& context, const ParameterError& e) {
    const std::string place = fmt::format("methods[{}]", m);
    Refusal refusal = refusal_at_budget(config_.methods[m], context, e.what());
    refusal.methods = {config_.methods[m].named()};
    problems_.error(config_.mark_of({place + "." + e.parameter, place}), std::move(refusal));
  }

  void check_uniforms(const MethodInstance& instance, const BoundMethod& method, const PromptInfo& prompt,
                      const SelectedLayer& selected) {
    const std::vector<RngArray> arrays = method.rng_arrays();
    const RowFormat format = row_format_at(method, instance.options);
    if (may_draw(instance.options.row_format)) check_row_uniforms(instance, format, prompt.layers[selected.layer]);
    else if (arrays.empty())
      return checks_.refuse(instance, "draw", "nothing with these parameters", "remove uniforms", {});
    for (const int32_t head : selected.kv_heads) {
      if (head >= prompt.layers[selected.layer].kv_heads) continue;  // already reported
      try {
        for (const RngArray& a : arrays)
          (void)read_uniforms(instance.uniforms, prompt.id, method.context().layer, head,
                              {split_words(a.names), a.rounds, a.positions, a.slots});
      } catch (const ConfigError& e) {
        const std::string group = fmt::format("/{}/{:03d}/{}", prompt.id, method.context().layer, head);
        problems_.error(instance.mark, refusal_of_group(e.what(), {group}));
      }
    }
  }

  void check_row_uniforms(const MethodInstance& instance, const RowFormat& format, const LayerInfo& layer) {
    try {
      (void)read_row_uniforms(instance.uniforms, uniforms_of(format, layer.head_dim, layer.stored_v_dim()));
    } catch (const ConfigError& e) {
      problems_.error(instance.mark, e.what());
    }
  }

  Mark mark_of_budget(size_t i) const {
    return i < config_.budget.marks.size() ? config_.budget.marks[i] : config_.mark_of({"budget"});
  }
  void report_empty_budget(double budget_bytes, const LayerInfo& layer, const RowFormat& format) {
    const auto row = int64_t(std::ceil(row_bytes(format, layer.head_dim, layer.stored_v_dim(), bytes_of(layer.dtype))));
    problems_.error(mark_of_budget(place_of(budget_bytes, config_.budget.values)),
                    Refusal{.rule = "a budget of {value} bytes holds no token",
                            .remedy = "one takes {count}",
                            .values = {number_text(budget_bytes)},
                            .counts = {{row, row}}});
  }
  void check_budgets(const TraceInfo& trace, const PromptInfo& prompt, const Extent& extent) {
    if (config_.budget.kind == BudgetList::Kind::ratio_of_seen) return;
    std::map<std::string, RowFormat> formats;  // a budget in bytes is a different number of tokens in each
    for (const MethodInstance& m : config_.methods)
      if (m.values.traits().takes_budget) formats.emplace(row_format_json(m.options.row_format), m.options.row_format);
    for (const auto& [name, format] : formats) check_budgets(trace, prompt, extent, format);
  }
  void check_budgets(const TraceInfo& trace, const PromptInfo& prompt, const Extent& extent, const RowFormat& format) {
    const LayerInfo& layer = prompt.layers.front();
    for (size_t i = 0; i < config_.budget.values.size(); ++i) {
      const double value = config_.budget.values[i];
      const Mark mark = mark_of_budget(i);
      const int32_t tokens = budget_tokens(config_.budget.kind, value, int32_t(extent.prompt_tokens), layer, format);
      if (tokens >= extent.tokens)
        problems_.warning(mark, Refusal{.rule = "a budget of {value} tokens never evicts",
                                        .remedy = "{count} tokens are replayed",
                                        .values = {std::to_string(tokens)},
                                        .counts = {{extent.tokens, extent.tokens}},
                                        .places = places_of(trace, prompt)});
      if (config_.budget.kind == BudgetList::Kind::fraction_kept && value * double(extent.prompt_tokens) < 1)
        problems_.warning(mark, Refusal{.rule = "{value} of {count} tokens is less than one",
                                        .remedy = "1 token is kept",
                                        .values = {number_text(value)},
                                        .counts = {{extent.prompt_tokens, extent.prompt_tokens}},
                                        .places = places_of(trace, prompt)});
    }
  }

  const RunConfig& config_;
  const std::vector<TraceInfo>& traces_;
  Problems& problems_;
  ListChecks lists_;
  TraceChecks checks_;
  std::vector<SelectedLayer> selected_;
  std::set<int32_t> readers_;          // layers that have no cache of their own
  std::set<size_t> codes_some_layer_;  // methods whose row format codes rows of some layer
};

}  // namespace

std::vector<SelectedLayer> select(RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems) {
  std::vector<SelectedLayer> selected = Selection(config, traces, problems).take();
  decide_bytes_of_shares(config, selected);
  for (const MethodInstance& m : config.methods)
    if (const std::string warning = m.values.warning(m.options); !warning.empty())
      problems.warning(m.mark, Refusal{.methods = {m.named()}, .rule = warning});
  return selected;
}

}  // namespace kvreplay
