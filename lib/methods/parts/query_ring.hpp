#pragma once
#include <span>

#include "core/attend.hpp"
#include "core/linear.hpp"
#include "core/policy.hpp"

namespace kvreplay {

// The queries of the last rows, for methods whose cuts recompute attention. They stand at the beginning of the policy's
// state. Row 0 is the oldest of those held.
struct QueryRing {
  int32_t window = 1, heads = 1, dim = 0;
  int32_t seen = 0;  // rows so far
  LogitRule<double> rule;
  std::span<double> state;  // [window, heads, dim]

  static int64_t doubles(int32_t window, const HeadShape& s) { return int64_t(window) * s.heads * s.dim; }
  int32_t rows() const { return seen < window ? seen : window; }
  std::span<const double> query(int32_t row, int32_t head) const { return at((seen - rows() + row) % window, head); }
  // Logit of a row's query head and a key.
  double logit(int32_t row, int32_t head, auto key) const { return rule(wide_dot(query(row, head), key)); }
  // Token of a row, if `newest` is that of the last one.
  int32_t token(int32_t row, int32_t newest) const { return newest - (rows() - 1 - row); }
  // This step's queries. all: the policy's state.
  template <class Real>
  void observe(const Team auto& team, const StepQueries<Real>& queries, std::span<double> all) {
    rule = {queries.scale, queries.softcap};
    add(team, queries, all);
  }
  // of_head(h): the row's query of a query head, [dim]. all: the policy's state.
  void add(const Team auto& team, auto of_head, std::span<double> all) {
    state = all.first(size_t(window) * size_t(heads) * size_t(dim));
    for (int32_t h = 0; h < heads; ++h) {
      const auto q = of_head(h);
      const std::span<double> to = at(seen % window, h);
      team.each(dim, [&](int32_t c) { to[size_t(c)] = double(q[size_t(c)]); });
    }
    ++seen;
  }
  // The last rows of a prompt that is read in one call.
  template <class Real>
  void read(const Team auto& team, const Prompt<Real>& prompt, std::span<double> all) {
    rule = {prompt.scale(), prompt.softcap()};
    for (int32_t row = prompt.size() > window ? prompt.size() - window : 0; row < prompt.size(); ++row)
      add(
          team, [&](int32_t h) { return prompt.query(h, row); }, all);
  }

 private:
  std::span<double> at(int32_t slot, int32_t head) const {
    return state.subspan((size_t(slot) * size_t(heads) + size_t(head)) * size_t(dim), size_t(dim));
  }
};

}  // namespace kvreplay
