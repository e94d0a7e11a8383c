#include "apps/shares.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "apps/labels.hpp"
#include "base/json_text.hpp"
#include "base/text.hpp"

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
    all.push_back({instance_text(config.methods[one.instance]), one.share, one.floor_low, one.heads < one.of_heads});
  return all;
}

std::string unreachable_json(const RunConfig& config, const SolvedShares& solved) {
  std::string entries;
  for (const Unreachable& one : solved.unreachable) {
    const MethodInstance& m = config.methods[one.instance];
    JsonObject entry;
    entry.add("method", m.method().info.name).add_json("given", given_json(m.values, m.options));
    if (!one.failure.empty()) entry.add("failure", one.failure);
    entry.add("share", one.share).add("floor_low", one.floor_low).add("floor_high", one.floor_high);
    entry.add("heads", one.heads).add("of_heads", one.of_heads);
    entries += (entries.empty() ? "" : ",") + entry.text();
  }
  return "[" + entries + "]";
}

}  // namespace kvreplay::app
