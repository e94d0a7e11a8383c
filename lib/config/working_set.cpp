#include <fmt/core.h>

#include "config/sections.hpp"

// `replay.recall_k`, `replay.tier` and `replay.machine` (docs/measures.md, working sets).

namespace kvreplay {
namespace {

constexpr Range kTokenCounts{1, kManyTokens};
constexpr Range kMachineBytes{1, 1e18};
constexpr Range kWeightBytes{0, 1e18};
constexpr Range kCacheCounts{1, 1e6};
constexpr Range kBatches{1, 1e9};
constexpr double kMostReserve = 0.99;

void read_recall(RunConfig& config, const Node* node, Problems& problems) {
  if (node == nullptr) return;
  const std::string name = "replay.recall_k";
  const auto read = [&](const Node& item) { return read_integer(problems, item, name, kTokenCounts); };
  config.replay.working_set.recall_k =
      read_distinct<int32_t>(config, *node, name, "write numbers of tokens, as [16, 64]", problems, read)
          .value_or(std::vector<int32_t>{});
}

// Reads `attended`, or {top: k}.
void read_request(const Node& node, TierOptions& tier, Problems& problems) {
  const std::string name = "replay.tier.request";
  if (node.kind == Node::Kind::scalar && node.text == "attended") return;
  const Section section(&node, name, {"top"}, problems);
  const Node* top = node.kind == Node::Kind::map ? section.find("top") : nullptr;
  if (top == nullptr) return must_be(problems, node, name, problems.words().literal(R"("attended" or {"top": 64})"));
  tier.top = int32_t(read_integer(problems, *top, name + ".top", kTokenCounts).value_or(1));
}

void read_tier(RunConfig& config, const Node* node, Problems& problems) {
  if (node == nullptr) return;
  TierOptions& tier = config.replay.working_set.tier;
  config.marks["replay.tier"] = node->mark;
  const Section section(node, "replay.tier", {"hot", "policy", "request"}, problems);
  if (node->kind != Node::Kind::map) return;
  const Node *hot = section.find("hot"), *policy = section.find("policy"), *request = section.find("request");
  const auto word = policy == nullptr ? std::optional<std::string>("lru")
                                      : read_word(problems, *policy, "replay.tier.policy", kTierPolicies);
  tier.policy = word == "method" ? TierOptions::Policy::method : TierOptions::Policy::lru;
  if (hot != nullptr) {
    config.marks["replay.tier.hot"] = hot->mark;
    tier.hot = int32_t(read_integer(problems, *hot, "replay.tier.hot", kTokenCounts).value_or(1));
  } else if (word == "lru") {
    problems.error(node->mark, fmt::format("{} has no hot: write how many tokens the tier holds, as {}",
                                           problems.words().key("replay.tier"),
                                           problems.words().literal(R"({"hot": 512, "policy": "lru"})")));
  }
  if (request != nullptr) read_request(*request, tier, problems);
  // A tier changes with every row.
  if (config.replay.queries != RunConfig::Replay::Queries::all)
    problems.error(config.marks["replay.queries"],
                   fmt::format("{} follows every row, so {} must be all: leave one of them out",
                               problems.words().key("replay.tier"), problems.words().key("replay.queries")));
}

void read_machine(RunConfig& config, const Node* node, Problems& problems) {
  if (node == nullptr) return;
  const std::string name = "replay.machine";
  MachineOptions& machine = config.replay.working_set.machine;
  const std::vector<std::string> required = {"hbm_bytes", "hbm_bw", "link_bw", "weights_bytes"};
  const Section section(node, name,
                        {"hbm_bytes", "hbm_bw", "link_bw", "weights_bytes", "caches", "batch", "reserve", "overlap"},
                        problems);
  if (node->kind != Node::Kind::map) return;
  for (const std::string& key : required)
    if (section.find(key) == nullptr)
      return problems.error(
          node->mark,
          fmt::format("{} has no {}: write bytes and bytes per second, as {}", problems.words().key(name), key,
                      problems.words().literal(R"({"hbm_bytes": 80e9, "hbm_bw": 3.35e12, )"
                                               R"("link_bw": 55e9, "weights_bytes": 16e9})")));
  const auto real = [&](const char* key, Range range, double& to) {
    if (const Node* value = section.find(key); value != nullptr)
      to = read_real(problems, *value, name + "." + key, range).value_or(to);
  };
  const auto count = [&](const char* key, Range range, int64_t& to) {
    if (const Node* value = section.find(key); value != nullptr)
      to = read_integer(problems, *value, name + "." + key, range).value_or(to);
  };
  real("hbm_bytes", kMachineBytes, machine.hbm_bytes), real("hbm_bw", kMachineBytes, machine.hbm_bw);
  real("link_bw", kMachineBytes, machine.link_bw), real("weights_bytes", kWeightBytes, machine.weights_bytes);
  count("caches", kCacheCounts, machine.caches), count("batch", kBatches, machine.batch);
  real("reserve", {0, kMostReserve}, machine.reserve);
  if (const Node* overlap = section.find("overlap"); overlap != nullptr)
    machine.overlap = read_boolean(problems, *overlap, name + ".overlap").value_or(true);
}

}  // namespace

void read_working_set(RunConfig& config, const Section& replay, Problems& problems) {
  read_recall(config, replay.find("recall_k"), problems);
  read_tier(config, replay.find("tier"), problems);
  read_machine(config, replay.find("machine"), problems);
}

void add_json(const WorkingSetOptions& options, JsonObject& to) {
  if (!options.recall_k.empty()) to.add("recall_k", options.recall_k);
  if (const TierOptions& tier = options.tier; tier.any()) {
    JsonObject entry;
    if (tier.hot > 0) entry.add("hot", tier.hot);
    entry.add("policy", kTierPolicies[size_t(tier.policy) - 1]);
    if (tier.top > 0) entry.add_json("request", JsonObject().add("top", tier.top).text());
    else entry.add("request", "attended");
    to.add_json("tier", entry.text());
  }
  const MachineOptions& machine = options.machine;
  if (!machine.any()) return;
  JsonObject entry;
  entry.add("hbm_bytes", machine.hbm_bytes).add("hbm_bw", machine.hbm_bw).add("link_bw", machine.link_bw);
  entry.add("weights_bytes", machine.weights_bytes);
  if (machine.caches > 0) entry.add("caches", machine.caches);
  entry.add("batch", machine.batch).add("reserve", machine.reserve).add("overlap", machine.overlap);
  to.add_json("machine", entry.text());
}

void check_tier(const RunConfig& config, Problems& problems) {
  const TierOptions& tier = config.replay.working_set.tier;
  if (tier.policy != TierOptions::Policy::method) return;
  const std::string key = problems.words().key("replay.tier"), hot = problems.words().key("replay.tier.hot");
  const Mark mark = config.mark_of({"replay.tier"});
  for (const MethodInstance& m : config.methods) {
    const std::string name = m.method_name();
    if (!m.values.traits().chooses && tier.hot > 0)
      problems.error(config.mark_of({"replay.tier.hot", "replay.tier"}),
                     fmt::format("{} reads all that it holds, which is its hot tier: leave out {}, or replay "
                                 "query-time methods apart",
                                 name, hot));
    if (!m.values.traits().chooses) continue;
    if (!m.method().hooks.has(Hook::token_score))
      problems.error(mark, fmt::format("{} gives tokens no scores that a tier could hold them by: set the policy of {} "
                                       "to lru, or leave the method out",
                                       name, key));
    else if (tier.hot == 0)
      problems.error(mark,
                     fmt::format("{} stores everything: write how many tokens its hot tier holds, {}", name, hot));
  }
}

}  // namespace kvreplay
