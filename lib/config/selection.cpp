#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.hpp"
#include "config/calibration_checks.hpp"
#include "config/common_options.hpp"
#include "config/extents.hpp"
#include "config/least_budget.hpp"
#include "config/list_checks.hpp"
#include "config/row_format.hpp"
#include "config/sections.hpp"
#include "formats/row_coding.hpp"
#include "trace/uniforms.hpp"

// Selects what a configuration asks for from its traces, and reports what they lack.

namespace kvreplay {
namespace {

std::string some_of(const std::set<int32_t>& numbers) {
  return (numbers.size() > 1 ? "take some of " : "take ") + numbers_text(numbers);
}

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
        calibrations_(config, problems) {}

  // In the order of the configuration where it names prompts and layers, otherwise of the trace.
  std::vector<SelectedLayer> take() {
    for (size_t i = 0; i < traces_.size(); ++i) {
      check_prompts(traces_[i]);
      const auto ids = names_of(traces_[i].prompts, &PromptInfo::id);
      for (const std::string& id : config_.select.prompts.value_or(ids))
        if (const size_t p = place_of(id, ids); p < ids.size()) add_prompt(i, p);
    }
    for (size_t m = 0; m < config_.methods.size(); ++m) tell_skipped(m);
    return std::move(selected_);
  }

 private:
  void check_prompts(const TraceInfo& trace) {
    if (!config_.select.prompts) return;
    const std::vector<std::string> held = trace.prompt_ids();
    for (size_t i = 0; i < config_.select.prompts->size(); ++i) {
      const std::string& id = (*config_.select.prompts)[i];
      if (std::find(held.begin(), held.end(), id) != held.end()) continue;
      const Mark mark = config_.mark_of({fmt::format("select.prompts[{}]", i), "select.prompts"});
      problems_.error(mark, trace.lacks(id));
    }
  }

  void add_prompt(size_t trace_index, size_t prompt_index) {
    const TraceInfo& trace = traces_[trace_index];
    const PromptInfo& prompt = trace.prompts[prompt_index];
    check_layers(trace, prompt);
    if (prompt.layers.empty()) return;  // no selected layer exists: already reported
    check_text(trace, prompt);
    const auto extent = extent_of(config_, trace, prompt, problems_);
    for (const MethodInstance& instance : config_.methods)
      for (const CalibrationPrompt& other : calibration_of(config_, instance, trace, prompt, problems_))
        check_calibration_prompt(instance, trace, trace.prompts[other.rank], other.extent);
    const auto numbers = names_of(prompt.layers, &LayerInfo::layer);
    for (const int32_t number : config_.select.layers.value_or(numbers)) {
      const size_t l = place_of(number, numbers);
      if (l == numbers.size()) continue;  // already reported
      SelectedLayer selected{trace_index, prompt_index, l, extent.value_or(Extent{}), {}, {}};
      add_layer(trace, prompt, extent, selected);
      if (extent) selected_.push_back(std::move(selected));
    }
    if (extent) check_budgets(trace, prompt, *extent);
  }

  void add_layer(const TraceInfo& trace, const PromptInfo& prompt, const std::optional<Extent>& extent,
                 SelectedLayer& selected) {
    const LayerInfo& layer = prompt.layers[selected.layer];
    check_heads(trace, prompt, layer);
    check_gradient(trace, prompt, layer);
    for (int32_t h = 0; h < layer.kv_heads && !config_.select.kv_heads; ++h) selected.kv_heads.push_back(h);
    if (config_.select.kv_heads) selected.kv_heads = *config_.select.kv_heads;
    for (size_t m = 0; m < config_.methods.size(); ++m) {
      check_needs(m, trace, prompt, layer, extent);
      if (extent) add_variants(m, trace, prompt, layer, selected);
    }
  }

  void check_layers(const TraceInfo& trace, const PromptInfo& prompt) {
    if (!config_.select.layers) return;
    const std::vector<int32_t>& held = prompt.layer_numbers;
    for (size_t i = 0; i < config_.select.layers->size(); ++i) {
      const int32_t layer = (*config_.select.layers)[i];
      if (std::find(held.begin(), held.end(), layer) != held.end()) continue;
      problems_.error(config_.mark_of({fmt::format("select.layers[{}]", i), "select.layers"}),
                      Refusal{.rule = fmt::format("{} no layer {{value}}", words().trace(trace.path.string(), "have")),
                              .remedy = some_of({held.begin(), held.end()}),
                              .values = {std::to_string(layer)},
                              .places = places_of(trace, prompt)});
    }
  }

  void check_heads(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
    if (!config_.select.kv_heads) return;
    for (size_t i = 0; i < config_.select.kv_heads->size(); ++i) {
      const int32_t head = (*config_.select.kv_heads)[i];
      if (head < layer.kv_heads) continue;
      problems_.error(
          config_.mark_of({fmt::format("select.kv_heads[{}]", i), "select.kv_heads"}),
          Refusal{.rule = fmt::format("{} no kv head {{value}}", words().trace(trace.path.string(), "have")),
                  .remedy = layer.kv_heads > 1 ? fmt::format("take some of 0-{}", layer.kv_heads - 1) : "take 0",
                  .values = {std::to_string(head)},
                  .places = places_of(trace, prompt, layer)});
    }
  }

  void check_gradient(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
    if (!config_.output.projections || layer.all_gradients() > 0) return;
    problems_.error(config_.mark_of({"output.save"}),
                    Refusal{.rule = fmt::format("{} needs the gradient, which {}",
                                                words().setting("output.save", R"(["projections"])"),
                                                words().trace(trace.path.string(), "lack")),
                            .remedy = "record it with `kvreplay record --with-gradient`",
                            .places = places_of(trace, prompt, layer)});
  }

  void check_text(const TraceInfo& trace, const PromptInfo& prompt) {
    if (prompt.has_classes) return;
    for (const MethodInstance& instance : config_.methods)
      if (prompt_needs(instance, prompt.layers.front()).token_classes)
        refuse(instance, "need", "the text of tokens, which " + words().trace(trace.path.string(), "lack"),
               "record it with `kvreplay record --with-text`", places_of(trace, prompt));
  }

  void check_needs(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                   const std::optional<Extent>& extent) {
    const MethodInstance& instance = config_.methods[m];
    const PromptNeeds needs = prompt_needs(instance, layer, extent);
    check_rope(m, needs, trace, prompt, layer);
    check_logits(instance, trace, prompt, layer);
    report_missing(instance, needs, trace, prompt, layer);
    if (extent) report_other_lengths(instance, needs, trace, prompt, layer, *extent);
    calibrations_.check(m, trace, prompt, layer, needs.known);
    check_queries(instance, needs, trace, prompt, layer);
  }

  void check_rope(size_t m, const PromptNeeds& needs, const TraceInfo& trace, const PromptInfo& prompt,
                  const LayerInfo& layer) {
    if (layer.rope_recorded) return;
    const MethodInstance& instance = config_.methods[m];
    const std::string lacking = "the rotary embedding, which " + words().trace(trace.path.string(), "lack");
    if (instance.options.positions == Positions::cache) {
      const Mark mark = config_.mark_of({fmt::format("methods[{}].positions", m), fmt::format("methods[{}]", m)});
      problems_.error(mark, Refusal{.methods = {instance.named()},
                                    .verb = "need",
                                    .rule = lacking + ", to re-assign positions",
                                    .remedy = "write {entry}, or " + words().rope(trace.path.string()),
                                    .option = {"positions", "original"},
                                    .places = places_of(trace, prompt, layer)});
    }
    if (needs.rotary)
      refuse(instance, "need", lacking + ", to rotate queries", words().rope(trace.path.string()),
             places_of(trace, prompt, layer));
  }

  void check_logits(const MethodInstance& instance, const TraceInfo& trace, const PromptInfo& prompt,
                    const LayerInfo& layer) {
    const std::string remedy = "leave the layers out of " + words().key("select.layers");
    if (instance.method().info.needs_linear_logits && layer.softcap > 0)
      refuse(instance, "estimate", "inner products of queries and keys, which a soft cap bends", remedy,
             places_of(trace, prompt, layer));
    if (instance.method().info.needs_every_token && layer.sliding_window > 0)
      refuse(instance, "sum", "up all tokens and cannot forget those that leave a sliding window", remedy,
             places_of(trace, prompt, layer));
  }

  void check_queries(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                     const PromptInfo& prompt, const LayerInfo& layer) {
    const bool sees_queries = instance.method().hooks.has(Hook::observe_queries);
    if ((needs.whole || (needs.queries && !sees_queries)) && config_.replay.streams_prompt(instance.options))
      problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                             .verb = "decide",
                                             .rule = fmt::format("by the whole prompt, which {} feeds token by token",
                                                                 words().option("prompt", "stream")),
                                             .remedy = "write {entry}",
                                             .option = {"prompt", "cut"}});
    const bool learns = needs.known.any() && !instance.values.calibration().is_offline();
    const bool decides_by_rows = instance.values.observes(instance.options) || needs.reads_queries() || learns ||
                                 sees_queries || instance.options.merge.uses_attention();
    if (!decides_by_rows || layer.query_rows >= layer.tokens) return;
    problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                           .verb = "need",
                                           .rule = fmt::format("every query of the prompt, but {} only {{value}}",
                                                               words().trace(trace.path.string(), "hold")),
                                           .remedy = words().every_query(trace.path.string()),
                                           .values = {fmt::format("{} of {}", layer.query_rows, layer.tokens)},
                                           .places = places_of(trace, prompt, layer)});
  }

  // A calibration prompt is scored like the replayed one.
  void check_calibration_prompt(const MethodInstance& instance, const TraceInfo& trace, const PromptInfo& prompt,
                                const Extent& extent) {
    for (const LayerInfo& layer : prompt.layers) {
      const PromptNeeds needs = prompt_needs(instance, layer, extent);
      report_missing(instance, needs, trace, prompt, layer);
      report_other_lengths(instance, needs, trace, prompt, layer, extent);
    }
  }

  // Reports recordings that only some traces and prompts hold, with the flag that records them.
  void report_missing(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                      const PromptInfo& prompt, const LayerInfo& layer) {
    const std::string path = trace.path.string();
    const auto lacks = [&](const char* what, const char* flag) {
      refuse(instance, "need", fmt::format("{}, which {}", what, words().trace(path, "lack")),
             fmt::format("record it with `kvreplay record {}`", flag), places_of(trace, prompt, layer));
    };
    const bool critical = instance.options.wrapper.kind == Wrapper::Kind::critical;
    if (needs.repeat && layer.repeat_rows == 0) lacks("a repeat pass", "--repeat");
    else if (needs.input_norms && !layer.has_repeat_norm) lacks("the norm of the layer's input", "--repeat");
    if (needs.lookahead > 0 && layer.lookahead_rows == 0) lacks("rows generated after a cut", "--lookahead");
    else if (needs.lookahead > layer.lookahead_rows)
      refuse(instance, "need",
             fmt::format("{} rows generated after a cut (lookahead), but {} {}", needs.lookahead,
                         words().trace(path, "hold"), layer.lookahead_rows),
             fmt::format("give lookahead {}, or record more with `kvreplay record --lookahead {}`",
                         layer.lookahead_rows, needs.lookahead),
             places_of(trace, prompt, layer));
    if ((needs.output_norms || critical) && layer.output_width == 0)
      lacks("the output projection (o_proj)", "--with-output");
  }

  // Reports rows that were recorded behind a prompt of another length than the replayed one.
  void report_other_lengths(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                            const PromptInfo& prompt, const LayerInfo& layer, const Extent& extent) {
    const auto expect = [&](const char* what, const char* held, int64_t context, const char* flag) {
      if (context == extent.prompt_tokens) return;
      const std::string prefill = context == prompt.n_prompt
                                      ? "leave out " + words().key("replay.prefill")
                                      : "give " + words().mention("replay.prefill", std::to_string(context));
      problems_.error(
          instance.mark,
          Refusal{.methods = {instance.named()},
                  .verb = "need",
                  .rule = fmt::format("{} {} tokens, the replayed prompt, but {} {} {{values}}", what,
                                      extent.prompt_tokens, words().trace(trace.path.string(), "hold"), held),
                  .remedy = fmt::format("{}, or record it with `kvreplay record {}` at that length", prefill, flag),
                  .values = {std::to_string(context)},
                  .places = places_of(trace, prompt, layer)});
    };
    if (needs.repeat && layer.repeat_rows > 0)
      expect("a repeat pass over", "one over", prompt.repeat.context_tokens, "--repeat");
    if (needs.lookahead > 0 && layer.lookahead_rows >= needs.lookahead)
      expect("rows generated after", "some after", prompt.lookahead.context_tokens, "--lookahead");
  }

  const Wording& words() const { return problems_.words(); }
  void refuse(const MethodInstance& instance, const char* verb, std::string rule, std::string remedy, Places places) {
    problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                           .verb = verb,
                                           .rule = std::move(rule),
                                           .remedy = std::move(remedy),
                                           .places = std::move(places)});
  }

  // The prompt statistics that a method needs do not depend on the budget.
  static PromptNeeds prompt_needs(const MethodInstance& instance, const LayerInfo& layer,
                                  const std::optional<Extent>& extent = {}) {
    try {
      const int32_t tokens = int32_t(layer.tokens);
      MethodContext any = context_of(instance, layer, 1, extent.value_or(Extent{tokens, tokens}));
      any.budget.tokens = tokens;
      return BoundMethod(instance.values, any).needs();
    } catch (const ParameterError&) {
      return {};  // reported where the real context is checked
    }
  }

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
    for (const double value : budgets.values) {
      const double asked = real_budget(budgets.kind, value, context.prompt_tokens, layer, format);
      context.budget = {int32_t(asked), asked};
      if (context.budget.none()) report_empty_budget(value, layer, format);
      else add_variant(m, context, prompt, selected);
    }
  }

  bool can_store(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
    const MethodInstance& instance = config_.methods[m];
    const RowFormat& format = instance.options.row_format;
    const bool streams = config_.replay.streams_prompt(instance.options) || instance.values.streams_prompt();
    Refusal refusal = storage_refusal(format, layer, trace.n_layers, streams, words(), trace.path.string());
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
    else if (arrays.empty()) return refuse(instance, "draw", "nothing with these parameters", "remove uniforms", {});
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
      (void)read_row_uniforms(instance.uniforms, uniforms_of(format, layer.head_dim, layer.v_head_dim));
    } catch (const ConfigError& e) {
      problems_.error(instance.mark, e.what());
    }
  }

  Mark mark_of_budget(size_t i) const {
    return i < config_.budget.marks.size() ? config_.budget.marks[i] : config_.mark_of({"budget"});
  }
  void report_empty_budget(double budget_bytes, const LayerInfo& layer, const RowFormat& format) {
    const auto row = int64_t(std::ceil(row_bytes(format, layer.head_dim, layer.v_head_dim, bytes_of(layer.dtype))));
    problems_.error(mark_of_budget(place_of(budget_bytes, config_.budget.values)),
                    Refusal{.rule = "a budget of {value} bytes holds no token",
                            .remedy = "one takes {count}",
                            .values = {number_text(budget_bytes)},
                            .counts = {{row, row}}});
  }
  void check_budgets(const TraceInfo& trace, const PromptInfo& prompt, const Extent& extent) {
    std::map<std::string, RowFormat> formats;  // a budget in bytes is a different number of tokens in each
    for (const MethodInstance& m : config_.methods)
      if (m.values.takes_budget()) formats.emplace(row_format_json(m.options.row_format), m.options.row_format);
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
  CalibrationChecks calibrations_;
  std::vector<SelectedLayer> selected_;
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
