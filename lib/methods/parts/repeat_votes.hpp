#pragma once
#include "core/selecting.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// Writes to p the probabilities that one row of the pass that repeats the prompt gives to the context tokens token(0)
// .. token(p.size() - 1). The rows of its chunk, from first_row up to itself, share the mass.
template <class Real>
void repeat_votes(const Team auto& team, const Prompt<Real>& prompt, int32_t head, int64_t row, int32_t first_row,
                  std::span<double> p, auto token) {
  const int32_t seen = int32_t(p.size()), own = int32_t(row) - first_row + 1;
  const auto query = prompt.repeat_query(head, row);
  team.each(seen, [&](int32_t i) { p[size_t(i)] = prompt.logit(wide_dot(query, prompt.key(token(i)))); });
  const auto of_row = [&](int32_t i) { return prompt.logit(wide_dot(query, prompt.repeat_key(first_row + i))); };
  double top = team.largest(seen, [&](int32_t i) { return p[size_t(i)]; }).score;
  const double own_top = team.largest(own, of_row).score;
  top = own_top > top ? own_top : top;
  team.each(seen, [&](int32_t i) { p[size_t(i)] = std::exp(p[size_t(i)] - top); });
  const double total = team.sum(seen, [&](int32_t i) { return p[size_t(i)]; }) +
                       team.sum(own, [&](int32_t i) { return std::exp(of_row(i) - top); });
  team.each(seen, [&](int32_t i) { p[size_t(i)] /= total; });
}

}  // namespace kvreplay
