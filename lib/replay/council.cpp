#include "replay/council.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "core/share.hpp"
#include "replay/head_replay.hpp"

namespace kvreplay {
namespace {

constexpr double kPyramidSlope = 20;  // the published default
constexpr double kAdaFloor = 0.2;

Council council_of(const Cell& cell) {
  if (cell.method->council != Council::none) return cell.method->council;
  switch (cell.axes.allocator) {
    case Allocator::uniform:
      return Council::none;
    case Allocator::ada:
      return Council::layer;
    case Allocator::cake:
      return Council::model;
    case Allocator::pyramid:
    case Allocator::file:
      return Council::head;
  }
  return Council::none;
}

// CAKE's rule stands in its own method, which is asked whoever uses the rule.
const Method& witness(const Cell& cell) {
  if (cell.axes.allocator != Allocator::cake || cell.method->council != Council::none) return *cell.method;
  return *find_method(registry(), "cake");
}

// tokens of (layer, kv head) in a file of rows layer,kv_head,tokens.
int32_t tokens_in_file(const std::string& path, int32_t layer, int32_t kv_head) {
  std::ifstream in(path);
  if (!in) throw ConfigError(path + ": cannot be read. Is the path in `allocator` right?");
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream words(line);
    int64_t l = 0, h = 0, tokens = 0;
    if (line.find_first_of("0123456789") == std::string::npos) continue;  // a heading
    if (!(words >> l >> h >> tokens) || tokens < 0 || tokens > int64_t(kManyTokens))
      throw ConfigError(path + ":" + std::to_string(number) + ": expected layer,kv_head,tokens");
    if (l == layer && h == kv_head) return int32_t(tokens);
  }
  throw ConfigError(path + ": no row for layer " + std::to_string(layer) + ", kv head " +
                    std::to_string(kv_head));
}

int32_t by_formula(const Cell& cell) {
  if (cell.axes.allocator == Allocator::file)
    return tokens_in_file(cell.axes.allocator_file, cell.layer, cell.kv_head);
  return pyramid_tokens(*cell.budget, kPyramidSlope, 0, cell.n_prefill, cell.layer, cell.n_layers);
}

// Protected tokens are safe: they rank before everything else.
std::vector<int32_t> by_ada(const Cell& cell, const std::vector<Testimony>& heads) {
  std::vector<std::vector<double>> scores;
  for (const Testimony& t : heads) {
    scores.push_back(t.scores);
    const int32_t n = int32_t(t.scores.size());
    for (int32_t i = 0; i < n; ++i)
      if (i < t.protect.sinks || i >= n - t.protect.recent) scores.back()[size_t(i)] = INFINITY;
  }
  return ada_tokens(scores, *cell.budget, kAdaFloor);
}

// Cells that share one budget: the same method instance, budget and seed on one layer or one model.
std::string company(const Cell& cell, Council council) {
  const nlohmann::json name = {cell.trace,
                               cell.prompt,
                               council == Council::layer ? cell.layer : -1,
                               cell.method->info.name,
                               cell.params,
                               cell.budget.value_or(0),
                               cell.seed.value_or(0)};
  return canonical(name);
}

template <class Real>
class Sharing {
 public:
  Sharing(const RunOptions& options, const LoadHead<Real>& load, const ListLayers& layers)
      : options_(options), load_(load), layers_(layers) {}

  void settle(const std::vector<Cell*>& company, Council council) {
    const Cell& first = *company.front();
    std::vector<Testimony> heads;
    for (const HeldLayer& held : layers_(first.trace, first.prompt))
      if (council == Council::model || held.layer == first.layer)
        for (int32_t h = 0; h < held.kv_heads; ++h) heads.push_back(hear(first, held.layer, h));
    const Method& rule = witness(first);
    const std::vector<int32_t> tokens = rule.council != Council::none
                                            ? rule.share(witness_params(first), first.scene(), heads)
                                            : by_ada(first, heads);
    for (Cell* cell : company)
      for (size_t i = 0; i < heads.size(); ++i)
        if (heads[i].layer == cell->layer && heads[i].kv_head == cell->kv_head) cell->allocated = tokens[i];
  }

 private:
  nlohmann::json witness_params(const Cell& cell) const {
    const Method& rule = witness(cell);
    return &rule == cell.method ? cell.params : rule.resolve(nlohmann::json::object(), cell.scene());
  }
  Testimony hear(const Cell& like, int32_t layer, int32_t kv_head) {
    Cell cell = like;
    cell.layer = layer;
    cell.kv_head = kv_head;
    cell.params = witness_params(like);
    cell.method = &witness(like);
    const HeadStream<Real> stream =
        load_(like.trace, {like.prompt, layer, kv_head, like.n_tokens, like.n_prefill, false, false});
    HeadReplay<Real> replay(stream, options_);
    replay.add(cell);
    Testimony t = replay.testify().at(0);
    t.layer = layer;
    t.kv_head = kv_head;
    return t;
  }
  const RunOptions& options_;
  const LoadHead<Real>& load_;
  const ListLayers& layers_;
};

}  // namespace

template <class Real>
void allocate_budgets(std::vector<Cell>& cells, const RunOptions& options, const LoadHead<Real>& load,
                      const ListLayers& layers) {
  std::map<std::string, std::vector<Cell*>> companies;
  for (Cell& cell : cells) {
    const Council council = council_of(cell);
    if (council == Council::head) cell.allocated = by_formula(cell);
    else if (council != Council::none) companies[company(cell, council)].push_back(&cell);
  }
  Sharing<Real> sharing(options, load, layers);
  for (const auto& [name, company] : companies) sharing.settle(company, council_of(*company.front()));
}

template void allocate_budgets(std::vector<Cell>&, const RunOptions&, const LoadHead<float>&, const ListLayers&);
template void allocate_budgets(std::vector<Cell>&, const RunOptions&, const LoadHead<double>&, const ListLayers&);

}  // namespace kvreplay
