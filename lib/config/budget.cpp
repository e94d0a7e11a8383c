#include "config/budget.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "config/sections.hpp"
#include "formats/registry.hpp"

namespace kvreplay {
namespace {

constexpr double kMaxBytes = 1e15;

std::optional<double> read_fraction(const Node& node, Problems& problems) {
  Problems own;
  if (const auto value = read_real(own, node, "fraction_kept", {1e-12, 1})) return value;
  const auto whole = read_real(own, node, "fraction_kept", {1, kManyTokens});
  std::string what = "in (0, 1]";
  if (whole && *whole <= 100) what += fmt::format(". {} %? write {}", *whole, *whole / 100);
  if (whole && *whole == std::floor(*whole))
    what += fmt::format(". {0} tokens? use {1}", *whole,
                        problems.words().setting("budget.tokens", fmt::format("[{}]", *whole)));
  must_be(problems, node, "fraction_kept", what);
  return std::nullopt;
}

std::optional<double> read_tokens(const Node& node, Problems& problems) {
  Problems own;
  const auto share = read_real(own, node, "budget.tokens", {1e-12, 1 - 1e-12});
  if (!share) return read_integer(problems, node, "budget.tokens", {1, kManyTokens});
  must_be(problems, node, "budget.tokens",
          "a whole number. A share of the prompt? use " +
              problems.words().setting("budget.fraction_kept", fmt::format("[{}]", number_text(*share))));
  return std::nullopt;
}

// Reports a share out of range to a caller who writes 20%.
void report_percent(const Node& node, double share, Problems& problems) {
  const Wording& words = problems.words();
  problems.error(node.mark,
                 fmt::format("{} is {} and must be a share of the full cache's bytes, above 0 and at most {}",
                             words.key("share_of_cache"), words.share(share), words.share(1)));
}

std::optional<double> read_share(const Node& node, Problems& problems) {
  Problems own;
  if (const auto value = read_real(own, node, "share_of_cache", {1e-12, 1})) return value;
  std::string number = node.kind == Node::Kind::scalar ? node.text : "";
  const bool percent = number.ends_with('%');
  if (percent) number.pop_back();
  const auto value = parse_number<double>(number);
  if (value && problems.words().percent()) return report_percent(node, *value, problems), std::nullopt;
  std::string what = "a share of the full cache's bytes, in (0, 1]";
  const bool meant_percent = value && ((*value > 1 && *value <= 100) || (percent && *value > 0 && *value <= 1));
  if (meant_percent) what += fmt::format(": did you mean {}?", *value / 100);
  else if (value && *value > 100)
    what += ". Tokens? use " + problems.words().setting("budget.tokens", fmt::format("[{}]", number_text(*value)));
  else if (value && node.quoted && *value > 0) what += ": remove the quotes";
  must_be(problems, node, "share_of_cache", what);
  return std::nullopt;
}

std::optional<double> read_one(BudgetList::Kind kind, const Node& node, Problems& problems) {
  switch (kind) {
    case BudgetList::Kind::tokens:
      return read_tokens(node, problems);
    case BudgetList::Kind::fraction_kept:
      return read_fraction(node, problems);
    case BudgetList::Kind::bytes:
      return read_integer(problems, node, "budget.bytes", {1, kMaxBytes});
    case BudgetList::Kind::ratio_of_seen:
      return read_real(problems, node, "ratio_of_seen", {1e-12, 1});
  }
  return std::nullopt;
}

// Reads every value once with `read`; `marks`: position of each.
template <class Read>
void read_values(const Node& node, const Read& read, std::vector<double>& values, std::vector<Mark>& marks,
                 Problems& problems) {
  if (node.kind == Node::Kind::list && node.items.empty())
    return problems.error(node.mark, "the list of budgets is empty: write at least one, or remove the key");
  for (const Node* item : one_or_many(node)) {
    const std::optional<double> value = read(*item);
    if (!value) continue;
    if (std::find(values.begin(), values.end(), *value) != values.end()) {
      problems.error(item->mark, fmt::format("the budget {} is listed twice", *value));
      continue;
    }
    values.push_back(*value);
    marks.push_back(item->mark);
  }
}

// Reads shares of the cache and which bytes they bound.
void read_shares(RunConfig& config, const Node& node, const Section& section, Problems& problems) {
  std::vector<Mark> marks;
  const Node* shares = section.find("share_of_cache");
  const auto read = [&](const Node& item) { return read_share(item, problems); };
  if (shares != nullptr) read_values(*shares, read, config.budget.shares, marks, problems);
  const Node* of = section.find("of");
  if (of == nullptr) return;
  if (shares == nullptr)
    return problems.error(
        node.key_mark("of"),
        fmt::format("{} (peak, mean or prompt) belongs to shares of the cache: {}", problems.words().key("budget.of"),
                    problems.words().setting("budget.share_of_cache", "[0.2]")));
  if (const auto word = read_word(problems, *of, "budget.of", kSizesOfShares))
    config.budget.of =
        BudgetList::Of(std::find(kSizesOfShares.begin(), kSizesOfShares.end(), *word) - kSizesOfShares.begin());
}

// Reads the least budget of one that grows.
void read_floor(RunConfig& config, const Section& section, const Mark& mark, Problems& problems) {
  const Node* floor = section.find("floor");
  if (floor == nullptr) return;
  if (config.budget.kind != BudgetList::Kind::ratio_of_seen)
    return problems.error(mark, problems.words().key("budget.floor") + " belongs to ratio_of_seen: leave it out");
  if (const auto tokens = read_integer(problems, *floor, "budget.floor", {1, kManyTokens}))
    config.budget.floor = int32_t(*tokens);
}

}  // namespace

void read_budget(RunConfig& config, const Node* node, const Mark& key, Problems& problems) {
  const std::string examples = problems.words().literal(
      R"({"tokens": [64, 128]}, {"fraction_kept": [0.05, 0.1]}, {"share_of_cache": [0.1]}, {"bytes": [...]} or {"ratio_of_seen": 0.2})");
  std::vector<std::string> keys = kBudgetKinds;
  keys.insert(keys.end(), {"share_of_cache", "of", "floor"});
  if (node == nullptr) return;
  config.marks["budget"] = key;
  if (node->kind != Node::Kind::map)
    return must_be(problems, *node, "budget", problems.words().map() + ": " + examples);
  const size_t before = problems.errors();
  const Section section(node, "budget", keys, problems);
  const bool has_unknown_keys = problems.errors() > before;
  const Node* only = nullptr;
  for (size_t i = 0; i < kBudgetKinds.size(); ++i) {
    const Node* values = section.find(kBudgetKinds[i]);
    if (values == nullptr) continue;
    if (only != nullptr)
      return problems.error(
          node->key_mark(kBudgetKinds[i]),
          problems.words().key("budget") + " takes one of tokens, fraction_kept, bytes and ratio_of_seen, not two");
    only = values;
    config.budget.kind = BudgetList::Kind(i);
  }
  if (only == nullptr && section.find("share_of_cache") == nullptr && has_unknown_keys) return;
  if (only == nullptr && section.find("share_of_cache") == nullptr)
    return problems.error(key, fmt::format("{} is empty: write {}", problems.words().key("budget"), examples));
  read_shares(config, *node, section, problems);
  read_floor(config, section, node->key_mark("floor"), problems);
  if (only == nullptr) return;
  const auto read = [&](const Node& item) { return read_one(config.budget.kind, item, problems); };
  read_values(*only, read, config.budget.values, config.budget.marks, problems);
}

void decide_bytes_of_shares(RunConfig& config, const std::vector<SelectedLayer>& selected) {
  using Of = BudgetList::Of;
  if (!config.budget.has_shares() || config.budget.of) return;
  const auto goes_on = [](const SelectedLayer& at) { return at.extent.prompt_tokens < at.extent.tokens; };
  config.budget.of = std::all_of(selected.begin(), selected.end(), goes_on) ? Of::prompt : Of::peak;
}

double real_budget(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                   const RowFormat& format) {
  double tokens = value;
  if (kind == BudgetList::Kind::fraction_kept) tokens = std::max(1.0, value * prompt);
  if (kind == BudgetList::Kind::bytes)
    tokens = value / row_bytes(format, layer.head_dim, layer.stored_v_dim(), bytes_of(layer.dtype));
  return std::min(tokens, kManyTokens);
}

int32_t budget_tokens(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                      const RowFormat& format) {
  return int32_t(std::floor(real_budget(kind, value, prompt, layer, format)));
}

BudgetList budgets_for(const MethodInstance& instance, const BudgetList& list) {
  const double share = instance.method().info.default_fraction;
  if (!list.values.empty() || share == 0) return list;
  BudgetList own = list;
  own.kind = BudgetList::Kind::fraction_kept, own.values = {share}, own.marks = {instance.mark};
  return own;
}

bool runs_without_budget(const MethodInstance& instance, const BudgetList& list) {
  return !instance.values.traits().takes_budget || (list.values.empty() && !instance.method().lists_in.empty());
}

void check_later(const MethodInstance& instance, const MethodContext& context) {
  if (instance.later == nullptr) return;
  try {
    (void)instance.later->method_for(context);
  } catch (const ParameterError& e) {
    throw ParameterError("then", fmt::format("then {}: {}", instance.later->values.method().info.name, e.what()));
  }
}

namespace {

constexpr int32_t kMostTried = 4096;  // a budget that needs more is no slip

// Why an instance cannot be resolved at a budget; "" if it can.
std::string obstacle(const MethodInstance& instance, MethodContext context, int32_t tokens) {
  context.budget = {tokens, double(tokens)};
  try {
    (void)BoundMethod(instance.values, context);
    check_later(instance, context);
    return "";
  } catch (const ParameterError& e) {
    return e.what();
  }
}

struct Least {
  int32_t tokens = 0;
  std::string why;  // one token less is refused
};

// The smallest larger budget that works; nullopt unless the size of the budget is what is wrong.
std::optional<Least> least_above(const MethodInstance& instance, const MethodContext& context, std::string why) {
  const int32_t asked = context.budget.tokens, most = std::min(context.tokens, asked + kMostTried);
  for (int32_t tokens = asked + 1; tokens <= most; ++tokens) {
    std::string next = obstacle(instance, context, tokens);
    if (!next.empty()) why = std::move(next);
    else if (obstacle(instance, context, tokens + 1).empty()) return Least{tokens, why};
    else return std::nullopt;
  }
  return std::nullopt;
}

// Replaces the number in "budget of 8". Returns whether the text names this budget.
bool leave_out_budget(std::string& text, int32_t tokens) {
  const std::string phrase = "budget of ", number = std::to_string(tokens);
  const size_t at = text.find(phrase + number), end = at + phrase.size() + number.size();
  if (at == std::string::npos || (end < text.size() && text[end] >= '0' && text[end] <= '9')) return false;
  text.replace(at + phrase.size(), number.size(), "{value}");
  return true;
}

}  // namespace

Refusal refusal_at_budget(const MethodInstance& instance, const MethodContext& context, const std::string& why) {
  const int32_t asked = context.budget.tokens;
  Refusal refusal{.rule = why};
  if (context.budget.none()) return refusal;
  const auto least = least_above(instance, context, why);
  if (least) refusal.rule = least->why;
  const bool named = leave_out_budget(refusal.rule, least ? least->tokens - 1 : asked);
  if (named || least) refusal.values = {std::to_string(asked)};
  if (named && least) refusal.remedy = fmt::format("at least {}", least->tokens);
  if (!named && least)
    refusal.rule =
        fmt::format("a budget of {{value}} is too small, and at least {} works: {}", least->tokens, least->why);
  return refusal;
}

}  // namespace kvreplay
