#include "apps/remarks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "apps/method_text.hpp"
#include "base/json_text.hpp"
#include "base/text.hpp"
#include "exact/sensitivity.hpp"

namespace kvreplay::app {

std::string bytes_text(BudgetList::Of of) {
  static const char* const kCaches[] = {"the cache at its peak", "the cache on average over the steps",
                                        "the prompt's cache after its cut"};
  return fmt::format("{} (budget.of: {})", kCaches[size_t(of)], kSizesOfShares[size_t(of)]);
}

// One line for all instances that share a remark.
std::vector<std::string> remarks_on(const RunConfig& config, const SolvedShares& solved) {
  const std::string cache = cache_text(config.budget.of.value());
  std::vector<std::pair<std::string, std::vector<std::string>>> said;
  const auto say = [&](const std::string& what, size_t instance) {
    const auto same = std::find_if(said.begin(), said.end(), [&](const auto& one) { return one.first == what; });
    auto& labels = same == said.end() ? said.emplace_back(what, std::vector<std::string>()).second : same->second;
    labels.push_back(instance_text(config.methods[instance]));
  };
  for (const Unreachable& one : solved.unreachable)
    if (!one.fails_in_run)
      say(fmt::format("{} of {} is not reachable ({})", percent_text(one.share), cache,
                      floor_text(one, config.budget.of.value())),
          one.instance);
  for (const auto& [instance, share] : solved.whole)
    say(fmt::format("{} of {} holds everything, nothing is evicted", percent_text(share), cache), instance);
  std::vector<std::string> lines;
  for (const auto& [what, labels] : said) lines.push_back(what + ": " + join(labels));
  return lines;
}

std::vector<NotReached> not_reached(const RunConfig& config, const SolvedShares& solved) {
  std::vector<NotReached> all;
  for (const Unreachable& one : solved.unreachable)
    if (!one.fails_in_run)
      all.push_back({instance_text(config.methods[one.instance]), one.share, one.floor_low, one.heads < one.of_heads});
  return all;
}

std::string unreachable_json(const RunConfig& config, const SolvedShares& solved) {
  std::string entries;
  for (const Unreachable& one : solved.unreachable) {
    const MethodInstance& m = config.methods[one.instance];
    JsonObject entry;
    entry.add("method", m.method_name());
    entry.add_json("given", given_json(m.values, m.options, {}, later_json(m.later.get())));
    if (!one.failure.empty()) entry.add("failure", one.failure);
    if (one.fails_in_run) entry.add("fails_in_run", true);
    entry.add("share", one.share).add("floor_low", one.floor_low).add("floor_high", one.floor_high);
    entry.add("heads", one.heads).add("of_heads", one.of_heads);
    entries += (entries.empty() ? "" : ",") + entry.text();
  }
  return "[" + entries + "]";
}

namespace {

bool holds_gradient(const TraceInfo& trace) {
  return std::any_of(trace.prompts.begin(), trace.prompts.end(), [](const PromptInfo& prompt) {
    return std::any_of(prompt.layers.begin(), prompt.layers.end(),
                       [](const LayerInfo& layer) { return layer.gradient_samples > 0; });
  });
}

}  // namespace

std::vector<GradientUse> uses_of_gradients(const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces,
                                           const OpenTensors& open) {
  std::map<std::pair<size_t, std::string>, const Cell*> first_of;  // first cell of each prompt; its layers were
                                                                   // recorded alike
  for (const Cell& cell : plan) first_of.try_emplace({cell.place.trace, cell.place.prompt}, &cell);
  std::vector<GradientUse> uses;
  for (const auto& [prompt, cell] : first_of) {
    const Place& place = cell->place;
    std::vector<int32_t> rows;
    std::unique_ptr<Tensors> trace;
    if (holds_gradient(traces[place.trace])) {
      trace = open(place.trace, {{{place.prompt}}, {{place.layer}}});
      rows = trace->gradient_rows(place.prompt, place.layer);
    }
    uses.push_back(
        {place.prompt, !rows.empty(), rows.empty() ? "" : projection_obstacle(*trace, place, rows, cell->extent)});
  }
  return uses;
}

bool all_use_gradients(const std::vector<GradientUse>& uses) {
  return !uses.empty() && std::all_of(uses.begin(), uses.end(),
                                      [](const GradientUse& use) { return use.recorded && use.why_not.empty(); });
}

std::vector<std::string> remarks_on(const std::vector<GradientUse>& uses) {
  std::vector<std::string> lines;
  for (const GradientUse& use : uses)
    if (!use.why_not.empty())
      lines.push_back(fmt::format("prompt {}: kl_head_mean stays empty: {}", use.prompt, use.why_not));
  return lines;
}

void print_notes(const Notes& notes, Console& console) {
  constexpr size_t kTold = 5;
  for (size_t i = 0; i < std::min(notes.size(), kTold); ++i) console.warning(notes[i].text);
  if (notes.size() > kTold)
    console.warning(fmt::format("and {} more notes, see `notes` in results.meta.json", notes.size() - kTold));
}

}  // namespace kvreplay::app
