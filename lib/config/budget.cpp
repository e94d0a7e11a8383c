#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "config/sections.hpp"
#include "formats/row_bytes.hpp"

namespace kvreplay {
namespace {

constexpr double kMaxBytes = 1e15;

std::optional<double> read_fraction(const Node& node, Problems& problems) {
  Problems own;
  if (const auto value = read_real(own, node, "fraction_kept", {1e-12, 1})) return value;
  const auto whole = read_real(own, node, "fraction_kept", {1, kManyTokens});
  std::string what = "in (0, 1]";
  if (whole && *whole <= 100) what += fmt::format(". {} %? write {}", *whole, *whole / 100);
  if (whole && *whole == std::floor(*whole)) what += fmt::format(". {} tokens? use budget.tokens", *whole);
  must_be(problems, node, "fraction_kept", what);
  return std::nullopt;
}

std::optional<double> read_tokens(const Node& node, Problems& problems) {
  Problems own;
  const auto share = read_real(own, node, "budget.tokens", {1e-12, 1 - 1e-12});
  if (!share) return read_integer(problems, node, "budget.tokens", {1, kManyTokens});
  must_be(problems, node, "budget.tokens", "a whole number. A share of the prompt? use budget.fraction_kept");
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
  }
  return std::nullopt;
}

void read_values(RunConfig& config, const Node& node, Problems& problems) {
  if (node.kind == Node::Kind::list && node.items.empty())
    return problems.error(node.mark, "the list of budgets is empty: write at least one, or remove the key");
  for (const Node* item : one_or_many(node)) {
    const auto value = read_one(config.budget.kind, *item, problems);
    if (!value) continue;
    const auto& known = config.budget.values;
    if (std::find(known.begin(), known.end(), *value) != known.end()) {
      problems.error(item->mark, fmt::format("the budget {} is listed twice", *value));
      continue;
    }
    config.budget.values.push_back(*value);
    config.budget.marks.push_back(item->mark);
  }
}

}  // namespace

void read_budget(RunConfig& config, const Node* node, const Mark& key, Problems& problems) {
  static const std::vector<std::string> kinds = {"tokens", "fraction_kept",
                                                 "bytes"};  // in the order of BudgetList::Kind
  if (node == nullptr) return;
  config.marks["budget"] = key;
  if (node->kind != Node::Kind::map)
    return must_be(problems, *node, "budget",
                   "a map: {tokens: [64, 128]}, {fraction_kept: [0.05, 0.1]} or {bytes: [...]}");
  const Section section(node, "budget", kinds, problems);
  const Node* only = nullptr;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const Node* values = section.find(kinds[i]);
    if (values == nullptr) continue;
    if (only != nullptr)
      return problems.error(node->key_mark(kinds[i]), "budget takes one of tokens, fraction_kept and bytes, not two");
    only = values;
    config.budget.kind = BudgetList::Kind(i);
  }
  if (only == nullptr)
    return problems.error(key,
                          "budget is empty: write {tokens: [64, 128]}, {fraction_kept: [0.05, 0.1]} or {bytes: [...]}");
  read_values(config, *only, problems);
}

double real_budget(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                   const RowFormat& format) {
  double tokens = value;
  if (kind == BudgetList::Kind::fraction_kept) tokens = std::max(1.0, value * prompt);
  if (kind == BudgetList::Kind::bytes)
    tokens = value / row_bytes(format, layer.head_dim, layer.v_head_dim, bytes_of(layer.dtype));
  return std::min(tokens, kManyTokens);
}

int32_t budget_tokens(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                      const RowFormat& format) {
  return int32_t(std::floor(real_budget(kind, value, prompt, layer, format)));
}

BudgetList budgets_for(const MethodInstance& instance, const BudgetList& list) {
  const double share = instance.method().info.default_fraction;
  if (!list.values.empty() || share == 0) return list;
  return {BudgetList::Kind::fraction_kept, {share}, {instance.mark}};
}

bool runs_without_budget(const MethodInstance& instance, const BudgetList& list) {
  return !instance.values.takes_budget() || (list.values.empty() && !instance.method().lists_in.empty());
}

}  // namespace kvreplay
