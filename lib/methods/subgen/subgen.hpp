#pragma once
#include "core/policy.hpp"
#include "methods/subgen/farthest_first.hpp"

namespace kvreplay {

// SubGen, Zandieh et al. 2024, section 3.2, the version of the experiments: recent tokens plus greedy k-center over the
// older keys (Gonzalez 1985, farthest-first traversal).
//  1. If P <= B keep all. Otherwise keep the last `recent` prompt tokens.
//  2. Centres among keys 0..P-recent-1: start at token `first`, then always the key that is farthest from its nearest
//     centre (Euclidean, as stored; ties: lowest index), until B - recent are chosen.
//  3. Later tokens are kept. `weights: cluster_size`: a centre counts for all keys nearest to it.
// Farthest-first picks outliers, and on most heads its error is higher than that of sinks or H2O. This is a property of
// the method.
struct SubGen {
  static constexpr MethodInfo info{
      .name = "subgen",
      .title = "recent window + greedy k-center",
      .source = "SubGen, Zandieh et al. 2024, section 3.2",
      .tier = 1,
      .memory = "B prompt tokens and every later one; with cluster_size one weight per centre",
      .deviation = "the paper gives neither the split of the budget nor the first centre: here half and token 0.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  static constexpr Hooks hooks{"read_prompt evict extra_bytes layout traits rng_arrays state rng larger"};
  enum class Weights { none, cluster_size };
  int32_t recent = kDerived, first = 0;
  Weights weights = Weights::none;
  int32_t budget = 0;
  std::span<double> state;  // state of the traversal
  Rng rng;
  const SubGen* larger = nullptr;

  static void declare(auto& d) {
    d.integer("recent", &SubGen::recent, {0, kManyTokens}, "last prompt tokens that stay", "floor(B/2)");
    d.integer_or_word("first", &SubGen::first, {0, kManyTokens}, "random", "token of the first centre");
    d.choice("weights", &SubGen::weights, {"none", "cluster_size"}, "weight of a centre");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens;
    if (recent == kDerived) recent = budget / 2;
    if (recent >= budget)
      throw ParameterError("recent", "recent " + std::to_string(recent) + " leaves no centre in a budget of " +
                                         std::to_string(budget) + "; it must be below the budget");
    if (context.prompt_tokens > budget && first >= context.prompt_tokens - recent)
      throw ParameterError("first", "first " + std::to_string(first) + " is not below the " +
                                        std::to_string(context.prompt_tokens - recent) + " older prompt tokens");
  }
  void traits(Traits& t) const { t.random = first == kWord; }
  std::vector<RngArray> rng_arrays(const MethodContext&) const {
    if (first != kWord) return {};
    return {{"u uniforms", RngStream::k_center_start, 1, 1}};
  }
  Layout layout(const MethodContext& context) const {
    return {
        .state_doubles = FarthestFirst<BasicCache<float>>::doubles(context.prompt_tokens, budget, context.shape.dim),
        .scores = true,
        .weights = weights == Weights::cluster_size};
  }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    const bool weighs = weights == Weights::cluster_size && cache.evictions() > 0;
    c.weight_floats = weighs ? budget - recent : 0;
  }

  // Sets score 1 on rows that stay and, as weight, the number of keys that each centre represents.
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    const int32_t older = cache.size() - recent;
    if (cache.size() <= budget) return;
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = i >= older ? 1 : 0; });
    FarthestFirst centres(cache, older, budget - recent, state);
    if (continues(larger, cache.size()))
      centres.copy_order(team, FarthestFirst(cache, older, larger->budget - recent, larger->state));
    else centres.choose(team, first_centre(older));
    team.each(budget - recent, [&](int32_t i) { cache.score(centres.row(i)) = 1; });
    if (weights != Weights::cluster_size) return;
    centres.assign_rest(team);
    for (int32_t i = 0; i < budget - recent; ++i) cache.weigh(centres.row(i), centres.members(i), centres.members(i));
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() > budget) cache.retain(team, [&](int32_t i) { return cache.score(i) != 0; });
  }

 private:
  int32_t first_centre(int32_t older) const {
    const int32_t centre = first != kWord ? first : int32_t(rng.uniform(RngStream::k_center_start, 0) * older);
    return centre < older ? centre : older - 1;  // a sliding window may leave fewer tokens than the prompt had
  }
  // Whether the run at a larger budget has already computed the order of these centres.
  bool continues(const SubGen* other, int32_t rows) const {
    return other != nullptr && other->recent == recent && other->first == first && rows > other->budget &&
           weights == Weights::none;
  }
};

}  // namespace kvreplay
