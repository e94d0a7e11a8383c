#include "allocation/head_reach.hpp"

#include <algorithm>

#include "allocation/importance_file.hpp"
#include "base/errors.hpp"
#include "core/head_budgets.hpp"

namespace kvreplay {
namespace {

std::string name_of_rule(const Cell& cell) {
  return std::string(cell.method().info.name) + ": allocator " + word(cell.options().allocator);
}

// Prompt tokens that all heads together hold beyond one budget per head.
double excess(const std::vector<int32_t>& tokens, const Cell& like) {
  double sum = 0;
  for (const int32_t t : tokens) sum += std::min(t, like.extent.prompt_tokens) - like.budget.tokens;
  return sum;
}

void give_duo(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
              const std::vector<Receiver>& to) {
  const Protect ends = looking.protection();
  std::vector<bool> streams;
  for (const int32_t held : looking.method().host.share(looking.policy(), looking.context(), heads))
    streams.push_back(held < looking.context().tokens);
  const int32_t each = ends.sinks + ends.recent;
  const std::vector<int32_t> tokens = duo_tokens(streams, like.budget.tokens, each, like.extent.prompt_tokens);
  if (tokens.empty())
    throw ConfigError(name_of_rule(like) + ": streaming heads hold sinks " + std::to_string(ends.sinks) + " + recent " +
                      std::to_string(ends.recent) + " tokens each, which leaves the others nothing of a budget of " +
                      std::to_string(like.budget.tokens) + " a head: make sinks, recent or stream_frac smaller");
  for (const Receiver& one : to) {
    one.cell->allocator_says = {{"streams", streams[one.head] ? 1.0 : 0.0}, {"allocated_excess", excess(tokens, like)}};
    if (streams[one.head]) stream_ends(*one.cell, ends);
    else give(*one.cell, tokens[one.head]);
  }
}

// The window is the one that the scorer protects.
std::vector<int32_t> headkv(const Cell& like, const std::vector<double>& importance) {
  if (std::none_of(importance.begin(), importance.end(), [](double i) { return i > 0; }))
    throw ConfigError(name_of_rule(like) +
                      ": no head has any importance. Importance mass looks beyond sinks + recent "
                      "tokens of the prompt: make them smaller than the prompt");
  const Protect protect = BoundMethod(like.variant->values, like.context()).protection();
  const HeadKv& rule = like.options().headkv;
  return headkv_tokens(importance, like.budget.tokens, std::min(protect.sinks + protect.recent, like.budget.tokens),
                       rule.beta, rule.temp);
}

void give_headkv(Cell& cell, const std::vector<int32_t>& tokens, size_t head) {
  cell.allocator_says = {{"allocated_excess", excess(tokens, cell)}};
  give(cell, std::min(tokens[head], cell.extent.prompt_tokens));
}

}  // namespace

void share_by_reach(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
                    const std::vector<Receiver>& to) {
  if (like.options().allocator == Allocator::duo) return give_duo(like, looking, heads, to);
  std::vector<double> importance;
  for (const HeadScores& head : heads) importance.push_back(head.extras.at(0));
  const std::vector<int32_t> tokens = headkv(like, importance);
  for (const Receiver& one : to) give_headkv(*one.cell, tokens, one.head);
}

void share_by_importance(Cell& cell, const std::vector<Place>& layers) {
  const std::vector<Place> heads = heads_of(layers);
  const std::vector<double> importance =
      importance_in_file(cell.options().allocator_file, heads, cell.variant->shape.heads);
  give_headkv(cell, headkv(cell, importance), place_of(cell, heads));
}

}  // namespace kvreplay
