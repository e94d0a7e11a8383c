#pragma once
#include <map>
#include <vector>

#include "core/policy.hpp"
#include "core/share.hpp"

namespace kvreplay {

// Cuts in time that kv heads make together, so that all of them hold the same tokens. When a cut is due, every head is
// asked for its scores, and the replay passes each head the tokens that stay (allocation/head_scoring.hpp). A method
// derives from it. Where the cut is known, the method follows it; before it cuts by its own scores, it asks whether it
// must wait.
struct CommonCuts {
  // head: kv head h of every layer keeps the tokens with the best mean score over these heads. all: every head of the
  // model keeps the tokens with the largest score of any head.
  enum class Level { layer_head, head, all };
  Level level = Level::layer_head;
  GivenLists given;    // list i: tokens left by the i-th common cut
  int32_t cuts = 0;    // common cuts so far
  int32_t leaves = 0;  // unprotected rows that remain after a cut that waits for the other heads' scores; 0: no cut is
                       // due

  static constexpr Hooks cut_hooks{"given head_scores waits_for_heads cut_together traits"};
  template <class M>
  static void declare_level(auto& d) {
    d.choice("level", static_cast<Level M::*>(&M::level), {"layer_head", "head", "union"},
             "which kv heads hold the same tokens: none, kv head h of all recorded layers, or all of their heads");
  }
  void traits(Traits& t) const {
    t.shared_over = level == Level::layer_head ? SharedOver::none : SharedOver::model;
    t.share_reads_scores = true;
  }
  bool waits_for_heads() const { return leaves > 0; }
  void head_scores(std::vector<double>& says) const { says.push_back(leaves); }

  bool has_known_cut() const { return cuts < given.count; }
  void apply_known_cut(const Team auto& team, Cache auto& cache) {
    given.keep(team, cache, cuts++);
    leaves = 0;
  }
  // The rows have their scores; the first `rows.sinks` and the last `rows.recent` are protected. Returns whether the
  // cut must wait for the other heads' scores.
  bool waits_for_other_heads(const Team auto& team, Cache auto& cache, Protect rows, int32_t count) {
    if (level == Level::layer_head) return false;
    team.each(cache.size(), [&](int32_t i) {
      if (i < rows.sinks || i >= cache.size() - rows.recent) cache.score(i) = double(INFINITY);
    });
    leaves = count;
    return true;
  }

  // Rows that stay in each head, ascending. `heads` has a score for every row, infinite if the row is protected. Throws
  // ParameterError if heads that cut together hold different tokens. With level all nothing needs to be proposed first:
  // a row among the largest of all scores is among the largest of some head's scores.
  std::vector<std::vector<int32_t>> cut_together(const std::vector<HeadScores>& heads) const {
    std::map<int32_t, Sum> together;
    for (const HeadScores& h : heads) together[group_of(h)].add(h, level == Level::head);
    std::map<int32_t, std::vector<int32_t>> stay;
    for (const auto& [group, sum] : together) stay[group] = sum.best(int32_t(heads.front().extras.front()));
    std::vector<std::vector<int32_t>> rows;
    for (const HeadScores& h : heads) rows.push_back(stay.at(group_of(h)));
    return rows;
  }

 private:
  // Scores of the heads of one group, combined: sums or maxima. Sums rank the rows as means do.
  struct Sum {
    const HeadScores* first = nullptr;
    std::vector<double> scores = {};
    void add(const HeadScores& head, bool sums) {
      if (first == nullptr) first = &head, scores = std::vector<double>(head.scores.size(), sums ? 0 : -INFINITY);
      if (head.tokens != first->tokens)
        throw ParameterError("level", "heads of layers " + std::to_string(first->layer) + " and " +
                                          std::to_string(head.layer) +
                                          " hold different tokens at a common cut, because a window or chunk evicts "
                                          "some from one of them: write level: layer_head");
      for (size_t i = 0; i < scores.size(); ++i)
        scores[i] = sums ? scores[i] + head.scores[i] : std::max(scores[i], head.scores[i]);
    }
    std::vector<int32_t> best(int32_t unprotected) const {
      const auto score = [&](int32_t i) { return scores[size_t(i)]; };
      const int32_t n = int32_t(scores.size()),
                    safe = int32_t(std::count(scores.begin(), scores.end(), double(INFINITY)));
      std::vector<uint8_t> chosen(scores.size(), 0);
      choose_top(SerialTeam{}, n, safe + unprotected, score, [&](int32_t i, bool yes) { chosen[size_t(i)] = yes; });
      std::vector<int32_t> rows;
      for (int32_t i = 0; i < n; ++i)
        if (chosen[size_t(i)] != 0) rows.push_back(i);
      return rows;
    }
  };
  int32_t group_of(const HeadScores& h) const { return level == Level::head ? h.kv_head : 0; }
};

}  // namespace kvreplay
