#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.hpp"
#include "config/list_checks.hpp"
#include "config/sections.hpp"
#include "formats/row_bytes.hpp"
#include "trace/uniforms.hpp"

// Checks of a configuration against the traces it names.

namespace kvreplay {
namespace {

// "0 to 29", "0, 7, 15": what a trace holds, short enough for a message.
std::string numbers_text(const std::vector<int32_t>& numbers) {
  const bool gapless = numbers.size() > 2 && numbers.back() - numbers.front() + 1 == int32_t(numbers.size());
  return gapless ? fmt::format("{} to {}", numbers.front(), numbers.back())
                 : fmt::format("{}", fmt::join(numbers, ", "));
}

// What one (trace, prompt) is replayed with.
struct Extent {
  int64_t prefill, tokens;
};

class TraceChecks {
 public:
  TraceChecks(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems)
      : config_(config), problems_(problems), lists_(config, traces, problems) {}

  void check(const TraceInfo& trace) {
    check_prompts(trace);
    for (const PromptInfo& prompt : trace.prompts) {
      const auto& wanted = config_.select.prompts;
      if (!wanted || std::find(wanted->begin(), wanted->end(), prompt.id) != wanted->end())
        check(trace, prompt);
    }
  }

 private:
  void check_prompts(const TraceInfo& trace) {
    if (!config_.select.prompts) return;
    std::vector<std::string> held;
    for (const PromptInfo& p : trace.prompts) held.push_back(p.id);
    for (size_t i = 0; i < config_.select.prompts->size(); ++i) {
      const std::string& id = (*config_.select.prompts)[i];
      if (std::find(held.begin(), held.end(), id) != held.end()) continue;
      const Mark mark = config_.mark_of({fmt::format("select.prompts[{}]", i), "select.prompts"});
      problems_.error(mark, fmt::format("{} has no prompt {}{}. It holds {}", trace.path.string(), id,
                                        did_you_mean(id, held), join(held)));
    }
  }

  void check(const TraceInfo& trace, const PromptInfo& prompt) {
    check_layers(trace, prompt);
    if (prompt.layers.empty()) return;  // told: none of those that are wanted
    check_text(trace, prompt);
    const auto extent = extent_of(prompt);
    for (const LayerInfo& layer : prompt.layers) {
      const auto& wanted = config_.select.layers;
      if (wanted && std::find(wanted->begin(), wanted->end(), layer.layer) == wanted->end()) continue;
      check_heads(trace, layer);
      for (size_t m = 0; m < config_.methods.size(); ++m) {
        check_needs(m, layer);
        if (extent) check_method(m, trace, prompt, layer, *extent);
      }
    }
    if (extent) check_budgets(prompt, *extent);
  }

  void check_layers(const TraceInfo& trace, const PromptInfo& prompt) {
    if (!config_.select.layers) return;
    const std::vector<int32_t>& held = prompt.layer_numbers;
    for (size_t i = 0; i < config_.select.layers->size(); ++i) {
      const int32_t layer = (*config_.select.layers)[i];
      if (std::find(held.begin(), held.end(), layer) != held.end()) continue;
      problems_.error(config_.mark_of({fmt::format("select.layers[{}]", i), "select.layers"}),
                      fmt::format("{} has no layer {} in prompt {}. It holds {}", trace.path.string(), layer,
                                  prompt.id, numbers_text(held)));
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

  // Prompt and tokens of a replay, or nothing after reporting why there is none.
  std::optional<Extent> extent_of(const PromptInfo& prompt) {
    const auto& replay = config_.replay;
    const int64_t tokens = replay.tokens.value_or(prompt.tokens);
    if (tokens > prompt.tokens) {
      problems_.error(
          config_.mark_of({"replay.tokens"}),
          fmt::format("replay.tokens is {}, but prompt {} has {} tokens: write at most {}, or all", tokens,
                      prompt.id, prompt.tokens, prompt.tokens));
      return std::nullopt;
    }
    const int64_t prefill = replay.prefill.value_or(prompt.n_prompt);
    const Mark mark = config_.mark_of({"replay.prefill", "replay.tokens", "traces[0]"});
    if (prefill > tokens) {
      problems_.error(
          mark, fmt::format("the prompt call takes {} tokens{}, but only {} of prompt {} are replayed: set "
                            "replay.prefill below {}",
                            prefill, replay.prefill ? "" : " (as recorded)", tokens, prompt.id, tokens));
      return std::nullopt;
    }
    if (prefill == tokens && !config_.output.kept) {
      problems_.error(
          mark,
          fmt::format("the prompt call takes all {} tokens of prompt {}, so no decode row is left to score: "
                      "set replay.prefill below {}, or output.save: [kept] to keep the sets alone",
                      tokens, prompt.id, tokens));
      return std::nullopt;
    }
    return Extent{prefill, tokens};
  }

  void check_text(const TraceInfo& trace, const PromptInfo& prompt) {
    if (prompt.has_classes) return;
    for (const MethodInstance& instance : config_.methods)
      if (prompt_needs(instance, prompt.layers.front()).token_classes)
        problems_.error(instance.mark,
                        fmt::format("{} looks at the text of tokens, but prompt {} of {} has no token_class: "
                                    "record it with kvdump --with-text",
                                    instance.method->info.name, prompt.id, trace.path.string()));
  }

  void check_needs(size_t m, const LayerInfo& layer) {
    const MethodInstance& instance = config_.methods[m];
    const std::string name = instance.method->info.name;
    const Mark positions =
        config_.mark_of({fmt::format("methods[{}].positions", m), fmt::format("methods[{}]", m)});
    if (instance.options.positions == Positions::cache && !layer.rope_recorded)
      problems_.error(
          positions,
          fmt::format("{} re-assigns positions, but the trace records no rotary embedding (layer {}): "
                      "write {{name: {}, positions: original}}",
                      name, layer.layer, name));
    if (instance.method->info.needs_linear_logits && layer.softcap > 0)
      problems_.error(
          instance.mark,
          fmt::format("{} estimates inner products of queries and keys, which the soft cap of layer {} "
                      "bends: leave the layer out of select.layers",
                      name, layer.layer));
    if (instance.method->info.needs_every_token && layer.sliding_window > 0)
      problems_.error(
          instance.mark,
          fmt::format("{} sums up all tokens and cannot forget those that leave the sliding window of "
                      "layer {}: leave the layer out of select.layers",
                      name, layer.layer));
    const PromptNeeds needs = prompt_needs(instance, layer);
    if (needs.rotary && !layer.rope_recorded)
      problems_.error(instance.mark,
                      fmt::format("{} rotates queries, but the trace records no rotary embedding "
                                  "(layer {}): record it again with kvdump",
                                  name, layer.layer));
    const bool decides_by_rows =
        instance.method->observes(instance.params, instance.options) || needs.reads_queries();
    if (decides_by_rows && layer.query_rows < layer.tokens)
      problems_.error(
          instance.mark,
          fmt::format("{} needs every query of the prompt, but the trace holds {} of {} (layer {}): "
                      "record it with kvdump --query-stride 1",
                      name, layer.query_rows, layer.tokens, layer.layer));
  }

  // Which prompt statistics a method needs does not depend on the budget.
  static PromptNeeds prompt_needs(const MethodInstance& instance, const LayerInfo& layer) {
    try {
      const MethodContext any =
          context_of(instance, layer, 1, int32_t(layer.tokens), layer.tokens, layer.tokens);
      return instance.method->needs(instance.params, any);
    } catch (const ParameterError&) {
      return {};  // told where the real scene is checked
    }
  }

  void check_method(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                    const Extent& extent) {
    const MethodInstance& instance = config_.methods[m];
    MethodContext context = context_of(instance, layer, trace.n_layers, 0, extent.prefill, extent.tokens);
    if (runs_without_budget(instance, config_.budget)) return resolve(m, context, prompt);
    const BudgetList budgets = budgets_for(instance, config_.budget);
    for (const double value : budgets.values) {
      context.real_budget =
          real_budget(budgets.kind, value, context.prompt, layer, instance.options.row_format);
      context.budget = int32_t(context.real_budget);
      if (context.budget >= 1) resolve(m, context, prompt);
    }
  }

  void resolve(size_t m, const MethodContext& context, const PromptInfo& prompt) {
    const MethodInstance& instance = config_.methods[m];
    try {
      const nlohmann::json params = instance.method->resolve(instance.params, context);
      if (!instance.uniforms.empty()) check_uniforms(instance, params, context, prompt);
      if (!instance.method->lists_in.empty()) lists_.check(m, prompt, context);
    } catch (const ParameterError& e) {
      const std::string place = fmt::format("methods[{}]", m);
      const Mark mark = config_.mark_of({place + "." + e.parameter, place});
      problems_.error(mark, fmt::format("{}: {}", instance.method->info.name, e.what()));
    }
  }

  void check_uniforms(const MethodInstance& instance, const nlohmann::json& params,
                      const MethodContext& context, const PromptInfo& prompt) {
    const std::vector<RngArray> arrays = instance.method->rng_arrays(params, context);
    if (arrays.empty())
      return problems_.error(
          instance.mark,
          fmt::format("{} draws nothing with these parameters: remove uniforms", instance.method->info.name));
    const auto layer = std::find_if(prompt.layers.begin(), prompt.layers.end(),
                                    [&](const LayerInfo& l) { return l.layer == context.layer; });
    for (int32_t head = 0; head < layer->kv_heads; ++head) {
      const auto& wanted = config_.select.kv_heads;
      if (wanted && std::find(wanted->begin(), wanted->end(), head) == wanted->end()) continue;
      try {
        for (const RngArray& a : arrays)
          (void)read_uniforms(instance.uniforms, prompt.id, context.layer, head,
                              {split_words(a.names), a.rounds, a.positions, a.slots});
      } catch (const ConfigError& e) {
        problems_.error(instance.mark, e.what());
      }
    }
  }

  void check_budgets(const PromptInfo& prompt, const Extent& extent) {
    std::map<std::string, RowFormat> formats;  // a budget in bytes is another number of tokens in each
    for (const MethodInstance& m : config_.methods)
      if (m.takes_budget()) formats.emplace(to_json(m.options.row_format).dump(), m.options.row_format);
    for (const auto& [name, format] : formats) check_budgets(prompt, extent, format);
  }
  void check_budgets(const PromptInfo& prompt, const Extent& extent, const RowFormat& format) {
    const LayerInfo& layer = prompt.layers.front();
    for (size_t i = 0; i < config_.budget.values.size(); ++i) {
      const double value = config_.budget.values[i];
      const Mark mark =
          i < config_.budget.marks.size() ? config_.budget.marks[i] : config_.mark_of({"budget"});
      const int32_t tokens =
          budget_tokens(config_.budget.kind, value, int32_t(extent.prefill), layer, format);
      if (tokens < 1)
        problems_.error(mark,
                        fmt::format("a budget of {} bytes holds no token: one takes {}", value,
                                    number_text(std::ceil(row_bytes(format, layer.head_dim, layer.v_head_dim,
                                                                    bytes_of(layer.dtype))))));
      else if (tokens >= extent.tokens)
        problems_.warning(
            mark, fmt::format("a budget of {} tokens never evicts: {} tokens of prompt {} are replayed",
                              tokens, extent.tokens, prompt.id));
      if (config_.budget.kind == BudgetList::Kind::fraction_kept && value * double(extent.prefill) < 1)
        problems_.warning(mark, fmt::format("fraction_kept {} of {} tokens is less than one: 1 token is kept",
                                            value, extent.prefill));
    }
  }

  const RunConfig& config_;
  Problems& problems_;
  ListChecks lists_;
};

}  // namespace

MethodContext context_of(const MethodInstance& instance, const LayerInfo& layer, int32_t n_layers,
                         int32_t budget, int64_t prefill, int64_t tokens) {
  HeadShape shape{layer.head_dim, layer.v_head_dim, layer.group(), 1};
  if (instance.options.gqa_level == GqaLevel::query) shape.heads = 1;
  if (instance.options.gqa_level == GqaLevel::layer)
    shape.heads = layer.q_heads, shape.blocks = layer.kv_heads;
  return {budget,      int32_t(prefill), int32_t(tokens),        shape,
          layer.layer, n_layers,         instance.options.phase, layer.scaling};
}

void check_against_traces(RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems) {
  TraceChecks checks(config, traces, problems);
  for (const TraceInfo& trace : traces) checks.check(trace);
  for (const MethodInstance& m : config.methods)
    if (const std::string warning = m.method->warning(m.params, m.options); !warning.empty())
      problems.warning(m.mark, fmt::format("{}: {}", m.method->info.name, warning));
}

}  // namespace kvreplay
