#include "config/extents.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/core.h>

#include "base/text.hpp"
#include "config/run_config.hpp"
#include "trace/turn_steps.hpp"

namespace kvreplay {

namespace {

// Finds the calibration prompts for the rule that shares an instance's budget.
class CalibrationPrompts {
 public:
  CalibrationPrompts(const RunConfig& config, const MethodInstance& instance, const TraceInfo& trace,
                     const PromptInfo& replayed, Problems& problems)
      : config_(config), instance_(instance), trace_(trace), replayed_(replayed), problems_(problems) {}

  std::vector<CalibrationPrompt> take(const Calibration& from) const {
    if (from.source == Calibration::Source::prompt) return from_prompt(from.name);
    std::vector<CalibrationPrompt> prompts;
    for (size_t i = 0; i < trace_.prompts.size(); ++i)
      if (trace_.prompts[i].id != replayed_.id) add(i, prompts);
    if (trace_.prompts.size() < 2)
      refuse({.verb = "learn",
              .rule = fmt::format("from the other prompts of the trace, but {} prompt {} alone", holds(), replayed_.id),
              .remedy = fmt::format("record more prompts, or write {}{}", by_calibration("self"),
                                    by_allocator() ? ", an oracle that sees the rows it is measured on" : "")});
    return prompts;
  }

 private:
  std::vector<CalibrationPrompt> from_prompt(const std::string& id) const {
    const std::vector<std::string> held = trace_.prompt_ids();
    std::vector<CalibrationPrompt> prompts;
    for (size_t i = 0; i < held.size(); ++i)
      if (held[i] == id && id != replayed_.id) add(i, prompts);
    if (id == replayed_.id)
      refuse({.verb = "learn",
              .rule = fmt::format("from prompt {}, which is replayed too", id),
              .remedy = fmt::format("leave it out of {}, or write {}", words().key("select.prompts"),
                                    by_calibration("others"))});
    else if (prompts.empty() && std::find(held.begin(), held.end(), id) == held.end())
      refuse({.verb = "learn",
              .rule = fmt::format("from prompt {}, which {}{}", id, words().trace(trace_.path.string(), "lack"),
                                  did_you_mean(id, held)),
              .remedy = fmt::format("take one of {}", words_text(held, "or"))});
    return prompts;
  }

  void add(size_t place, std::vector<CalibrationPrompt>& prompts) const {
    const PromptInfo& prompt = trace_.prompts[place];
    if (prompt.layers.empty())
      return refuse({.verb = "learn",
                     .rule = "from prompts that lack the selected layers",
                     .remedy = fmt::format("take another one by {}", by_calibration("prompt:ID")),
                     .places = places_of(trace_, prompt)});
    const auto extent = extent_of(config_, trace_, prompt, problems_);
    if (!extent) return;
    const bool has_rows = extent->prompt_tokens < extent->tokens;
    if (has_rows || !by_allocator()) return prompts.push_back({prompt.id, prompt.rank, *extent});
    refuse({.verb = "learn",
            .rule = "from decode rows, which a prompt lacks",
            .remedy = fmt::format("set {} below {{least}}", words().key("replay.prefill")),
            .counts = {{extent->tokens, extent->tokens}},
            .places = places_of(trace_, prompt)});
  }

  const Wording& words() const { return problems_.words(); }
  std::string holds() const { return words().trace(trace_.path.string(), "hold"); }
  bool by_allocator() const { return !instance_.values.traits().learns_heads; }
  std::string by_calibration(const char* word) const {
    if (!by_allocator()) return words().option("calibration", word);
    return words().literal(fmt::format(R"({{"name": "lu_kv", "calibration": "{}"}})", word));
  }
  void refuse(Refusal refusal) const {
    refusal.methods = {instance_.named()};
    if (by_allocator()) {
      refusal.rule = fmt::format("allocator {} {} {}", word(instance_.options.allocator), third_person(refusal.verb),
                                 refusal.rule);
      refusal.verb.clear();
    }
    problems_.error(instance_.mark, std::move(refusal));
  }

  const RunConfig& config_;
  const MethodInstance& instance_;
  const TraceInfo& trace_;
  const PromptInfo& replayed_;
  Problems& problems_;
};

// The prompt call takes more tokens than there are, or leaves none to score.
Refusal prompt_call_refusal(int64_t prefill, int64_t tokens, bool as_recorded, const std::string& source,
                            const Wording& words) {
  const std::string below = fmt::format("set {} below {{least}}", words.key("replay.prefill"));
  if (prefill > tokens)
    return {.rule = fmt::format("the prompt call takes {{value}} tokens{}, but only {{count}} of {} are replayed",
                                as_recorded ? " (as recorded)" : "", source),
            .remedy = below,
            .values = {std::to_string(prefill)},
            .counts = {{tokens, tokens}}};
  return {.rule = fmt::format("the prompt call takes all {{count}} tokens of {}, so no decode row is left to score",
                              source),
          .remedy =
              fmt::format("{}, or write {} to keep the sets alone", below, words.setting("output.save", R"(["kept"])")),
          .counts = {{tokens, tokens}}};
}

Refusal lacks_turns(const char* what, const TraceInfo& trace, const PromptInfo& prompt, const std::string& key,
                    const Wording& words) {
  return {.rule = fmt::format("{} needs {}, which {}", key, what, words.trace(trace.path.string(), "lack")),
          .remedy = "record them with `kvreplay record --prompts FILE.jsonl`",
          .places = places_of(trace, prompt)};
}

// Tokens of a recorded question that end the first `prefill` tokens.
int32_t question_tokens(const PromptInfo& prompt, int64_t prefill) {
  return int32_t(prefill - std::min(prefill, prompt.question_from.value_or(prefill)));
}

// A prompt of several turns: the first output ends the prompt.
std::optional<Extent> extent_of_turns(const RunConfig& config, const TraceInfo& trace, const PromptInfo& prompt,
                                      int64_t tokens, Problems& problems) {
  const Wording& words = problems.words();
  const Mark mark = config.mark_of({"replay.turns"});
  if (prompt.segments.count() == 0)
    return problems.error(mark, lacks_turns("segments", trace, prompt, words.key("replay.turns"), words)), std::nullopt;
  if (prompt.n_prompt >= tokens)
    return problems.error(
               mark, Refusal{.rule = fmt::format("{} scores outputs, and none is replayed", words.key("replay.turns")),
                             .remedy = "record answers, or replay more tokens",
                             .places = places_of(trace, prompt)}),
           std::nullopt;
  Extent extent{int32_t(tokens), int32_t(prompt.n_prompt), question_tokens(prompt, prompt.n_prompt), true};
  extent.longest_input = longest_input(prompt.segments, extent.prompt_tokens, extent.tokens);
  return extent;
}

// The longest branch behind the context.
std::optional<Extent> extent_of_branches(const RunConfig& config, const TraceInfo& trace, const PromptInfo& prompt,
                                         Problems& problems) {
  const Wording& words = problems.words();
  const Mark mark = config.mark_of({"replay.branches"});
  const std::string key = words.key("replay.branches");
  if (prompt.branches.empty())
    return problems.error(mark, lacks_turns("branches", trace, prompt, key, words)), std::nullopt;
  const std::vector<BranchExtent> branches = branches_of(config, prompt);
  if (!config.replay.branches.numbers.empty() && branches.size() < config.replay.branches.numbers.size()) {
    problems.error(
        mark, Refusal{.rule = fmt::format("{} names a branch that {}", key, words.trace(trace.path.string(), "lack")),
                      .remedy = fmt::format("take 0 to {}", prompt.branches.size() - 1),
                      .places = places_of(trace, prompt)});
    return std::nullopt;
  }
  Extent extent{0, int32_t(prompt.context_tokens), 0, true};
  for (const BranchExtent& branch : branches) {
    extent.longest_input = std::max(extent.longest_input, branch.input_tokens);
    if (branch.tokens == branch.input_tokens) {
      problems.error(mark,
                     Refusal{.rule = fmt::format("{} scores answers, and branch {:03} has none", key, branch.number),
                             .remedy = "record it with `kvreplay record --generate`, or leave it out",
                             .places = places_of(trace, prompt)});
      return std::nullopt;
    }
    if (extent.prompt_tokens + branch.tokens <= extent.tokens) continue;
    extent.tokens = extent.prompt_tokens + branch.tokens, extent.branch = branch.number;
  }
  return extent;
}

// Whether a key was given a value that could not be read: already reported.
bool is_unread(const RunConfig& config, const char* key, bool has_value) {
  return !has_value && config.marks.count(key) > 0;
}

}  // namespace

Places places_of(const TraceInfo& trace, const PromptInfo& prompt) {
  Places places;
  if (trace.prompts.size() > 1) places.prompts = {prompt.id};
  return places;
}

Places places_of(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer) {
  Places places = places_of(trace, prompt);
  places.layers = {layer.layer};
  return places;
}

std::vector<BranchExtent> branches_of(const RunConfig& config, const PromptInfo& prompt) {
  std::vector<BranchExtent> all;
  if (!config.replay.branches.any) return all;
  std::vector<int32_t> numbers = config.replay.branches.numbers;
  if (numbers.empty()) numbers.resize(prompt.branches.size()), std::iota(numbers.begin(), numbers.end(), 0);
  for (const int32_t number : numbers) {
    if (size_t(number) >= prompt.branches.size()) continue;
    const BranchInfo& branch = prompt.branches[size_t(number)];
    all.push_back({number, int32_t(branch.tokens), int32_t(branch.input_tokens)});
  }
  return all;
}

std::optional<Extent> extent_of(const RunConfig& config, const TraceInfo& trace, const PromptInfo& prompt,
                                Problems& problems) {
  const auto& replay = config.replay;
  if (is_unread(config, "replay.tokens", replay.tokens.has_value()) ||
      is_unread(config, "replay.prefill", replay.prefill || replay.prefill_share))
    return std::nullopt;
  const Wording& words = problems.words();
  const int64_t tokens = replay.tokens.value_or(std::min(prompt.tokens, int64_t(kManyTokens)));
  if (tokens > prompt.tokens) {
    problems.error(config.mark_of({"replay.tokens"}),
                   Refusal{.rule = fmt::format("{} is {}, but {} {{count}} tokens", words.key("replay.tokens"), tokens,
                                               words.trace(trace.path.string(), "have")),
                           .remedy = "write at most {least}, or leave it out for all",
                           .counts = {{prompt.tokens, prompt.tokens}},
                           .places = places_of(trace, prompt)});
    return std::nullopt;
  }
  if (replay.branches.any) return extent_of_branches(config, trace, prompt, problems);
  if (replay.turns) return extent_of_turns(config, trace, prompt, tokens, problems);
  const int64_t prefill = replay.prefill_share
                              ? std::max<int64_t>(1, std::llround(*replay.prefill_share * double(tokens)))
                              : replay.prefill.value_or(prompt.n_prompt);
  const bool as_recorded = !replay.prefill && !replay.prefill_share;
  if (prefill > tokens || (prefill == tokens && !config.output.kept)) {
    Refusal refusal = prompt_call_refusal(prefill, tokens, as_recorded, words.source(trace.path.string()), words);
    refusal.places = places_of(trace, prompt);
    problems.error(config.mark_of({"replay.prefill", "replay.tokens", "traces[0]"}), std::move(refusal));
    return std::nullopt;
  }
  return Extent{int32_t(tokens), int32_t(prefill), question_tokens(prompt, prefill)};
}

std::vector<CalibrationPrompt> calibration_of(const RunConfig& config, const MethodInstance& instance,
                                              const TraceInfo& trace, const PromptInfo& replayed, Problems& problems) {
  const Calibration* from = calibration_heads(instance.values, instance.options);
  if (from == nullptr || !from->uses_other_prompts()) return {};
  return CalibrationPrompts(config, instance, trace, replayed, problems).take(*from);
}

// The contexts that methods are resolved for.

int32_t least_budget(const MethodInstance& instance, MethodContext context) {
  for (int32_t tokens = 1;; ++tokens) {
    context.budget = {tokens, double(tokens)};
    try {
      (void)BoundMethod(instance.values, context);
      return tokens;
    } catch (const ParameterError&) {
      if (tokens >= context.tokens) throw;
    }
  }
}

void add_variant(LoadedRun& run, size_t layer, size_t instance, int32_t tokens, int32_t kv_head,
                 std::optional<uint32_t> seed) {
  SelectedLayer& at = run.selection[layer];
  const TraceInfo& trace = run.traces[at.trace];
  const MethodInstance& m = run.config.methods[instance];
  MethodContext context = context_of(m, trace.prompts[at.prompt].layers[at.layer], trace.n_layers, at.extent);
  context.budget = {tokens, double(tokens)};
  at.variants.push_back({instance, BoundMethod(m.values, context), context.budget, {}, kv_head, seed});
}

MethodContext context_of(const MethodInstance& instance, const LayerInfo& layer, int32_t n_layers, Extent extent) {
  MethodContext context;
  static_cast<Extent&>(context) = extent;
  context.shape = {layer.head_dim, layer.v_head_dim, layer.group(), 1, layer.is_latent()};
  if (instance.options.gqa_level == GqaLevel::query) context.shape.heads = 1;
  if (instance.options.spans_layer()) context.shape.heads = layer.q_heads, context.shape.blocks = layer.kv_heads;
  context.kv_heads = layer.kv_heads, context.query_heads = layer.group();
  context.layer = layer.layer, context.n_layers = n_layers;
  context.phase = instance.options.phase;
  context.serving = instance.options.serving;
  if (context.serving.prefill_chunk >= context.prompt_tokens) context.serving.prefill_chunk = 0;  // one chunk
  context.scale = layer.scaling;
  return context;
}

}  // namespace kvreplay
