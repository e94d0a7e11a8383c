#include "config/later_method.hpp"

#include "config/budget.hpp"
#include "config/method_keys.hpp"
#include "config/sections.hpp"
#include "config/serving.hpp"
#include "config/values.hpp"

namespace kvreplay {
namespace {

constexpr const char* kBudget = "budget";

// The budget of its own, or none.
Budget read_own_budget(const Node& entry, Problems& problems) {
  const Node* node = entry.kind == Node::Kind::map ? entry.find(kBudget) : nullptr;
  if (node == nullptr) return {};
  RunConfig own;
  read_budget(own, node, entry.key_mark(kBudget), problems);
  const BudgetList& list = own.budget;
  const bool one = list.values.size() == 1 && !list.has_shares();
  if (one && list.kind == BudgetList::Kind::tokens) return {int32_t(list.values[0]), list.values[0]};
  if (one && list.kind == BudgetList::Kind::ratio_of_seen) return {.growth = {list.values[0], list.floor}};
  if (!list.values.empty() || list.has_shares())
    problems.error(node->mark,
                   "then.budget takes one number of tokens, or one ratio_of_seen: write an entry of `methods:` for "
                   "every combination");
  return {};
}

}  // namespace

std::shared_ptr<const LaterMethod> read_later_method(const Key& key, const Node& value, Problems& problems,
                                                     const std::function<void(RunConfig&, const Node&)>& read) {
  const size_t before = problems.errors();
  RunConfig own;
  read(own, without(value, {kBudget}));
  const Budget budget = read_own_budget(value, problems);
  if (problems.errors() > before) return nullptr;
  if (own.methods.size() != 1) {
    problems.error(key.mark,
                   "then takes one method, with one value for each parameter: write an entry of `methods:` for every "
                   "combination");
    return nullptr;
  }
  const MethodInstance& m = own.methods.front();
  if (!m.uniforms.empty() || m.values.calibration().is_offline()) {
    problems.error(key.mark, Refusal{.methods = {m.named()},
                                     .rule = "a method inside then draws its own numbers and learns from the prompt "
                                             "itself: leave out uniforms and calibration"});
    return nullptr;
  }
  if (const std::string why = later_problem(m, problems.words()); !why.empty()) {
    problems.error(key.mark, Refusal{.methods = {m.named()}, .rule = why});
    return nullptr;
  }
  return std::make_shared<LaterMethod>(LaterMethod{m.values, m.options, budget});
}

}  // namespace kvreplay
