#include "config/wrapping.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "config/values.hpp"

namespace kvreplay {

namespace {

const std::vector<std::string> kNames = {"none", "critical", "caote"};

Wrapper named(const std::string& name) {
  Wrapper wrapper;
  if (name == "critical") wrapper.kind = Wrapper::Kind::critical;
  if (name == "caote") wrapper.kind = Wrapper::Kind::caote;
  return wrapper;
}

void read_critical(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* alpha = section.find("alpha"))
    if (const auto given = read_real(problems, *alpha, "alpha", {0, 1})) wrapper.alpha = *given;
  if (const Node* eps = section.find("eps"))
    if (const auto given = read_real(problems, *eps, "eps", {0, 1e300})) wrapper.eps = *given;
}

void read_caote(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* level = section.find("level"))
    if (const auto given = read_word(problems, *level, "level", {"query", "kv"}))
      wrapper.level = *given == "kv" ? Wrapper::Level::kv : Wrapper::Level::query;
  if (const Node* fast = section.find("fast"))
    if (const auto given = read_boolean(problems, *fast, "fast")) wrapper.fast = *given;
}

}  // namespace

std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = name_of(item);
  if (name == nullptr || name->kind != Node::Kind::scalar) {
    must_be(problems, item, "wrapper",
            fmt::format("none, critical or caote, or {} with a name: {}", problems.words().map(),
                        problems.words().literal(R"({"name": "critical", "alpha": 0.5})")));
    return std::nullopt;
  }
  const auto word = read_word(problems, *name, "wrapper", kNames);
  if (!word) return std::nullopt;
  Wrapper wrapper = named(*word);
  if (item.kind == Node::Kind::map) {
    std::vector<std::string> keys = {"name"};
    if (wrapper.kind == Wrapper::Kind::critical) keys.insert(keys.end(), {"alpha", "eps"});
    if (wrapper.kind == Wrapper::Kind::caote) keys.insert(keys.end(), {"level", "fast"});
    const Section section(&item, "wrapper", keys, problems);
    if (wrapper.kind == Wrapper::Kind::critical) read_critical(section, problems, wrapper);
    if (wrapper.kind == Wrapper::Kind::caote) read_caote(section, problems, wrapper);
  }
  return problems.errors() == before ? std::optional(wrapper) : std::nullopt;
}

namespace {

const std::vector<Merge::Rule> kRules = {Merge::Rule::none,  Merge::Rule::cam,        Merge::Rule::d2o,
                                         Merge::Rule::pivot, Merge::Rule::weighted_v, Merge::Rule::gaussian};

std::vector<std::string> keys_of(const Merge& merge) {
  std::vector<std::string> keys = {"name"};
  if (!merge.is_none()) keys.emplace_back("mass");
  if (merge.rule == Merge::Rule::cam) keys.insert(keys.end(), {"next", "attention"});
  if (merge.rule == Merge::Rule::d2o) keys.emplace_back("release");
  if (merge.rule == Merge::Rule::gaussian) keys.emplace_back("threshold");
  return keys;
}

void read_parameters(const Section& section, Problems& problems, Merge& merge) {
  if (const Node* mass = section.find("mass"))
    if (const auto word = read_word(problems, *mass, "mass", {"none", "keep"}))
      merge.mass = *word == "keep" ? Merge::Mass::keep : Merge::Mass::none;
  if (const Node* next = section.find("next"))
    if (const auto tokens = read_integer(problems, *next, "next", {1, kManyTokens})) merge.next = int32_t(*tokens);
  if (const Node* attention = section.find("attention"))
    if (const auto word = read_word(problems, *attention, "attention", {"accumulated", "step"}))
      merge.attention = *word == "step" ? Merge::Attention::step : Merge::Attention::accumulated;
  if (const Node* release = section.find("release"))
    if (const auto yes = read_boolean(problems, *release, "release")) merge.release = *yes;
  if (const Node* threshold = section.find("threshold"))
    if (const auto cosine = read_real(problems, *threshold, "threshold", {-1, 1})) merge.threshold = *cosine;
}

// Whether a cut of a long prompt stores only tokens as recorded, each once and with equal weight.
bool holds_plain_tokens(const MethodInstance& m) {
  MethodContext context;
  context.tokens = 1 << 14, context.prompt_tokens = 1 << 13, context.budget = {1 << 12, 1 << 12};
  context.shape = {1, 1, 1}, context.phase = m.options.phase;
  try {
    const Layout layout = BoundMethod(m.values, context).layout();
    return layout.own_rows == 0 && layout.extra_rows == 0 && !layout.split && !layout.weights;
  } catch (const ParameterError&) {
    return true;  // reported where budgets are known
  }
}

}  // namespace

std::optional<Merge> read_merge(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = name_of(item);
  if (name == nullptr || name->kind != Node::Kind::scalar) {
    must_be(problems, item, "merge",
            fmt::format("none, cam, d2o, pivot, weighted_v or gaussian, or {}: {}", problems.words().map(),
                        problems.words().literal(R"({"name": "cam", "next": 32})")));
    return std::nullopt;
  }
  std::vector<std::string> words;
  for (const Merge::Rule rule : kRules) words.emplace_back(word(rule));
  const auto given = read_word(problems, *name, "merge", words);
  if (!given) return std::nullopt;
  Merge merge;
  merge.rule = kRules[size_t(std::find(words.begin(), words.end(), *given) - words.begin())];
  if (item.kind == Node::Kind::map) read_parameters(Section(&item, "merge", keys_of(merge), problems), problems, merge);
  return problems.errors() == before ? std::optional(merge) : std::nullopt;
}

std::string merge_problem(const MethodInstance& m, const Wording& words) {
  const Merge& merge = m.options.merge;
  const std::string name = Refusal::kMethods;
  if (merge.is_none()) return "";
  if (!m.method().hooks.has(Hook::evict) || m.values.traits().holds_all || m.values.traits().chooses)
    return fmt::format("merge uses the tokens that a method evicts, and {} <keeps|keep> every token: leave it out",
                       name);
  if (m.method().info.own_row_format || !holds_plain_tokens(m))
    return fmt::format(
        "merge adds evicted tokens to kept ones, and {} <makes|make> rows or weights of <its|their> own: leave it out",
        name);
  if (m.options.gqa_level == GqaLevel::layer)
    return "merge looks at keys and values of one kv head: leave out " + words.option("gqa.level", "layer");
  if (m.method().hooks.has(Hook::cut_together) && m.values.traits().shared_over != SharedOver::none)
    return fmt::format("heads of {} cut together by keys as they were recorded, and merge changes them: leave it out",
                       name);
  if (merge.rule == Merge::Rule::gaussian && m.options.phase == Phase::stream)
    return fmt::format(
        "merge gaussian makes rows of one cut of the prompt, and {} <streams|stream> here: add {}, or take pivot", name,
        words.option("phase", "oneshot"));
  if (merge.changes_keys() && m.options.positions == Positions::cache)
    return fmt::format(
        "merge {} makes keys that combine several positions and cannot be moved to another one: add {}, or take cam or "
        "weighted_v, which leave keys alone",
        word(merge.rule), words.option("positions", "original"));
  if (m.options.reweight != Reweight::none)
    return "merge and reweight both make kept tokens stand for the others: leave out one of them";
  return "";
}

}  // namespace kvreplay
