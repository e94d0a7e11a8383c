#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.hpp"
#include "config/calibration_checks.hpp"
#include "config/common_options.hpp"
#include "config/extents.hpp"
#include "config/list_checks.hpp"
#include "config/row_format.hpp"
#include "config/sections.hpp"
#include "formats/row_coding.hpp"
#include "trace/uniforms.hpp"

// What a configuration selects of the traces it names, and what is wrong with that.

namespace kvreplay {
namespace {

// "0 to 29", "0, 7, 15": what a trace holds, short enough for a message.
std::string numbers_text(const std::vector<int32_t>& numbers) {
  const bool gapless = numbers.size() > 2 && numbers.back() - numbers.front() + 1 == int32_t(numbers.size());
  return gapless ? fmt::format("{} to {}", numbers.front(), numbers.back())
                 : fmt::format("{}", fmt::join(numbers, ", "));
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

  // In the order of the configuration, where it names prompts and layers; else of the trace.
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
    if (prompt.layers.empty()) return;  // told: none of those that are wanted
    check_text(trace, prompt);
    const auto extent = extent_of(config_, prompt, problems_);
    for (const MethodInstance& instance : config_.methods)
      for (const CalibrationPrompt& other : calibration_of(config_, instance, trace, prompt, problems_))
        check_lesson(instance, trace.prompts[other.rank], other.extent);
    const auto numbers = names_of(prompt.layers, &LayerInfo::layer);
    for (const int32_t number : config_.select.layers.value_or(numbers)) {
      const size_t l = place_of(number, numbers);
      if (l == numbers.size()) continue;  // told
      SelectedLayer selected{trace_index, prompt_index, l, extent.value_or(Extent{}), {}, {}};
      add_layer(trace, prompt, extent, selected);
      if (extent) selected_.push_back(std::move(selected));
    }
    if (extent) check_budgets(prompt, *extent);
  }

  void add_layer(const TraceInfo& trace, const PromptInfo& prompt, const std::optional<Extent>& extent,
                 SelectedLayer& selected) {
    const LayerInfo& layer = prompt.layers[selected.layer];
    check_heads(trace, layer);
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
                      fmt::format("{} has no layer {} in prompt {}. It holds {}", trace.path.string(), layer, prompt.id,
                                  numbers_text(held)));
    }
  }

  void check_heads(const TraceInfo& trace, const LayerInfo& layer) {
    if (!config_.select.kv_heads) return;
    for (size_t i = 0; i < config_.select.kv_heads->size(); ++i) {
      const int32_t head = (*config_.select.kv_heads)[i];
      if (head < layer.kv_heads) continue;
      problems_.error(config_.mark_of({fmt::format("select.kv_heads[{}]", i), "select.kv_heads"}),
                      fmt::format("{} has no kv head {}. Layer {} holds 0 to {}", trace.path.string(), head,
                                  layer.layer, layer.kv_heads - 1));
    }
  }

  void check_text(const TraceInfo& trace, const PromptInfo& prompt) {
    if (prompt.has_classes) return;
    for (const MethodInstance& instance : config_.methods)
      if (prompt_needs(instance, prompt.layers.front()).token_classes)
        problems_.error(instance.mark,
                        fmt::format("{} looks at the text of tokens, but prompt {} of {} has no token_class: "
                                    "record it with kvdump --with-text",
                                    instance.method().info.name, prompt.id, trace.path.string()));
  }

  void check_needs(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                   const std::optional<Extent>& extent) {
    const MethodInstance& instance = config_.methods[m];
    const std::string name = instance.method().info.name;
    const Mark positions = config_.mark_of({fmt::format("methods[{}].positions", m), fmt::format("methods[{}]", m)});
    if (instance.options.positions == Positions::cache && !layer.rope_recorded)
      problems_.error(positions,
                      fmt::format("{} re-assigns positions, but the trace records no rotary embedding (layer {}): "
                                  "write {{name: {}, positions: original}}",
                                  name, layer.layer, name));
    if (instance.method().info.needs_linear_logits && layer.softcap > 0)
      problems_.error(instance.mark,
                      fmt::format("{} estimates inner products of queries and keys, which the soft cap of layer {} "
                                  "bends: leave the layer out of select.layers",
                                  name, layer.layer));
    if (instance.method().info.needs_every_token && layer.sliding_window > 0)
      problems_.error(instance.mark,
                      fmt::format("{} sums up all tokens and cannot forget those that leave the sliding window of "
                                  "layer {}: leave the layer out of select.layers",
                                  name, layer.layer));
    const PromptNeeds needs = prompt_needs(instance, layer, extent);
    if (needs.rotary && !layer.rope_recorded)
      problems_.error(instance.mark, fmt::format("{} rotates queries, but the trace records no rotary embedding "
                                                 "(layer {}): record it again with kvdump",
                                                 name, layer.layer));
    tell_missing(instance, needs, layer, "the trace");
    calibrations_.check(m, trace, prompt, layer, needs.known);
    const bool sees_queries = instance.method().hooks.has(Hook::observe_queries);
    if ((needs.whole || (needs.queries && !sees_queries)) && config_.replay.streams_prompt(instance.options))
      problems_.error(instance.mark, fmt::format("{} decides by the whole prompt, which prompt: stream feeds token by "
                                                 "token: take prompt: cut for it",
                                                 name));
    const bool learns = needs.known.any() && !instance.values.calibration().is_offline();
    const bool decides_by_rows = instance.values.observes(instance.options) || needs.reads_queries() || learns ||
                                 sees_queries || instance.options.merge.looks_at_attention();
    if (decides_by_rows && layer.query_rows < layer.tokens)
      problems_.error(instance.mark,
                      fmt::format("{} needs every query of the prompt, but the trace holds {} of {} (layer {}): "
                                  "record it with kvdump --query-stride 1",
                                  name, layer.query_rows, layer.tokens, layer.layer));
  }

  // A prompt by which heads are known is scored like the one that is replayed.
  void check_lesson(const MethodInstance& instance, const PromptInfo& prompt, const Extent& extent) {
    for (const LayerInfo& layer : prompt.layers)
      tell_missing(instance, prompt_needs(instance, layer, extent), layer, "prompt " + prompt.id);
  }

  // What only some traces, and some of their prompts, hold, and by which flag it is recorded.
  void tell_missing(const MethodInstance& instance, const PromptNeeds& needs, const LayerInfo& layer,
                    const std::string& where) {
    const auto lacks = [&](const char* what, const char* flag) {
      problems_.error(instance.mark, fmt::format("{} looks at {}, which {} lacks (layer {}): record it with kvdump {}",
                                                 instance.method().info.name, what, where, layer.layer, flag));
    };
    const bool critical = instance.options.wrapper.kind == Wrapper::Kind::critical;
    if (needs.repeat && layer.repeat_rows == 0) lacks("a pass that repeats the prompt", "--repeat");
    else if (needs.input_norms && !layer.has_repeat_norm) lacks("the norm of what enters the layer", "--repeat");
    if (needs.lookahead > 0 && layer.lookahead_rows == 0)
      lacks("queries that were generated behind a cut prompt", "--lookahead");
    else if (needs.lookahead > layer.lookahead_rows)
      problems_.error(instance.mark,
                      fmt::format("{}: lookahead {}: {} holds {} generated rows (layer {}): give lookahead {}, or "
                                  "record it with kvdump --lookahead {}",
                                  instance.method().info.name, needs.lookahead, where, layer.lookahead_rows,
                                  layer.layer, layer.lookahead_rows, needs.lookahead));
    if ((needs.output_norms || critical) && layer.output_width == 0)
      lacks("values behind the output projection", "--with-output");
  }

  // Which prompt statistics a method needs does not depend on the budget.
  static PromptNeeds prompt_needs(const MethodInstance& instance, const LayerInfo& layer,
                                  const std::optional<Extent>& extent = {}) {
    try {
      const int32_t tokens = int32_t(layer.tokens);
      MethodContext any = context_of(instance, layer, 1, extent.value_or(Extent{tokens, tokens}));
      any.budget.tokens = tokens;
      return BoundMethod(instance.values, any).needs();
    } catch (const ParameterError&) {
      return {};  // told where the real context is checked
    }
  }

  void add_variants(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                    SelectedLayer& selected) {
    const MethodInstance& instance = config_.methods[m];
    MethodContext context = context_of(instance, layer, trace.n_layers, selected.extent);
    if (!can_store(m, layer, trace.n_layers)) return;
    if (runs_without_budget(instance, config_.budget)) return add_variant(m, context, prompt, selected);
    const bool by_lists = !instance.method().lists_in.empty();
    if (config_.budget.has_shares() && !by_lists) add_by_share(m, context, selected);
    if (config_.budget.has_shares() && config_.budget.values.empty()) return;
    const RowFormat format = at_layer(instance.options.row_format, layer.layer, trace.n_layers);
    const BudgetList budgets = budgets_for(instance, config_.budget);
    for (const double value : budgets.values) {
      const double asked = real_budget(budgets.kind, value, context.prompt_tokens, layer, format);
      context.budget = {int32_t(asked), asked};
      if (context.budget.none()) tell_empty(value, layer, format);
      else add_variant(m, context, prompt, selected);
    }
  }

  bool can_store(size_t m, const LayerInfo& layer, int32_t n_layers) {
    const MethodInstance& instance = config_.methods[m];
    const bool streams = config_.replay.streams_prompt(instance.options) || instance.values.streams_prompt();
    const std::string why = why_not_stored(instance.options.row_format, layer, n_layers, streams);
    if (!at_layer(instance.options.row_format, layer.layer, n_layers).is_source()) codes_some_layer_.insert(m);
    if (why.empty()) return true;
    const std::string place = fmt::format("methods[{}]", m);
    problems_.error(config_.mark_of({place + "." + std::string(kRowFormat), place}), why);
    return false;
  }

  void tell_skipped(size_t m) {
    const RowFormat& format = config_.methods[m].options.row_format;
    if (format.skip_layers.empty() || codes_some_layer_.count(m) > 0) return;
    const std::string place = fmt::format("methods[{}]", m);
    problems_.warning(config_.mark_of({place + "." + std::string(kRowFormat), place}),
                      "skip_layers names every layer that is replayed: rows stay as the trace has them");
  }

  // What budget a share comes to is found later, by replaying.
  void add_by_share(size_t m, const MethodContext& context, SelectedLayer& selected) {
    try {
      (void)least_budget(config_.methods[m], context);
      selected.by_share.push_back(m);
    } catch (const ParameterError& e) {
      tell_parameter(m, e);
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
      tell_parameter(m, e);
    }
  }

  void tell_parameter(size_t m, const ParameterError& e) {
    const std::string place = fmt::format("methods[{}]", m);
    const Mark mark = config_.mark_of({place + "." + e.parameter, place});
    problems_.error(mark, fmt::format("{}: {}", config_.methods[m].method().info.name, e.what()));
  }

  void check_uniforms(const MethodInstance& instance, const BoundMethod& method, const PromptInfo& prompt,
                      const SelectedLayer& selected) {
    const std::vector<RngArray> arrays = method.rng_arrays();
    const RowFormat format = row_format_at(method, instance.options);
    if (may_draw(instance.options.row_format)) check_row_uniforms(instance, format, prompt.layers[selected.layer]);
    else if (arrays.empty())
      return problems_.error(instance.mark, fmt::format("{} draws nothing with these parameters: remove uniforms",
                                                        instance.method().info.name));
    for (const int32_t head : selected.kv_heads) {
      if (head >= prompt.layers[selected.layer].kv_heads) continue;  // told
      try {
        for (const RngArray& a : arrays)
          (void)read_uniforms(instance.uniforms, prompt.id, method.context().layer, head,
                              {split_words(a.names), a.rounds, a.positions, a.slots});
      } catch (const ConfigError& e) {
        problems_.error(instance.mark, e.what());
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
  void tell_empty(double budget_bytes, const LayerInfo& layer, const RowFormat& format) {
    const double row = row_bytes(format, layer.head_dim, layer.v_head_dim, bytes_of(layer.dtype));
    problems_.error(
        mark_of_budget(place_of(budget_bytes, config_.budget.values)),
        fmt::format("a budget of {} bytes holds no token: one takes {}", budget_bytes, number_text(std::ceil(row))));
  }
  void check_budgets(const PromptInfo& prompt, const Extent& extent) {
    std::map<std::string, RowFormat> formats;  // a budget in bytes is another number of tokens in each
    for (const MethodInstance& m : config_.methods)
      if (m.values.takes_budget()) formats.emplace(row_format_json(m.options.row_format), m.options.row_format);
    for (const auto& [name, format] : formats) check_budgets(prompt, extent, format);
  }
  void check_budgets(const PromptInfo& prompt, const Extent& extent, const RowFormat& format) {
    const LayerInfo& layer = prompt.layers.front();
    for (size_t i = 0; i < config_.budget.values.size(); ++i) {
      const double value = config_.budget.values[i];
      const Mark mark = mark_of_budget(i);
      const int32_t tokens = budget_tokens(config_.budget.kind, value, int32_t(extent.prompt_tokens), layer, format);
      if (tokens >= extent.tokens)
        problems_.warning(mark, fmt::format("a budget of {} tokens never evicts: {} tokens of prompt {} are replayed",
                                            tokens, extent.tokens, prompt.id));
      if (config_.budget.kind == BudgetList::Kind::fraction_kept && value * double(extent.prompt_tokens) < 1)
        problems_.warning(mark, fmt::format("fraction_kept {} of {} tokens is less than one: 1 token is kept", value,
                                            extent.prompt_tokens));
    }
  }

  const RunConfig& config_;
  const std::vector<TraceInfo>& traces_;
  Problems& problems_;
  ListChecks lists_;
  CalibrationChecks calibrations_;
  std::vector<SelectedLayer> selected_;
  std::set<size_t> codes_some_layer_;  // methods whose row format codes rows somewhere
};

}  // namespace

std::vector<SelectedLayer> select(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems) {
  std::vector<SelectedLayer> selected = Selection(config, traces, problems).take();
  for (const MethodInstance& m : config.methods)
    if (const std::string warning = m.values.warning(m.options); !warning.empty())
      problems.warning(m.mark, fmt::format("{}: {}", m.method().info.name, warning));
  return selected;
}

}  // namespace kvreplay
