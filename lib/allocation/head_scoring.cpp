#include "allocation/head_scoring.hpp"

#include <algorithm>
#include <memory>

#include "allocation/lu_kv.hpp"
#include "allocation/zigzag.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "caches/cell_setup.hpp"
#include "caches/prompt_reading.hpp"

namespace kvreplay {

namespace {

constexpr int32_t kCakeWindow = 32;

template <class Real>
HeadStream<Real> load_head_for(const std::vector<Scoring*>& scorings, const Place& at, const HeadSource<Real>& heads) {
  HeadRequest request;
  request.place = at, request.extent = scorings.front()->cell.extent;
  for (const Scoring* s : scorings) {
    const BoundMethod method(s->cell.variant->values, s->cell.context());
    request.add_needs(method.needs(), method.calibration());
    const LuKv& rule = s->cell.options().lu_kv;
    request.output_norms = request.output_norms || (by_curves(s->cell) && rule.weight == LuKv::Weight::contrib);
  }
  return heads.load(request);
}

// Scores of one head for each of the scorings.
template <class Real>
std::vector<HeadScores> score_head(const HeadStream<Real>& stream, const Place& at,
                                   const std::vector<Scoring*>& scorings, const SharingOptions& options) {
  PromptReading<Real> prompt;
  std::vector<std::vector<double>> uniforms;
  std::vector<std::unique_ptr<CacheReplay<Real>>> caches;
  for (const Scoring* scoring : scorings) {
    Cell cell = scoring->cell;
    cell.place.layer = at.layer, cell.place.kv_head = at.kv_head;
    CacheSetup setup = cell_setup(cell, stream);
    inject(cell, cell.place.kv_head, setup, uniforms);
    if (const auto told = scoring->cuts.find({at.layer, at.kv_head}); told != scoring->cuts.end())
      setup.given = given_lists(told->second);
    caches.push_back(std::make_unique<CacheReplay<Real>>(std::move(setup), stream, CacheWatch{options.audit}));
    if (!caches.back()->streams_prompt()) prompt.add(*caches.back());
    if (by_curves(cell)) prompt.request_future();
  }
  const ExactAttention<Real> exact(stream);
  prompt.sum([&](const PromptPass& pass) { return prompt_pass(exact, pass); },
             [&] { return future_sums(exact, scored_tokens(stream, options.queries)); },
             [&] { return options.stop && options.stop(); });
  std::vector<HeadScores> all(caches.size());
  for (size_t i = 0; i < caches.size(); ++i) {
    const bool streams = caches[i]->streams_prompt(), in_time = cuts_together(scorings[i]->cell);
    try {
      if (in_time) all[i] = caches[i]->prompt.cut_scores(prompt.sums_of(*caches[i]));
      else if (!streams) all[i] = caches[i]->prompt.head_scores(prompt.sums_of(*caches[i]));
    } catch (const ReplayError& e) {  // fails this method alone
      scorings[i]->lost = e.what();
      continue;
    }
    if (!in_time && (streams || all[i].scores.empty()))
      throw ConfigError(std::string(caches[i]->method().method().info.name) +
                        " takes the prompt token by token with these parameters, so it has no scores of the "
                        "prompt by which a budget could be shared: leave out allocator");
    all[i].layer = at.layer, all[i].kv_head = at.kv_head;
    if (by_curves(scorings[i]->cell))
      add_lu_kv_slopes(scorings[i]->cell.options().lu_kv, stream, prompt.future_sums(), all[i]);
    if (by_masses(scorings[i]->cell)) add_mass_tokens(scorings[i]->cell.options().zigzag, all[i]);
    if (scorings[i]->over == SharedOver::model && !scorings[i]->by_scores()) all[i].scores = {};
  }
  return all;
}

template <class Real>
struct PromptScoring {
  const SharingOptions& options;
  const HeadSource<Real>& heads;
  const std::function<void(Scoring&)>& ready;

  void run(const std::vector<Scoring*>& scorings, const std::vector<Place>& layers) const {
    for (const Place& layer : layers) {
      std::vector<Scoring*> asking;
      for (Scoring* scoring : scorings)
        if (scoring->needs(layer.layer)) asking.push_back(scoring);
      if (!asking.empty()) record_failure(asking, [&] { score_layer(layer, asking); });
      if (stopped()) return;
      for (Scoring* scoring : asking)
        if (scoring->over == SharedOver::layer) finish(*scoring);
    }
    for (Scoring* scoring : scorings)
      if (scoring->over == SharedOver::model) finish(*scoring);
  }

 private:
  bool stopped() const { return options.stop && options.stop(); }
  void finish(Scoring& scoring) const {
    if (scoring.lost.empty()) record_failure({&scoring}, [&] { ready(scoring); });
    scoring.heads.clear();
  }
  template <class Work>
  void record_failure(const std::vector<Scoring*>& scorings, Work work) const {
    try {
      work();
    } catch (...) {
      const std::string why = head_failure_reason(options.continue_on_head_failure);
      for (Scoring* scoring : scorings) scoring->lost = why;
    }
  }
  void score_layer(const Place& layer, const std::vector<Scoring*>& asking) const {
    std::vector<std::vector<HeadScores>> scores(size_t(layer.kv_head));
    FirstError error;
    for_each_on_threads(options.jobs, scores.size(), error, [&](size_t h) {
      if (stopped()) return;
      Place at = asking.front()->cell.place;
      at.layer = layer.layer, at.kv_head = int32_t(h);
      const HeadStream<Real> stream = load_head_for(asking, at, heads);
      scores[h] = score_head(stream, at, asking, options);
    });
    for (const auto& of_head : scores)
      for (size_t i = 0; i < of_head.size(); ++i) asking[i]->heads.push_back(of_head[i]);
  }
};

}  // namespace

std::string scoring_name(const Cell& cell, int32_t budget) {
  return std::to_string(cell.variant->instance) + " " + std::to_string(budget) + " " +
         std::to_string(cell.seed.value_or(0));
}

MethodValues values_of(const Cell& like, const char* name) {
  const Method* method = find_method(registry(), name);
  if (method != nullptr) return MethodValues(*method);
  throw ConfigError(std::string(like.method().info.name) + ": allocator " + word(like.options().allocator) +
                    " needs the method " + name + ", which this program was built without");
}

bool by_reach(const Cell& cell) {
  return cell.options().allocator == Allocator::duo || cell.options().allocator == Allocator::headkv;
}

bool by_curves(const Cell& cell) { return cell.options().allocator == Allocator::lu_kv; }

bool by_masses(const Cell& cell) { return cell.options().allocator == Allocator::zigzag; }

int32_t window_of(const Cell& cell, int32_t budget) {
  if (!cell.method().scores_prompt) return 0;
  MethodContext context = cell.context();
  context.budget.tokens = budget;
  return BoundMethod(cell.variant->values, context).protection().recent;
}

Cell scoring_cell(const Cell& like) {
  Cell cell = like;
  Variant own = *like.variant;
  own.options.row_format = {}, own.options.wrapper = {}, own.options.merge = {};
  if (by_reach(like)) {
    own.values = values_of(like, "duo_attention");
    for (const auto& [name, json] : like.options().looking) own.values.set(*own.values.method().parameter(name), json);
    own.options = own.values.default_options();
    cell.budget = {};  // if the budget is itself a share, it is a share of the scorer's rule
  }
  if (like.variant->values.traits().shared_over == SharedOver::none && like.options().allocator == Allocator::cake) {
    own.values = values_of(like, "cake");
    own.options = own.values.default_options();
    const int32_t protects = window_of(like, like.budget.tokens);
    const int32_t window = protects < 2 ? std::min(kCakeWindow, like.budget.tokens - 1) : protects;
    own.values.set(*own.values.method().parameter("w"), std::to_string(window));
    try {
      (void)BoundMethod(own.values, cell.context());
    } catch (const ParameterError& e) {
      throw ConfigError(std::string(like.method().info.name) + ": allocator cake: " + e.what());
    }
  }
  cell.variant = std::make_shared<const Variant>(std::move(own));
  return cell;
}

template <class Real>
void score_prompt(const std::vector<Scoring*>& scorings, const std::vector<Place>& layers,
                  const SharingOptions& options, const HeadSource<Real>& heads,
                  const std::function<void(Scoring&)>& ready) {
  PromptScoring<Real>{options, heads, ready}.run(scorings, layers);
}

template void score_prompt(const std::vector<Scoring*>&, const std::vector<Place>&, const SharingOptions&,
                           const HeadSource<float>&, const std::function<void(Scoring&)>&);
template void score_prompt(const std::vector<Scoring*>&, const std::vector<Place>&, const SharingOptions&,
                           const HeadSource<double>&, const std::function<void(Scoring&)>&);

void CommonCutsOfPrompt::add(Cell& cell) {
  const SharedOver over = shared_over(cell);
  const std::string where = std::to_string(over == SharedOver::layer ? cell.place.layer : -1);
  const std::string name = where + " " + scoring_name(cell, cell.budget.tokens);
  all_.try_emplace(name, Together{{{over, cell}}}).first->second.cells.push_back(&cell);
}

std::vector<std::vector<int32_t>> CommonCutsOfPrompt::Together::ask() const {
  try {
    return cell.method().host.cut_together(cell.variant->values.policy(), heads);
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method().info.name) + ": " + e.what());
  }
}

// Adds one more list for each head, or closes the search if no head is to be cut any more.
void CommonCutsOfPrompt::Together::cut() {
  const auto asks = [](const HeadScores& head) { return !head.scores.empty(); };
  is_open = std::any_of(heads.begin(), heads.end(), asks);
  if (!is_open) return;
  const auto rows = ask();
  for (size_t h = 0; h < heads.size(); ++h) {
    TokenLists& of_head = cuts[{heads[h].layer, heads[h].kv_head}];
    for (const int32_t row : rows[h]) of_head.flat.push_back(heads[h].tokens[size_t(row)]);
    of_head.close();
  }
}

void CommonCutsOfPrompt::Together::give() const {
  for (Cell* one : cells)
    if (const auto own = cuts.find({one->place.layer, one->place.kv_head}); own != cuts.end())
      one->common_cuts = std::make_shared<const TokenLists>(own->second);
}

template <class Real>
void CommonCutsOfPrompt::find(const std::vector<Place>& layers, const SharingOptions& options,
                              const HeadSource<Real>& heads) {
  const auto open = [&] {
    std::vector<Scoring*> some;
    for (auto& [name, together] : all_)
      if (together.is_open && together.lost.empty()) some.push_back(&together);
    return some;
  };
  for (auto asked = open(); !asked.empty() && !(options.stop && options.stop()); asked = open())
    score_prompt<Real>(asked, layers, options, heads, [](Scoring& of) { static_cast<Together&>(of).cut(); });
  for (const auto& [name, together] : all_) together.give();
}

void CommonCutsOfPrompt::list_lost(WithoutBudget& without) const {
  for (const auto& [name, together] : all_) together.list_lost(without);
}

template void CommonCutsOfPrompt::find(const std::vector<Place>&, const SharingOptions&, const HeadSource<float>&);
template void CommonCutsOfPrompt::find(const std::vector<Place>&, const SharingOptions&, const HeadSource<double>&);

}  // namespace kvreplay
