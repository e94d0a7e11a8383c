#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Kept sets that were computed elsewhere, by another library or in a notebook (docs/external.md).
//  1. After the prompt the tokens of list 0 stay, with the weights in the file.
//  2. If the file lists every step: after step i the tokens of list i stay. Otherwise every later token stays.
// The file was checked when it was read: a list holds only tokens that are in the cache.
struct External {
  static constexpr MethodInfo info{
      .name = "external",
      .title = "kept sets from a file",
      .source = "a file of lists (docs/external.md)",
      .tier = 3,
      .memory = "the listed tokens; one weight for each weighted token, two where numerator and denominator differ",
      .deviation =
          "other data that its author stores per token (scores, sketches) is not in the file and not charged. "
          "Lists may use the future; no check can detect it.",
  };
  static constexpr Hooks hooks{"evict extra_bytes layout traits given"};
  int32_t budget = 0, prompt = 0, tokens = 0;
  GivenLists given;

  static void declare(auto& d) {
    d.file("kept", "HDF5 file with the lists of every kv head; {budget} in its name is the budget in tokens");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, prompt = context.prompt_tokens, tokens = context.tokens;
  }
  // Without a budget, lists may have any length.
  void traits(Traits& t) const { t.max_rows = budget > 0 ? budget : tokens; }
  Layout layout(const MethodContext&) const { return {.weights = given.weighted(), .split = given.split}; }
  void extra_bytes(ExtraBytes& c, const Cache auto& cache, const Team auto& team) const {
    if (!given.weighted()) return;
    const auto weighs = [&](int32_t i) { return cache.num(i) != 1 || cache.den(i) != 1; };
    const auto differs = [&](int32_t i) { return cache.num(i) != cache.den(i); };
    c.weight_floats = team.count(cache.size(), weighs) + team.count(cache.size(), differs);
  }

  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t list = cache.token(cache.size() - 1) - (prompt - 1);
    if (list < 0 || list >= given.count) return;
    given.keep(team, cache, list);
    if (!given.weighted()) return;
    const auto place = [&](int32_t i) { return given.find(list, cache.token(i)); };
    cache.weigh_rows(team, 0, cache.size(), [&](int32_t i) { return given.weights(place(i)); });
  }
};

}  // namespace kvreplay
