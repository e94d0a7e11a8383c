#include "apps/shares.hpp"

#include <fmt/core.h>

#include "apps/labels.hpp"
#include "base/json_text.hpp"

namespace kvreplay::app {

std::vector<std::string> remarks_on(const RunConfig& config, const SolvedShares& solved) {
  std::vector<std::string> lines;
  for (const Unreachable& one : solved.unreachable)
    lines.push_back(fmt::format("{}: {} of the cache is not reachable: {}", instance_text(config.methods[one.instance]),
                                percent_text(one.share), floor_text(one)));
  for (const auto& [instance, share] : solved.whole)
    lines.push_back(fmt::format("{}: {} of the cache holds everything: nothing is evicted",
                                instance_text(config.methods[instance]), percent_text(share)));
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
    entry.add("share", one.share).add("floor_low", one.floor_low).add("floor_high", one.floor_high);
    entry.add("heads", one.heads).add("of_heads", one.of_heads);
    entries += (entries.empty() ? "" : ",") + entry.text();
  }
  return "[" + entries + "]";
}

}  // namespace kvreplay::app
