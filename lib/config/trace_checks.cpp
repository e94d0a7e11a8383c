#include "config/trace_checks.hpp"

#include <algorithm>
#include <set>

#include <fmt/core.h>
#include <fmt/format.h>

#include "base/text.hpp"
#include "calibration/calibrate.hpp"
#include "config/common_options.hpp"
#include "config/sections.hpp"

namespace kvreplay {

void CalibrationChecks::check(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                              StatisticsNeeds asks) {
  const MethodInstance& instance = config_.methods[m];
  if (!asks.any()) return;
  Refusal refusal = calibration_obstacle(trace, prompt, layer, instance.values.calibration(), asks, problems_.words());
  if (refusal.empty()) return;
  refusal.methods = {instance.named()};
  const std::string place = fmt::format("methods[{}]", m);
  problems_.error(config_.mark_of({place + ".calibration", place}), std::move(refusal));
}

namespace {

std::string some_of(const std::set<int32_t>& numbers) {
  return (numbers.size() > 1 ? "take some of " : "take ") + numbers_text(numbers);
}

}  // namespace

void TraceChecks::check_prompts(const TraceInfo& trace) {
  if (!config_.select.prompts) return;
  const std::vector<std::string> held = trace.prompt_ids();
  for (size_t i = 0; i < config_.select.prompts->size(); ++i) {
    const std::string& id = (*config_.select.prompts)[i];
    if (std::find(held.begin(), held.end(), id) != held.end()) continue;
    const Mark mark = config_.mark_of({fmt::format("select.prompts[{}]", i), "select.prompts"});
    problems_.error(mark, trace.lacks(id));
  }
}

void TraceChecks::check_layers(const TraceInfo& trace, const PromptInfo& prompt) {
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

void TraceChecks::check_heads(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
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

void TraceChecks::check_gradient(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
  if (!config_.output.projections || layer.all_gradients() > 0) return;
  problems_.error(config_.mark_of({"output.save"}),
                  Refusal{.rule = fmt::format("{} needs the gradient, which {}",
                                              words().setting("output.save", R"(["projections"])"),
                                              words().trace(trace.path.string(), "lack")),
                          .remedy = "record it with `kvreplay record --with-gradient`",
                          .places = places_of(trace, prompt, layer)});
}

void TraceChecks::check_needles(const TraceInfo& trace, const PromptInfo& prompt) {
  if (!config_.replay.needles.recorded || !prompt.needles.empty()) return;
  problems_.error(config_.mark_of({"replay.needles"}),
                  Refusal{.rule = fmt::format("{} needs marked tokens (needle_tokens), which {}",
                                              words().setting("replay.needles", R"("recorded")"),
                                              words().trace(trace.path.string(), "lack")),
                          .remedy = "record a task of `kvreplay tasks make`, or give " +
                                    words().mention("replay.needles", R"({"at": [0, 0.4, 0.9], "tokens": 32})"),
                          .places = places_of(trace, prompt)});
}

void TraceChecks::check_text(const TraceInfo& trace, const PromptInfo& prompt) {
  if (prompt.has_classes) return;
  for (const MethodInstance& instance : config_.methods)
    if (prompt_needs(instance, prompt.layers.front()).token_classes)
      refuse(instance, "need", "the text of tokens, which " + words().trace(trace.path.string(), "lack"),
             "record it with `kvreplay record --with-text`", places_of(trace, prompt));
}

void TraceChecks::check_needs(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
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

void TraceChecks::check_rope(size_t m, const PromptNeeds& needs, const TraceInfo& trace, const PromptInfo& prompt,
                             const LayerInfo& layer) {
  if (layer.rope_recorded) return;
  const MethodInstance& instance = config_.methods[m];
  const std::string what =
      layer.rope_unknown ? "one rotary embedding of all rows, which " : "the rotary embedding, which ";
  const std::string lacking = what + words().trace(trace.path.string(), "lack");
  const std::string remedy = layer.rope_unknown ? "leave the method out" : words().rope(trace.path.string());
  if (instance.options.positions == Positions::cache) {
    const Mark mark = config_.mark_of({fmt::format("methods[{}].positions", m), fmt::format("methods[{}]", m)});
    problems_.error(mark, Refusal{.methods = {instance.named()},
                                  .verb = "need",
                                  .rule = lacking + ", to re-assign positions",
                                  .remedy = layer.rope_unknown ? "write {entry}" : "write {entry}, or " + remedy,
                                  .option = {"positions", "original"},
                                  .places = places_of(trace, prompt, layer)});
  }
  if (needs.rotary) refuse(instance, "need", lacking + ", to rotate queries", remedy, places_of(trace, prompt, layer));
}

void TraceChecks::check_logits(const MethodInstance& instance, const TraceInfo& trace, const PromptInfo& prompt,
                               const LayerInfo& layer) {
  const std::string remedy = "leave the layers out of " + words().key("select.layers");
  if (instance.method().info.needs_linear_logits && layer.softcap > 0)
    refuse(instance, "estimate", "inner products of queries and keys, which a soft cap bends", remedy,
           places_of(trace, prompt, layer));
  if (layer.is_latent() && writes_rows(instance))
    refuse(instance, "write", "keys and values apart, and a row of latent attention is both", remedy,
           places_of(trace, prompt, layer));
  if (instance.method().info.needs_every_token && layer.window().any())
    refuse(instance, "sum", "up all tokens and cannot forget those that leave a window or chunk", remedy,
           places_of(trace, prompt, layer));
}

void TraceChecks::check_queries(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
                                const PromptInfo& prompt, const LayerInfo& layer) {
  const bool sees_queries = instance.method().hooks.has(Hook::observe_queries);
  const bool in_chunks = instance.options.serving.prefill_chunk > 0;
  if (!in_chunks && (needs.whole || (needs.queries && !sees_queries)) &&
      config_.replay.streams_prompt(instance.options))
    problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                           .verb = "decide",
                                           .rule = fmt::format("by the whole prompt, which {} feeds token by token",
                                                               words().option("prompt", "stream")),
                                           .remedy = "write {entry}",
                                           .option = {"prompt", "cut"}});
  const bool learns = needs.known.any() && !instance.values.calibration().is_offline();
  const bool decides_by_rows = instance.values.observes(instance.options) || needs.reads_queries() || learns ||
                               sees_queries || (instance.options.serving.cuts_again() && needs.reads_queries()) ||
                               instance.options.merge.uses_attention() || !instance.options.think.is_none();
  if (!decides_by_rows || layer.query_rows >= layer.tokens) return;
  problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                         .verb = "need",
                                         .rule = fmt::format("every query of the prompt, but {} only {{value}}",
                                                             words().trace(trace.path.string(), "hold")),
                                         .remedy = words().every_query(trace.path.string()),
                                         .values = {fmt::format("{} of {}", layer.query_rows, layer.tokens)},
                                         .places = places_of(trace, prompt, layer)});
}

void TraceChecks::check_calibration_prompt(const MethodInstance& instance, const TraceInfo& trace,
                                           const PromptInfo& prompt, const Extent& extent) {
  for (const LayerInfo& layer : prompt.layers) {
    const PromptNeeds needs = prompt_needs(instance, layer, extent);
    report_missing(instance, needs, trace, prompt, layer);
    report_other_lengths(instance, needs, trace, prompt, layer, extent);
  }
}

void TraceChecks::report_missing(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
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
           fmt::format("give lookahead {}, or record more with `kvreplay record --lookahead {}`", layer.lookahead_rows,
                       needs.lookahead),
           places_of(trace, prompt, layer));
  if ((needs.output_norms || critical) && layer.output_width == 0)
    lacks("the output projection (o_proj)", "--with-output");
}

void TraceChecks::report_other_lengths(const MethodInstance& instance, const PromptNeeds& needs, const TraceInfo& trace,
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

void TraceChecks::refuse(const MethodInstance& instance, const char* verb, std::string rule, std::string remedy,
                         Places places) {
  problems_.error(instance.mark, Refusal{.methods = {instance.named()},
                                         .verb = verb,
                                         .rule = std::move(rule),
                                         .remedy = std::move(remedy),
                                         .places = std::move(places)});
}

PromptNeeds TraceChecks::prompt_needs(const MethodInstance& instance, const LayerInfo& layer,
                                      const std::optional<Extent>& extent) {
  try {
    const int32_t tokens = int32_t(layer.tokens);
    MethodContext any = context_of(instance, layer, 1, extent.value_or(Extent{tokens, tokens}));
    any.budget.tokens = tokens;
    return BoundMethod(instance.values, any).needs();
  } catch (const ParameterError&) {
    return {};  // reported where the real context is checked
  }
}

}  // namespace kvreplay
