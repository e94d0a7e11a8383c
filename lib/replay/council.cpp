#include "replay/council.hpp"

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "base/first_error.hpp"
#include "base/text.hpp"
#include "core/share.hpp"
#include "replay/budget_file.hpp"
#include "replay/failures.hpp"
#include "replay/head_replay.hpp"

namespace kvreplay {
namespace {

constexpr double kPyramidSlope = 20;  // the published defaults
constexpr double kAdaFloor = 0.2;
constexpr int32_t kCakeWindow = 32;

// From here on the cell is one with a budget of its own: what followed from the shared one follows from it.
void allocate(Cell& cell, int32_t tokens) {
  cell.allocated = tokens;
  try {
    cell.params.update(cell.method->resolve(cell.given, cell.context()));
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method->info.name) + ", layer " + std::to_string(cell.layer) +
                      ", kv head " + std::to_string(cell.kv_head) + ": the allocator gives it " +
                      std::to_string(tokens) + " tokens, and " + e.what());
  }
}

// The last prompt tokens that a method protects with this budget: an observation window, or its recent
// tokens.
int32_t window_of(const Cell& cell, int32_t budget) {
  if (!cell.method->protection) return 0;
  MethodContext context = cell.context();
  context.budget = budget;
  return cell.method->protection(cell.given, context).recent;
}

// The smallest share must hold what the method protects, which may itself be a part of the share.
int32_t by_pyramid(const Cell& cell) {
  int32_t window = 0;
  try {
    window = window_of(cell, std::max(1, int32_t(*cell.budget / kPyramidSlope)));
  } catch (const ParameterError&) {
    window = window_of(cell, *cell.budget);
  }
  return Pyramid{double(*cell.budget), kPyramidSlope, window, cell.n_prefill, cell.n_layers}.tokens(
      cell.layer);
}

// Who speaks for a cell. CAKE's rule stands in its own method, which is asked whoever uses the rule.
Cell witness_of(const Cell& like) {
  Cell cell = like;
  cell.options.row_format = {};
  if (like.method->shared_over != SharedOver::none || like.options.allocator != Allocator::cake) return cell;
  cell.method = find_method(registry(), "cake");
  if (cell.method == nullptr)
    throw ConfigError(std::string(like.method->info.name) +
                      ": allocator cake needs the method cake, which this program was built without");
  cell.options = cell.method->default_options(nlohmann::json::object());
  const int32_t own = window_of(like, *like.budget);
  const int32_t window = own < 2 ? std::min(kCakeWindow, *like.budget - 1) : own;
  try {
    cell.params = cell.method->resolve({{"w", window}}, cell.context());
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(like.method->info.name) + ": allocator cake: " + e.what());
  }
  return cell;
}

// Cells that share one budget: the same method instance, budget and seed on one layer or one model.
struct Company {
  SharedOver shared_over;
  Cell witness;
  std::vector<Cell*> cells;
  std::vector<HeadScores> heads;

  std::string lost = {};  // why its heads cannot all be heard

  bool hears(int32_t layer) const {
    return lost.empty() && (shared_over == SharedOver::model || layer == witness.layer);
  }
  void settle() const {
    const std::vector<int32_t> tokens = witness.method->share
                                            ? witness.method->share(witness.params, witness.context(), heads)
                                            : ada_tokens(heads, *witness.budget, kAdaFloor);
    for (Cell* cell : cells)
      for (size_t i = 0; i < heads.size(); ++i)
        if (heads[i].layer == cell->layer && heads[i].kv_head == cell->kv_head) allocate(*cell, tokens[i]);
  }
};

std::string name_of(const Cell& cell, SharedOver shared_over) {
  const nlohmann::json name = {shared_over == SharedOver::layer ? cell.layer : -1,
                               cell.method->info.name,
                               cell.given,
                               to_json(cell.options),
                               *cell.budget,
                               cell.seed.value_or(0)};
  return canonical(name);
}

// The companies of one prompt.
template <class Real>
class Hearing {
 public:
  Hearing(const RunOptions& options, const LoadHead<Real>& load) : options_(options), load_(load) {}

  void add(Cell& cell, SharedOver shared_over) {
    const auto [at, is_new] = companies_.try_emplace(name_of(cell, shared_over));
    if (is_new) at->second = {shared_over, witness_of(cell), {}, {}};
    at->second.cells.push_back(&cell);
  }
  // All heads of the prompt speak, whichever of them are to be replayed: a share does not depend on that.
  void hold(const std::vector<HeldLayer>& layers) {
    for (const HeldLayer& held : layers) {
      std::vector<Company*> present;
      for (auto& [name, company] : companies_)
        if (company.hears(held.layer)) present.push_back(&company);
      unless_lost(present, [&] {
        if (!present.empty()) hear(held, present);
      });
      if (stopped()) return;
      for (Company* company : present)
        if (company->shared_over == SharedOver::layer)
          unless_lost({company}, [&] { company->settle(), company->heads.clear(); });
    }
    for (auto& [name, company] : companies_)
      if (company.shared_over == SharedOver::model && company.lost.empty())
        unless_lost({&company}, [&] { company.settle(); });
  }
  void tell_lost(WithoutBudget& without) const {
    for (const auto& [name, company] : companies_)
      for (const Cell* cell : company.cells)
        if (!company.lost.empty()) without[cell->key] = company.lost;
  }

 private:
  template <class Work>
  void unless_lost(const std::vector<Company*>& companies, Work work) {
    try {
      work();
    } catch (...) {
      const std::string why = why_head_is_lost(options_.outlive_heads);
      for (Company* company : companies) company->lost = why;
    }
  }
  void hear(const HeldLayer& held, const std::vector<Company*>& present) {
    std::vector<std::vector<HeadScores>> said(size_t(held.kv_heads));
    FirstError error;
#pragma omp parallel for schedule(dynamic, 1) num_threads(options_.jobs)
    for (int32_t h = 0; h < held.kv_heads; ++h) {
      if (error.stopped() || stopped()) continue;
      try {
        said[size_t(h)] = head_scores_of(held.layer, h, present);
      } catch (...) {
        error.keep(std::current_exception());
      }
    }
    error.rethrow();
    for (const auto& of_head : said)
      for (size_t c = 0; c < of_head.size(); ++c) present[c]->heads.push_back(of_head[c]);
  }
  std::vector<HeadScores> head_scores_of(int32_t layer, int32_t kv_head,
                                         const std::vector<Company*>& present) {
    const Cell& any = present.front()->witness;
    const HeadStream<Real> stream = load_(
        any.trace, {any.prompt, layer, kv_head, any.n_tokens, any.n_prefill, false, needs_classes(present)});
    HeadReplay<Real> replay(stream, options_);
    std::vector<Cell> cells;
    for (const Company* company : present) cells.push_back(company->witness);
    for (Cell& cell : cells) cell.layer = layer, cell.kv_head = kv_head, replay.add(cell);
    std::vector<HeadScores> all = replay.head_scores();
    for (size_t c = 0; c < all.size(); ++c) {
      if (all[c].scores.empty())
        throw ConfigError(
            std::string(cells[c].method->info.name) +
            " takes the prompt token by token with these parameters, so it has no scores of the "
            "prompt by which a budget could be shared: leave out allocator");
      all[c].layer = layer, all[c].kv_head = kv_head;
      if (present[c]->shared_over == SharedOver::model) all[c].scores = {};
    }
    return all;
  }
  bool stopped() const { return options_.stop && options_.stop(); }
  static bool needs_classes(const std::vector<Company*>& present) {
    return std::any_of(present.begin(), present.end(), [](const Company* c) {
      return c->witness.method->needs(c->witness.params, c->witness.context()).token_classes;
    });
  }
  const RunOptions& options_;
  const LoadHead<Real>& load_;
  std::map<std::string, Company> companies_;
};

int32_t kv_heads_of(const std::vector<HeldLayer>& layers, int32_t layer) {
  return std::find_if(layers.begin(), layers.end(), [&](const HeldLayer& l) { return l.layer == layer; })
      ->kv_heads;
}

// A head whose number needs no other head.
void allocate_alone(Cell& cell, const std::vector<HeldLayer>& layers) {
  if (cell.options.allocator == Allocator::pyramid) allocate(cell, by_pyramid(cell));
  if (cell.options.allocator == Allocator::file)
    allocate(cell, tokens_in_file(cell.options.allocator_file, cell.layer, cell.kv_head,
                                  kv_heads_of(layers, cell.layer)));
}

// Cells of one prompt whose budgets somebody allocates.
template <class Real>
void allocate_prompt(const std::vector<Cell*>& sharing, const RunOptions& options, const LoadHead<Real>& load,
                     const std::vector<HeldLayer>& layers, WithoutBudget& without) {
  Hearing<Real> hearing(options, load);
  for (Cell* cell : sharing) {
    if (!needs_no_other_head(*cell)) {
      if (*cell->budget < cell->n_prefill) hearing.add(*cell, shared_over_of(*cell));
      continue;
    }
    try {
      allocate_alone(*cell, layers);
    } catch (...) {
      without[cell->key] = why_head_is_lost(options.outlive_heads);
    }
  }
  hearing.hold(layers);
  hearing.tell_lost(without);
}

}  // namespace

template <class Real>
WithoutBudget allocate_budgets(std::vector<Cell>& cells, const RunOptions& options,
                               const LoadHead<Real>& load, const ListLayers& list_layers) {
  WithoutBudget without;
  std::map<std::pair<size_t, std::string>, std::vector<Cell*>> prompts;
  for (Cell& cell : cells)
    if (shared_over_of(cell) != SharedOver::none) prompts[{cell.trace, cell.prompt}].push_back(&cell);
  for (const auto& [place, sharing] : prompts) {
    try {
      allocate_prompt<Real>(sharing, options, load, list_layers(place.first, place.second), without);
    } catch (...) {
      const std::string why = why_head_is_lost(options.outlive_heads);
      for (const Cell* cell : sharing) without[cell->key] = why;
    }
    if (options.stop && options.stop()) break;
  }
  return without;
}

template WithoutBudget allocate_budgets(std::vector<Cell>&, const RunOptions&, const LoadHead<float>&,
                                        const ListLayers&);
template WithoutBudget allocate_budgets(std::vector<Cell>&, const RunOptions&, const LoadHead<double>&,
                                        const ListLayers&);

}  // namespace kvreplay
