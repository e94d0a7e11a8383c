#include "allocation/shared_budgets.hpp"

#include <algorithm>
#include <new>

#include "allocation/allocator_files.hpp"
#include "allocation/gates_file.hpp"
#include "allocation/head_scoring.hpp"
#include "allocation/learned_budgets.hpp"
#include "allocation/lu_kv.hpp"
#include "allocation/zigzag.hpp"
#include "base/errors.hpp"

namespace kvreplay {

std::vector<Place> heads_of(const std::vector<Place>& layers) {
  std::vector<Place> heads;
  for (const Place& layer : layers)
    for (int32_t h = 0; h < layer.kv_head; ++h) heads.push_back({layer.trace, "", layer.layer, h});
  return heads;
}
size_t place_of(const Cell& cell, const std::vector<Place>& heads) {
  const Place own{cell.place.trace, "", cell.place.layer, cell.place.kv_head};
  return size_t(std::find(heads.begin(), heads.end(), own) - heads.begin());
}

void give(Cell& cell, int32_t tokens) {
  try {
    set_share(cell, tokens);
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method().info.name) + ", layer " + std::to_string(cell.place.layer) +
                      ", kv head " + std::to_string(cell.place.kv_head) + ": the allocator gives it " +
                      std::to_string(tokens) + " tokens, and " + e.what());
  }
  const Calibration* from = calibration_heads(cell.variant->values, cell.options());
  if (from == nullptr) return;
  if (from->is_offline()) cell.allocator_says["offline"] = 1;
  else if (by_curves(cell)) cell.allocator_says["sees_future"] = 1;
}

double excess_tokens(const std::vector<int32_t>& tokens, const Cell& like) {
  double sum = 0;
  for (const int32_t t : tokens) sum += std::min(t, like.extent.prompt_tokens) - like.budget.tokens;
  return sum;
}

void stream_ends(Cell& cell, Protect ends) {
  cell.budget.share = ends.sinks + ends.recent;
  const auto named = std::make_shared<const Cell>(cell);
  Variant own = *cell.variant;
  own.values = values_of(cell, "streaming_llm");
  own.values.set(*own.values.method().parameter("sinks"), std::to_string(ends.sinks));
  CommonOptions options;
  options.positions = cell.options().positions, options.row_format = cell.options().row_format;
  own.options = options;
  cell.variant = std::make_shared<const Variant>(own);
  own.params = shown_params(BoundMethod(own.values, cell.context()), own);
  cell.variant = std::make_shared<const Variant>(std::move(own));
  cell.named = named;
}

namespace {

constexpr double kPyramidSlope = 20;  // PyramidKV's published default
constexpr double kAdaFloor = 0.2;

// The smallest share must hold what the method protects, which may itself depend on the share.
int32_t by_pyramid(const Cell& cell) {
  const int32_t budget = cell.budget.tokens;
  int32_t window = 0;
  try {
    window = window_of(cell, std::max(1, int32_t(budget / kPyramidSlope)));
  } catch (const ParameterError&) {
    window = window_of(cell, budget);
  }
  const Pyramid pyramid{double(budget), kPyramidSlope, window, cell.extent.prompt_tokens,
                        cell.variant->trace->n_layers};
  return pyramid.tokens(cell.place.layer);
}

int32_t by_window(const Cell& cell, const std::vector<Place>& layers, const std::vector<int32_t>& windows) {
  WindowBudgets kinds{double(cell.budget.tokens), cell.options().window_share, 0, 0,
                      cell.extent.prompt_tokens,  cell.extent.prompt_tokens};
  bool has_window = false;
  for (size_t i = 0; i < layers.size(); ++i) {
    (windows[i] > 0 ? kinds.windowed : kinds.full) += layers[i].kv_head;
    if (windows[i] > 0) kinds.window = std::min(kinds.window, windows[i]);
    if (layers[i].layer == cell.place.layer) has_window = windows[i] > 0;
  }
  return kinds.tokens(has_window);
}

bool fits(const Cell& cell) { return cell.budget.tokens >= cell.extent.prompt_tokens; }

// False for heads that exchange scores but keep equal budgets.
bool divides_budget(const Cell& cell) {
  const MethodValues& values = cell.variant->values;
  return values.shares_budget() || values.traits().shared_over == SharedOver::none;
}

// One budget and the cells that share it: those of a method instance, budget and seed on one layer or in one model.
struct SharedBudget : SharedScoring {
  void divide() {
    const BoundMethod method(cell.variant->values, cell.context());
    const HostHooks& host = method.method().host;
    if (host.hear != nullptr)
      for (Cell* one : cells) tell(*one, heads);
    if (divides_budget(cell)) share_out(method, host.share);
  }

 private:
  void share_out(const BoundMethod& method, decltype(HostHooks::share) rule) {
    const int32_t budget = cells.front()->budget.tokens;
    std::vector<int32_t> tokens;
    if (by_curves(cell)) tokens = lu_kv_tokens(heads, budget);
    else if (by_masses(cell)) tokens = zigzag_tokens(heads, budget, cells.front()->extent.prompt_tokens);
    else if (by_reach(*cells.front())) return share_by_reach(*cells.front(), method, heads, receivers());
    else if (rule != nullptr) tokens = rule(method.policy(), method.context(), heads);
    else tokens = ada_tokens(heads, budget, kAdaFloor);
    const bool exact = rule == nullptr || cell.method().info.exact_budget;
    for (const Receiver& one : receivers()) {
      if (!exact) one.cell->allocator_says["allocated_excess"] = excess_tokens(tokens, *one.cell);
      give(*one.cell, tokens[one.head]);
    }
  }
  std::vector<Receiver> receivers() const {
    std::vector<Receiver> all;
    for (Cell* one : cells)
      for (size_t i = 0; i < heads.size(); ++i)
        if (heads[i].layer == one->place.layer && heads[i].kv_head == one->place.kv_head) all.push_back({one, i});
    return all;
  }
};

// Cells of one name share. Where the budget is not divided, the heads' scores do not depend on it.
std::string name_of(const Cell& cell, SharedOver over) {
  const std::string where = std::to_string(over == SharedOver::layer ? cell.place.layer : -1);
  const int32_t budget = divides_budget(cell) ? cell.budget.tokens : 0;
  return where + " " + scoring_name(cell, budget);
}

// The shared budgets of one prompt.
class PromptBudgets {
 public:
  void add(Cell& cell) {
    const SharedOver over = shared_over(cell);
    const auto [at, is_new] = budgets_.try_emplace(name_of(cell, over), SharedBudget{{{over, cell}}});
    if (is_new) at->second.cell = scoring_cell(cell);
    at->second.cells.push_back(&cell);
  }
  template <class Real>
  void divide(const std::vector<Place>& layers, const SharingOptions& options, const HeadSource<Real>& heads) {
    std::vector<Scoring*> scorings;
    for (auto& [name, budget] : budgets_) scorings.push_back(&budget);
    score_prompt<Real>(scorings, layers, options, heads, [](Scoring& of) { static_cast<SharedBudget&>(of).divide(); });
  }
  void list_lost(WithoutBudget& without) const {
    for (const auto& [name, budget] : budgets_) budget.list_lost(without);
  }

 private:
  std::map<std::string, SharedBudget> budgets_;
};

// For a head whose share needs no other head's scores.
void share_alone(Cell& cell, const std::vector<Place>& layers, const std::vector<int32_t>& windows) {
  if (!gates_of(cell).empty()) return share_by_gates(cell, layers);
  if (cell.options().allocator == Allocator::headkv) return share_by_importance(cell, layers);
  if (cell.options().allocator == Allocator::pyramid) return give(cell, by_pyramid(cell));
  if (cell.options().allocator == Allocator::windows) return give(cell, by_window(cell, layers, windows));
  if (cell.options().allocator != Allocator::file) return;
  const auto layer =
      std::find_if(layers.begin(), layers.end(), [&](const Place& l) { return l.layer == cell.place.layer; });
  give(cell, tokens_in_file(cell.options().allocator_file, cell.place.layer, cell.place.kv_head, layer->kv_head));
}

template <class Real>
void share_prompt(const std::vector<Cell*>& sharing, const SharingOptions& options, const HeadSource<Real>& heads,
                  const CalibratedBudgets<Real>& learned, WithoutBudget& without) {
  const Place& at = sharing.front()->place;
  const std::vector<Place> layers = heads.layers(at.trace, at.prompt);
  const bool by_windows = std::any_of(sharing.begin(), sharing.end(),
                                      [](const Cell* cell) { return cell->options().allocator == Allocator::windows; });
  const std::vector<int32_t> windows = by_windows ? heads.windows(at.trace, at.prompt) : std::vector<int32_t>{};
  PromptBudgets budgets;
  CommonCutsOfPrompt cuts;
  for (Cell* cell : sharing) {
    if (cuts_together(*cell)) {
      cuts.add(*cell);
      continue;
    }
    const bool alone = has_fixed_share(*cell),
               by_file = !cell->options().allocator_file.empty() || !gates_of(*cell).empty();
    if (!alone && fits(*cell)) continue;
    if (!alone && !by_file && !learned.is_for(*cell)) {
      budgets.add(*cell);
      continue;
    }
    try {
      if (alone || by_file) share_alone(*cell, layers, windows);
      else give(*cell, learned.tokens(*cell, layers));
    } catch (...) {
      without[cell->key] = head_failure_reason(options.continue_on_head_failure);
    }
  }
  budgets.divide(layers, options, heads);
  budgets.list_lost(without);
  cuts.find(layers, options, heads);
  cuts.list_lost(without);
}

}  // namespace

std::string head_failure_reason(bool others_go_on) {
  if (!others_go_on) throw;
  try {
    throw;
  } catch (const TraceError& e) {
    return e.what();
  } catch (const ConfigError& e) {
    return e.what();
  } catch (const std::bad_alloc&) {
    return "out of memory: fewer --jobs need less, and so do fewer methods at a time";
  }
}

template <class Real>
WithoutBudget share_budgets(std::vector<Cell>& cells, const SharingOptions& options, const HeadSource<Real>& heads) {
  WithoutBudget without;
  std::map<std::pair<size_t, std::string>, std::vector<Cell*>> prompts;
  for (Cell& cell : cells)
    if (shared_over(cell) != SharedOver::none) prompts[{cell.place.trace, cell.place.prompt}].push_back(&cell);
  CalibratedBudgets<Real> learned(options, heads);
  for (const Cell& cell : cells)
    if (learned.is_for(cell) && !fits(cell)) learned.add(cell);
  learned.learn();
  for (const auto& [place, sharing] : prompts) {
    try {
      share_prompt<Real>(sharing, options, heads, learned, without);
    } catch (...) {
      const std::string why = head_failure_reason(options.continue_on_head_failure);
      for (const Cell* cell : sharing) without[cell->key] = why;
    }
    if (options.stop && options.stop()) break;
  }
  return without;
}

template WithoutBudget share_budgets(std::vector<Cell>&, const SharingOptions&, const HeadSource<float>&);
template WithoutBudget share_budgets(std::vector<Cell>&, const SharingOptions&, const HeadSource<double>&);

}  // namespace kvreplay
