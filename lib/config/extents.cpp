#include "config/extents.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"

namespace kvreplay {
namespace {

// Of the rule by which an instance shares its budget.
class LearningPrompts {
 public:
  LearningPrompts(const RunConfig& config, const MethodInstance& instance, const TraceInfo& trace,
                  const PromptInfo& replayed, Problems& problems)
      : config_(config), instance_(instance), trace_(trace), replayed_(replayed), problems_(problems) {}

  std::vector<CalibrationPrompt> take(const Calibration& from) const {
    if (from.source == Calibration::Source::prompt) return from_prompt(from.name);
    std::vector<CalibrationPrompt> prompts;
    for (size_t i = 0; i < trace_.prompts.size(); ++i)
      if (trace_.prompts[i].id != replayed_.id) add(i, prompts);
    if (trace_.prompts.size() < 2)
      tell(
          fmt::format("learns from the other prompts of the trace, but {} holds prompt {} alone: record more prompts, "
                      "or write {}{}",
                      trace_.path.string(), replayed_.id, by_calibration("self"),
                      by_allocator() ? ", an oracle that sees the rows it is measured on" : ""));
    return prompts;
  }

 private:
  std::vector<CalibrationPrompt> from_prompt(const std::string& id) const {
    const std::vector<std::string> held = trace_.prompt_ids();
    std::vector<CalibrationPrompt> prompts;
    for (size_t i = 0; i < held.size(); ++i)
      if (held[i] == id && id != replayed_.id) add(i, prompts);
    if (id == replayed_.id)
      tell(fmt::format("learns from prompt {}, which is replayed too: leave it out of select.prompts, or write {}", id,
                       by_calibration("others")));
    else if (prompts.empty() && std::find(held.begin(), held.end(), id) == held.end())
      tell(fmt::format("learns from prompt {}, which {} lacks{}. It holds {}", id, trace_.path.string(),
                       did_you_mean(id, held), join(held)));
    return prompts;
  }

  void add(size_t place, std::vector<CalibrationPrompt>& prompts) const {
    const PromptInfo& prompt = trace_.prompts[place];
    if (prompt.layers.empty())
      return tell(
          fmt::format("learns from prompt {}, which lacks the selected layers: take "
                      "another one by calibration: prompt:ID",
                      prompt.id));
    const auto extent = extent_of(config_, prompt, problems_);
    if (!extent) return;
    const bool has_rows = extent->prompt_tokens < extent->tokens;
    if (has_rows || !by_allocator()) return prompts.push_back({prompt.id, uint32_t(place), *extent});
    tell(fmt::format("learns from decode rows, and prompt {} has none: set replay.prefill below {}", prompt.id,
                     extent->tokens));
  }

  bool by_allocator() const { return !instance_.values.learns_heads(); }
  std::string by_calibration(const char* word) const {
    const std::string given = fmt::format("calibration: {}", word);
    return by_allocator() ? "{name: lu_kv, " + given + "}" : given;
  }
  void tell(const std::string& why) const {
    const std::string rule = by_allocator() ? fmt::format(" allocator {}", word(instance_.options.allocator)) : "";
    problems_.error(instance_.mark, fmt::format("{}:{} {}", instance_.method().info.name, rule, why));
  }

  const RunConfig& config_;
  const MethodInstance& instance_;
  const TraceInfo& trace_;
  const PromptInfo& replayed_;
  Problems& problems_;
};

}  // namespace

std::optional<Extent> extent_of(const RunConfig& config, const PromptInfo& prompt, Problems& problems) {
  const auto& replay = config.replay;
  const int64_t tokens = replay.tokens.value_or(std::min(prompt.tokens, int64_t(kManyTokens)));
  if (tokens > prompt.tokens) {
    problems.error(config.mark_of({"replay.tokens"}),
                   fmt::format("replay.tokens is {}, but prompt {} has {} tokens: write at most {}, or all", tokens,
                               prompt.id, prompt.tokens, prompt.tokens));
    return std::nullopt;
  }
  const int64_t prefill = replay.prefill_share
                              ? std::max<int64_t>(1, std::llround(*replay.prefill_share * double(tokens)))
                              : replay.prefill.value_or(prompt.n_prompt);
  const bool as_recorded = !replay.prefill && !replay.prefill_share;
  const Mark mark = config.mark_of({"replay.prefill", "replay.tokens", "traces[0]"});
  if (prefill > tokens) {
    problems.error(mark, fmt::format("the prompt call takes {} tokens{}, but only {} of prompt {} are replayed: set "
                                     "replay.prefill below {}",
                                     prefill, as_recorded ? " (as recorded)" : "", tokens, prompt.id, tokens));
    return std::nullopt;
  }
  if (prefill == tokens && !config.output.kept) {
    problems.error(mark,
                   fmt::format("the prompt call takes all {} tokens of prompt {}, so no decode row is left to score: "
                               "set replay.prefill below {}, or output.save: [kept] to keep the sets alone",
                               tokens, prompt.id, tokens));
    return std::nullopt;
  }
  const int64_t question = prefill - std::min(prefill, prompt.question_from.value_or(prefill));
  return Extent{int32_t(tokens), int32_t(prefill), int32_t(question)};
}

std::vector<CalibrationPrompt> calibration_of(const RunConfig& config, const MethodInstance& instance,
                                              const TraceInfo& trace, const PromptInfo& replayed, Problems& problems) {
  const Calibration* from = heads_learnt_from(instance.values, instance.options);
  if (from == nullptr || !from->is_of_other_prompts()) return {};
  return LearningPrompts(config, instance, trace, replayed, problems).take(*from);
}

}  // namespace kvreplay
