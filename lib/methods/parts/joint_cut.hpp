#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/selecting.hpp"
#include "core/share.hpp"

namespace kvreplay {

// One cut at the end of the prompt that kv heads make together, where tokens of different heads compete and a head's
// scores need those of other heads. A method derives from it, sets cache.score(row) in read_prompt() unless has_cut(),
// passes its numbers for other heads with head_scores(), and decides in cut_together(). The replay then passes each
// head the tokens that stay (allocation/head_scoring.hpp).
struct JointCut {
  GivenLists given;  // list 0: the tokens that stay
  int32_t sinks = 0, recent = 0;
  int32_t budget = 0, prompt = 0;
  bool due = false;  // waits for the other heads

  static constexpr Hooks joint_hooks{"given evict head_scores waits_for_heads cut_together traits"};
  template <class M>
  static void protect(auto& d) {
    d.integer("sinks", static_cast<int32_t M::*>(&M::sinks), {0, kManyTokens}, "first tokens that always stay");
    d.integer("recent", static_cast<int32_t M::*>(&M::recent), {0, kManyTokens},
              "last tokens that always stay, the newest included");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, prompt = context.prompt_tokens;
    if (sinks + recent > budget) throw protection_error(sinks, recent, budget);
  }
  void traits(Traits& t) const { t.share_reads_scores = true; }
  bool has_cut() const { return given.count > 0; }
  bool waits_for_heads() const { return due; }
  void evict(const Team auto& team, Cache auto& cache) {
    if (prompt <= budget) return;
    if (has_cut()) given.keep(team, cache, 0);
    else due = true;
  }

 protected:
  using Rows = std::vector<int32_t>;
  // Gives sinks and recents an infinite score in every head.
  void protect_rows(const std::vector<HeadScores>& heads, std::vector<std::vector<double>>& scores) const {
    for (size_t i = 0; i < heads.size(); ++i) {
      const std::vector<int32_t>& tokens = heads[i].tokens;
      for (size_t row = 0; row < tokens.size(); ++row)
        if (tokens[row] < sinks || row + size_t(recent) >= tokens.size()) scores[i][row] = INFINITY;
    }
  }
  // The heads of each layer, as places in `heads`.
  static std::vector<std::vector<size_t>> by_layer(const std::vector<HeadScores>& heads) {
    std::vector<std::vector<size_t>> layers;
    for (size_t i = 0; i < heads.size(); ++i) {
      if (i == 0 || heads[i].layer != heads[i - 1].layer) layers.emplace_back();
      layers.back().push_back(i);
    }
    return layers;
  }
  // The first rows in C8's order.
  static Rows order_of(const std::vector<double>& scores) {
    Rows order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
    return order;
  }
  // The `count` rows with the largest scores, ascending.
  static Rows best_rows(const std::vector<double>& scores, int32_t count) {
    Rows rows = order_of(scores);
    rows.resize(std::min(rows.size(), size_t(std::max(count, 0))));
    std::sort(rows.begin(), rows.end());
    return rows;
  }
  // Each head's rows among the `count` largest scores of all heads. Ties: head, row.
  static std::vector<Rows> best_of_all(const std::vector<std::vector<double>>& scores, int64_t count) {
    const Rows won = winners(scores, count);
    std::vector<Rows> rows;
    for (size_t i = 0; i < scores.size(); ++i) rows.push_back(best_rows(scores[i], won[i]));
    return rows;
  }
};

}  // namespace kvreplay
