#pragma once
#include "core/policy.hpp"

// Three rules that were released under H2O's name and evict nothing: they hide columns of a full cache. The steps of
// each are those of the released script; `see(row, bool)` sets whether the present row attends to a row.

namespace kvreplay::h2o_mask {

// The mask simulation. After a step with K columns, K > heavy + recent, the next row sees the top `heavy` of
// A[0..K-recent) and the last `recent` of its K+1 columns. Column K-recent is in neither set: it is hidden for exactly
// one step, and keeps its score.
void see_heavy(const Team auto& team, const Cache auto& cache, int32_t heavy, int32_t recent, auto see) {
  const int32_t K = cache.size() - 1, old = K - recent;
  if (K <= heavy + recent) {
    team.each(K + 1, [&](int32_t i) { see(i, true); });
    return;
  }
  choose_top(
      team, old, heavy, [&](int32_t i) { return cache.score(i); }, see);
  team.each(recent + 1, [&](int32_t i) { see(old + i, i > 0); });
}
// Resets the scores of hidden columns to zero, except the last `recent`.
void reset_hidden(const Team auto& team, Cache auto& cache, int32_t heavy, int32_t recent) {
  const int32_t old = cache.size() - recent;
  if (old <= heavy) return;
  choose_top(
      team, old, heavy, [&](int32_t i) { return cache.score(i); },
      [&](int32_t i, bool yes) { cache.mark(i) = yes ? 1 : 0; });
  team.each(old, [&](int32_t i) {
    if (cache.mark(i) == 0) cache.score(i) = 0;
  });
}

// The policy's state in the other two rules: numbers for every token of the trace.
struct Columns {
  std::span<double> state;  // A [n], then 1 if the token is kept, else 0 [n]
  double& score(int32_t token) const { return state[size_t(token)]; }
  double& kept(int32_t token) const { return state[state.size() / 2 + size_t(token)]; }
};
// Shows the kept columns and a band of the last `recent` ones.
void see_kept(const Team auto& team, const Columns& a, const Cache auto& cache, int32_t recent, auto see) {
  const int32_t rows = cache.size();
  team.each(rows, [&](int32_t i) { see(i, i >= rows - recent || a.kept(cache.token(i)) != 0); });
}

// The causal mask of the lm-eval script. Row t >= heavy keeps the top (heavy - 1) of A and itself, adds its full
// unmasked row to A, and zeroes A outside the kept columns. Earlier rows keep every column. token(i), x(i): the `rows`
// columns of row t, the last one its own.
void keep_local(const Team auto& team, const Columns& a, int32_t heavy, int32_t rows, auto token, auto x) {
  const int32_t old = rows - 1, best = token(old) >= heavy ? heavy - 1 : old;
  choose_top(
      team, old, best, [&](int32_t i) { return a.score(token(i)); },
      [&](int32_t i, bool yes) { a.kept(token(i)) = yes ? 1 : 0; });
  team.each(rows, [&](int32_t i) {
    const int32_t j = token(i);
    if (i == old) a.kept(j) = 1, a.score(j) = 0;
    a.score(j) = a.kept(j) != 0 ? a.score(j) + x(i) : 0;
  });
}

// The "global statistics" of Fig. 2d, used for the published LLaMA numbers: one list for every row, the top `heavy` by
// the attention of all rows. IT SEES THE FUTURE: an oracle, not H2O.
template <class Real>
void keep_global(const Team auto& team, const Prompt<Real>& prompt, const Columns& a, int32_t heavy) {
  const int32_t n = prompt.future_tokens();
  team.each(n, [&](int32_t i) { a.score(i) = prompt.future_sum(i) + (i < prompt.size() ? prompt.column_sum(i) : 0); });
  choose_top(
      team, n, heavy, [&](int32_t i) { return a.score(i); }, [&](int32_t i, bool yes) { a.kept(i) = yes ? 1 : 0; });
}

}  // namespace kvreplay::h2o_mask
