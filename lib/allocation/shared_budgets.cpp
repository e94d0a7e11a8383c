#include "allocation/shared_budgets.hpp"

#include <algorithm>
#include <new>

#include "allocation/budget_file.hpp"
#include "allocation/lu_kv.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "caches/cell_setup.hpp"
#include "caches/prompt_reading.hpp"
#include "core/share.hpp"

namespace kvreplay {
namespace {

constexpr double kPyramidSlope = 20;  // the published defaults
constexpr double kAdaFloor = 0.2;
constexpr int32_t kCakeWindow = 32;

void give(Cell& cell, int32_t tokens) {
  try {
    set_share(cell, tokens);
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method().info.name) + ", layer " + std::to_string(cell.place.layer) +
                      ", kv head " + std::to_string(cell.place.kv_head) + ": the allocator gives it " +
                      std::to_string(tokens) + " tokens, and " + e.what());
  }
}

// The last prompt tokens that a method protects with this budget: an observation window, or its recent tokens.
int32_t window_of(const Cell& cell, int32_t budget) {
  if (!cell.method().scores_prompt) return 0;
  MethodContext context = cell.context();
  context.budget.tokens = budget;
  return BoundMethod(cell.variant->values, context).protection().recent;
}

// The smallest share must hold what the method protects, which may itself be a part of the share.
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

// The cell whose method scores the prompt where `like` shares a budget. CAKE's rule stands in its own method, which
// scores for whoever uses the rule.
Cell scoring_cell(const Cell& like) {
  Cell cell = like;
  Variant own = *like.variant;
  own.options.row_format = {}, own.options.wrapper = {};
  if (like.variant->values.shared_over() == SharedOver::none && like.options().allocator == Allocator::cake) {
    const Method* cake = find_method(registry(), "cake");
    if (cake == nullptr)
      throw ConfigError(std::string(like.method().info.name) +
                        ": allocator cake needs the method cake, which this program was built without");
    own.values = MethodValues(*cake);
    own.options = own.values.default_options();
    const int32_t protects = window_of(like, like.budget.tokens);
    const int32_t window = protects < 2 ? std::min(kCakeWindow, like.budget.tokens - 1) : protects;
    own.values.set(*cake->parameter("w"), std::to_string(window));
    try {
      (void)BoundMethod(own.values, cell.context());
    } catch (const ParameterError& e) {
      throw ConfigError(std::string(like.method().info.name) + ": allocator cake: " + e.what());
    }
  }
  cell.variant = std::make_shared<const Variant>(std::move(own));
  return cell;
}

// Heads may hear each other and keep the same budget.
bool divides_budget(const Cell& cell) {
  const MethodValues& values = cell.variant->values;
  return values.shares_budget() || values.shared_over() == SharedOver::none;
}

bool by_curves(const Cell& cell) { return cell.options().allocator == Allocator::lu_kv; }

// One budget, and who shares it: the cells of a method instance, budget and seed on one layer or one model.
struct SharedBudget {
  SharedOver over;
  Cell scoring;  // its method says what the heads are worth
  std::vector<Cell*> cells;
  std::vector<HeadScores> heads = {};
  std::string lost = {};  // why its heads cannot all be scored

  // Where the rule of a model looks at every score: at those of each layer it always may.
  bool by_scores() const { return scoring.method().host.shares != nullptr; }
  bool needs(int32_t layer) const {
    return lost.empty() && (over == SharedOver::model || layer == scoring.place.layer);
  }
  void divide() {
    const BoundMethod method(scoring.variant->values, scoring.context());
    const HostHooks& host = method.method().host;
    if (host.hear != nullptr)
      for (Cell* cell : cells) tell(*cell, heads);
    if (divides_budget(scoring)) share_out(method, host.share);
    heads.clear();
  }

 private:
  void share_out(const BoundMethod& method, decltype(HostHooks::share) rule) {
    const std::vector<int32_t> tokens = by_curves(scoring) ? lu_kv_tokens(heads, scoring.budget.tokens)
                                        : rule != nullptr  ? rule(method.policy(), method.context(), heads)
                                                           : ada_tokens(heads, scoring.budget.tokens, kAdaFloor);
    for (Cell* cell : cells)
      for (size_t i = 0; i < heads.size(); ++i)
        if (heads[i].layer == cell->place.layer && heads[i].kv_head == cell->place.kv_head) give(*cell, tokens[i]);
  }
};

// Which cells share: those of one name. What heads say does not depend on a budget that nobody divides.
std::string name_of(const Cell& cell, SharedOver over) {
  const std::string where = std::to_string(over == SharedOver::layer ? cell.place.layer : -1);
  const int32_t budget = divides_budget(cell) ? cell.budget.tokens : 0;
  return where + " " + std::to_string(cell.variant->instance) + " " + std::to_string(budget) + " " +
         std::to_string(cell.seed.value_or(0));
}

template <class Real>
HeadStream<Real> load_head_for(const std::vector<SharedBudget*>& budgets, const Place& at,
                               const HeadSource<Real>& heads) {
  HeadRequest request;
  request.place = at, request.extent = budgets.front()->scoring.extent;
  for (const SharedBudget* b : budgets) {
    const BoundMethod method(b->scoring.variant->values, b->scoring.context());
    request.ask_for(method.needs(), method.calibration());
    const LuKv& rule = b->scoring.options().lu_kv;
    request.output_norms = request.output_norms || (by_curves(b->scoring) && rule.weight == LuKv::Weight::contrib);
  }
  return heads.load(request);
}

// What one head says to each budget.
template <class Real>
std::vector<HeadScores> score_head(const HeadStream<Real>& stream, const Place& at,
                                   const std::vector<SharedBudget*>& budgets, const SharingOptions& options) {
  PromptReading<Real> prompt;
  std::vector<std::vector<double>> uniforms;
  std::vector<std::unique_ptr<CacheReplay<Real>>> caches;
  for (const SharedBudget* budget : budgets) {
    Cell cell = budget->scoring;
    cell.place.layer = at.layer, cell.place.kv_head = at.kv_head;
    CacheSetup setup = cell_setup(cell, stream);
    inject(cell, setup, uniforms);
    caches.push_back(std::make_unique<CacheReplay<Real>>(std::move(setup), stream, CacheWatch{options.audit}));
    if (!caches.back()->streams_prompt()) prompt.add(*caches.back());
    if (by_curves(cell)) prompt.ask_future();
  }
  const ExactAttention<Real> exact(stream);
  prompt.sum([&](const PromptPass& pass) { return prompt_pass(exact, pass); },
             [&] { return future_sums(exact, scored_tokens(stream, options.queries)); },
             [&] { return options.stop && options.stop(); });
  std::vector<HeadScores> all(caches.size());
  for (size_t i = 0; i < caches.size(); ++i) {
    const bool streams = caches[i]->streams_prompt();
    try {
      if (!streams) all[i] = caches[i]->head_scores(prompt.sums_of(*caches[i]));
    } catch (const ReplayError& e) {  // of this method alone
      budgets[i]->lost = e.what();
      continue;
    }
    if (streams || all[i].scores.empty())
      throw ConfigError(std::string(caches[i]->method().method().info.name) +
                        " takes the prompt token by token with these parameters, so it has no scores of the "
                        "prompt by which a budget could be shared: leave out allocator");
    all[i].layer = at.layer, all[i].kv_head = at.kv_head;
    if (by_curves(budgets[i]->scoring))
      add_lu_kv_slopes(budgets[i]->scoring.options().lu_kv, stream, prompt.future_sums(), all[i]);
    if (budgets[i]->over == SharedOver::model && !budgets[i]->by_scores()) all[i].scores = {};
  }
  return all;
}

// The shared budgets of one prompt.
template <class Real>
class PromptBudgets {
 public:
  PromptBudgets(const SharingOptions& options, const HeadSource<Real>& heads) : options_(options), heads_(heads) {}

  void add(Cell& cell, SharedOver over) {
    const auto [at, is_new] = budgets_.try_emplace(name_of(cell, over), SharedBudget{over, cell, {}});
    if (is_new) at->second.scoring = scoring_cell(cell);
    at->second.cells.push_back(&cell);
  }
  // All heads of the prompt are scored, whichever of them are to be replayed: a share does not depend on that.
  void divide(const std::vector<Place>& layers) {
    for (const Place& layer : layers) {
      std::vector<SharedBudget*> asking;
      for (auto& [name, budget] : budgets_)
        if (budget.needs(layer.layer)) asking.push_back(&budget);
      if (!asking.empty()) unless_lost(asking, [&] { score_layer(layer, asking); });
      if (stopped()) return;
      for (SharedBudget* budget : asking)
        if (budget->over == SharedOver::layer && budget->lost.empty()) unless_lost({budget}, [&] { budget->divide(); });
    }
    for (auto& entry : budgets_) {
      SharedBudget* budget = &entry.second;
      if (budget->over == SharedOver::model && budget->lost.empty()) unless_lost({budget}, [&] { budget->divide(); });
    }
  }
  void list_lost(WithoutBudget& without) const {
    for (const auto& [name, budget] : budgets_)
      for (const Cell* cell : budget.cells)
        if (!budget.lost.empty()) without[cell->key] = budget.lost;
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }
  template <class Work>
  void unless_lost(const std::vector<SharedBudget*>& budgets, Work work) {
    try {
      work();
    } catch (...) {
      const std::string why = why_head_is_lost(options_.outlive_heads);
      for (SharedBudget* budget : budgets) budget->lost = why;
    }
  }
  void score_layer(const Place& layer, const std::vector<SharedBudget*>& asking) {
    std::vector<std::vector<HeadScores>> scores(size_t(layer.kv_head));
    FirstError error;
    for_each_on_threads(options_.jobs, scores.size(), error, [&](size_t h) {
      if (stopped()) return;
      Place at = asking.front()->scoring.place;
      at.layer = layer.layer, at.kv_head = int32_t(h);
      const HeadStream<Real> stream = load_head_for(asking, at, heads_);
      scores[h] = score_head(stream, at, asking, options_);
    });
    for (const auto& of_head : scores)
      for (size_t i = 0; i < of_head.size(); ++i) asking[i]->heads.push_back(of_head[i]);
  }

  const SharingOptions& options_;
  const HeadSource<Real>& heads_;
  std::map<std::string, SharedBudget> budgets_;
};

// A head whose share needs no other head.
void share_alone(Cell& cell, const std::vector<Place>& layers) {
  if (cell.options().allocator == Allocator::pyramid) return give(cell, by_pyramid(cell));
  if (cell.options().allocator != Allocator::file) return;
  const auto layer =
      std::find_if(layers.begin(), layers.end(), [&](const Place& l) { return l.layer == cell.place.layer; });
  give(cell, tokens_in_file(cell.options().allocator_file, cell.place.layer, cell.place.kv_head, layer->kv_head));
}

template <class Real>
void share_prompt(const std::vector<Cell*>& sharing, const SharingOptions& options, const HeadSource<Real>& heads,
                  const std::vector<Place>& layers, WithoutBudget& without) {
  PromptBudgets<Real> budgets(options, heads);
  for (Cell* cell : sharing) {
    if (!needs_no_other_head(*cell)) {
      if (cell->budget.tokens < cell->extent.prompt_tokens) budgets.add(*cell, shared_over(*cell));
      continue;
    }
    try {
      share_alone(*cell, layers);
    } catch (...) {
      without[cell->key] = why_head_is_lost(options.outlive_heads);
    }
  }
  budgets.divide(layers);
  budgets.list_lost(without);
}

}  // namespace

std::string why_head_is_lost(bool others_go_on) {
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
  for (const auto& [place, sharing] : prompts) {
    try {
      share_prompt<Real>(sharing, options, heads, heads.layers(place.first, place.second), without);
    } catch (...) {
      const std::string why = why_head_is_lost(options.outlive_heads);
      for (const Cell* cell : sharing) without[cell->key] = why;
    }
    if (options.stop && options.stop()) break;
  }
  return without;
}

template WithoutBudget share_budgets(std::vector<Cell>&, const SharingOptions&, const HeadSource<float>&);
template WithoutBudget share_budgets(std::vector<Cell>&, const SharingOptions&, const HeadSource<double>&);

}  // namespace kvreplay
