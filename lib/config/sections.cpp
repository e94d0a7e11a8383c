#include "config/sections.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"

namespace kvreplay {
namespace {

constexpr Range kTokens{1, kManyTokens};
constexpr Range kLayers{0, 999};    // a trace has three digits for layers
constexpr Range kHeads{0, 65535};   // the counter of the random numbers has 16 bits for heads
constexpr Range kBranches{0, 999};  // a trace has three digits for branches
constexpr Range kSeeds{0, 4294967295.0};
constexpr Range kJobs{1, 4096};

bool is_word(const Node* node, const char* word) {
  return node == nullptr || (node->kind == Node::Kind::scalar && node->text == word);
}

// Reads `all`, or what read_distinct() does.
template <class T, class Read>
std::optional<std::vector<T>> read_selection(RunConfig& config, const Node* node, const std::string& name,
                                             const std::string& remedy, Problems& problems, Read read) {
  if (is_word(node, "all")) return std::nullopt;
  return read_distinct<T>(config, *node, name, remedy, problems, read);
}

void read_queries(RunConfig& config, const Node* node, Problems& problems) {
  if (is_word(node, "all")) return;
  config.marks["replay.queries"] = node->mark;
  if (node->kind != Node::Kind::map || node->keys.size() != 1)
    return must_be(problems, *node, "replay.queries",
                   problems.words().literal(R"("all", {"last": 256} or {"stride": 16})"));
  const Section section(node, "replay.queries", {"last", "stride"}, problems);
  for (const char* key : {"last", "stride"}) {
    const Node* count = section.find(key);
    if (count == nullptr) continue;
    using Queries = RunConfig::Replay::Queries;
    config.replay.queries = *key == 'l' ? Queries::last : Queries::stride;
    config.replay.queries_count =
        read_integer(problems, *count, fmt::format("replay.queries.{}", key), kTokens).value_or(1);
  }
}

// Reads the fractions of the prompt at which spans start, each once.
void read_needle_starts(RunConfig& config, const Node& node, Problems& problems) {
  const std::string name = "replay.needles.at", key = problems.words().key(name);
  if (node.kind == Node::Kind::list && node.items.empty())
    return problems.error(node.mark, key + " is an empty list: write where spans start, as [0, 0.4, 0.9]");
  auto& starts = config.replay.needles.at;
  for (const Node* item : one_or_many(node)) {
    const auto at = read_real(problems, *item, name, {0, 1});
    if (!at) continue;
    if (*at == 1) problems.error(item->mark, key + " is 1 and must be below 1: a span starts inside of the prompt");
    else if (std::find(starts.begin(), starts.end(), *at) != starts.end())
      problems.error(item->mark, fmt::format("{} is listed twice in {}", number_text(*at), key));
    else starts.push_back(*at);
  }
}

void read_needles(RunConfig& config, const Node* node, Problems& problems) {
  if (node == nullptr) return;
  config.marks["replay.needles"] = node->mark;
  config.replay.needles.recorded = is_word(node, "recorded");
  if (config.replay.needles.recorded) return;
  if (node->kind != Node::Kind::map)
    return must_be(problems, *node, "replay.needles",
                   problems.words().literal(R"({"at": [0, 0.4, 0.9], "tokens": 32} or "recorded")"));
  const Section section(node, "replay.needles", {"at", "tokens"}, problems);
  const Node *at = section.find("at"), *tokens = section.find("tokens");
  if (at == nullptr || tokens == nullptr)
    return problems.error(node->mark, fmt::format("{} has no {}: write {}", problems.words().key("replay.needles"),
                                                  at == nullptr ? "at" : "tokens",
                                                  problems.words().literal(R"({"at": [0, 0.4, 0.9], "tokens": 32})")));
  read_needle_starts(config, *at, problems);
  config.replay.needles.tokens = read_integer(problems, *tokens, "replay.needles.tokens", kTokens).value_or(1);
}

void read_count(RunConfig& config, const Section& section, const std::string& key, const char* default_word,
                std::optional<int64_t>& into, Problems& problems) {
  const Node* node = section.find(key);
  if (is_word(node, default_word)) return;
  config.marks["replay." + key] = node->mark;
  into = read_integer(problems, *node, "replay." + key, kTokens);
}

// Reads tokens, or a fraction of the replayed tokens.
void read_prefill(RunConfig& config, const Section& section, Problems& problems) {
  Problems no_share;
  const Node* node = section.find("prefill");
  if (node != nullptr) config.replay.prefill_share = read_real(no_share, *node, "replay.prefill", {1e-12, 1 - 1e-12});
  if (!config.replay.prefill_share)
    return read_count(config, section, "prefill", "trace", config.replay.prefill, problems);
  config.marks["replay.prefill"] = node->mark;
}

}  // namespace

namespace {

void read_branches(RunConfig& config, const Node* node, Problems& problems) {
  if (node == nullptr) return;
  const std::string name = "replay.branches";
  config.marks[name] = node->mark;
  const std::string remedy = "name branches, or write " + problems.words().literal(R"("all")");
  const auto read = [&](const Node& item) { return read_integer(problems, item, name, kBranches); };
  config.replay.branches = {
      true, read_selection<int32_t>(config, node, name, remedy, problems, read).value_or(std::vector<int32_t>{})};
}

// What turns and branches say themselves.
void check_turns(const RunConfig& config, const Section& section, Problems& problems) {
  const auto& replay = config.replay;
  const Wording& words = problems.words();
  if (!replay.has_turns()) return;
  const std::string what = words.key(replay.turns ? "replay.turns" : "replay.branches");
  const auto refuse = [&](const char* key, const std::string& why) {
    problems.error(config.mark_of({std::string("replay.") + key}), why);
  };
  if (replay.turns && replay.branches.any)
    refuse("branches", fmt::format("{} replays one text and {} several: leave out one of them", what,
                                   words.key("replay.branches")));
  if (section.find("prefill") != nullptr)
    refuse("prefill", fmt::format("{} says where the prompt ends: leave out {}", what, words.key("replay.prefill")));
  if (replay.branches.any && section.find("tokens") != nullptr)
    refuse("tokens", fmt::format("{} are replayed whole: leave out {}", what, words.key("replay.tokens")));
}

}  // namespace

void read_select(RunConfig& config, const Node* node, Problems& problems) {
  const Section section(node, "select", {"prompts", "layers", "kv_heads"}, problems);
  const std::string remedy = "name what to select, or leave it out for all";
  const auto integers = [&](const std::string& key, Range range) {
    const std::string name = "select." + key;
    return read_selection<int32_t>(config, section.find(key), name, remedy, problems,
                                   [&](const Node& item) { return read_integer(problems, item, name, range); });
  };
  config.select.prompts =
      read_selection<std::string>(config, section.find("prompts"), "select.prompts", remedy, problems,
                                  [&](const Node& item) { return read_text(problems, item, "select.prompts"); });
  config.select.layers = integers("layers", kLayers);
  config.select.kv_heads = integers("kv_heads", kHeads);
}

void read_replay(RunConfig& config, const Node* node, Problems& problems) {
  const Section section(
      node, "replay",
      {"tokens", "prefill", "prompt", "turns", "branches", "queries", "needles", "recall_k", "tier", "machine"},
      problems);
  read_count(config, section, "tokens", "all", config.replay.tokens, problems);
  read_prefill(config, section, problems);
  if (const Node* prompt = section.find("prompt"))
    config.replay.prompt_streams = read_word(problems, *prompt, "replay.prompt", {"cut", "stream"}) == "stream";
  if (const Node* turns = section.find("turns"))
    config.marks["replay.turns"] = turns->mark,
    config.replay.turns = read_boolean(problems, *turns, "replay.turns").value_or(false);
  read_branches(config, section.find("branches"), problems);
  check_turns(config, section, problems);
  read_queries(config, section.find("queries"), problems);
  read_needles(config, section.find("needles"), problems);
  read_working_set(config, section, problems);
  const auto &tokens = config.replay.tokens, &prefill = config.replay.prefill;
  if (tokens && prefill && *prefill > *tokens)
    problems.error(config.marks["replay.prefill"],
                   fmt::format("{} is {} and must be at most {}, {}", problems.words().key("replay.prefill"), *prefill,
                               problems.words().key("replay.tokens"), *tokens));
}

void read_seeds(RunConfig& config, const Node* node, Problems& problems) {
  const Section section(node, "seeds", {"first", "count"}, problems);
  if (const Node* first = section.find("first"))
    config.seed_first = uint32_t(read_integer(problems, *first, "seeds.first", kSeeds).value_or(0));
  if (const Node* count = section.find("count"))
    config.seed_count = uint32_t(read_integer(problems, *count, "seeds.count", {1, 1e6}).value_or(1));
  if (double(config.seed_first) + double(config.seed_count) - 1 > kSeeds.high)
    problems.error(node->mark, fmt::format("seeds go beyond {:.0f}", kSeeds.high));
}

void read_metrics(RunConfig& config, const Node* node, const Source& source, Problems& problems) {
  if (is_word(node, "default")) return;
  if (node->kind != Node::Kind::list || node->items.empty())
    return must_be(problems, *node, "metrics",
                   fmt::format("default, or a list of columns ({})", problems.words().list("metrics")));
  for (const Node& item : node->items) {
    const auto name = read_text(problems, item, "metrics");
    if (!name) continue;
    const bool known = source.measures.empty() ||
                       std::find(source.measures.begin(), source.measures.end(), *name) != source.measures.end();
    if (!known)
      problems.error(item.mark, fmt::format("unknown metric {}{}: see {}", in_quotes(*name),
                                            did_you_mean(*name, source.measures), problems.words().list("metrics")));
    else if (std::find(config.metrics.begin(), config.metrics.end(), *name) != config.metrics.end())
      problems.error(item.mark, fmt::format("{} is listed twice in metrics", *name));
    else config.metrics.push_back(*name);
  }
}

void read_run(RunConfig& config, const Node* node, Problems& problems) {
  const Section section(node, "run", {"device", "jobs", "precision", "audit"}, problems);
  if (const Node* device = section.find("device")) {
    config.marks["run.device"] = device->mark;
    const auto word = read_text(problems, *device, "run.device").value_or("cpu");
    const bool indexed_cuda = word.starts_with("cuda:") && word.size() > 5 && word.size() < 8 &&
                              word.find_first_not_of("0123456789", 5) == std::string::npos;
    if (word != "cpu" && word != "cuda" && word != "emulated" && !indexed_cuda)
      must_be(problems, *device, "run.device", "cpu, cuda or cuda:N");
    config.run.device = word;
  }
  if (const Node* jobs = section.find("jobs"); !is_word(jobs, "auto"))
    config.run.jobs = int(read_integer(problems, *jobs, "run.jobs", kJobs).value_or(1));
  if (const Node* precision = section.find("precision"))
    config.run.double_precision = read_word(problems, *precision, "run.precision", {"single", "double"}) == "double";
  if (const Node* audit = section.find("audit"))
    config.run.audit = read_boolean(problems, *audit, "run.audit").value_or(false);
}

}  // namespace kvreplay
