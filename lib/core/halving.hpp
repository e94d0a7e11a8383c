#pragma once
#include "core/thinning.hpp"
#include "core/walk.hpp"

// Selects which of the signed rows stay. The scores hold the signs; they are replaced by the factor for the row's
// weight: 0 (evicted), 1 or 2.

namespace kvreplay {

// The released code of BalanceKV: h = floor(m/2); cut = the later of the first indices at which the count of -1, and of
// +1, reaches h (0 if never). Rows up to the cut that have sign -e_cut double; rows after the cut keep their weight.
// The first h of these rows stay.
template <Team T, Cache C>
KVR_FN void truncate_at_cut(const T& team, C& cache, Middle m) {
  const auto score = [&](int32_t i) -> double& { return cache.score(m.first + i); };
  if (team.rank() == 0 && m.count > 0) {
    int32_t counts[2] = {0, 0}, reached[2] = {0, 0}, left = m.count / 2;
    for (int32_t i = 0; i < m.count; ++i)
      if (const int side = score(i) > 0; ++counts[side] == left) reached[side] = i;
    const int32_t cut = reached[0] > reached[1] ? reached[0] : reached[1];
    const double sign = score(cut);
    for (int32_t i = 0; i < m.count; ++i) {
      const bool stays = left > 0 && (i > cut || score(i) == -sign);
      score(i) = !stays ? 0 : i <= cut ? 2 : 1;
      left -= stays ? 1 : 0;
    }
  }
  team.sync();
}

// Keeps exactly floor(m/2) rows: the smaller class (if equal: +), topped up with the lowest indices of the other. They
// double.
template <Team T, Cache C>
KVR_FN void smaller_half(const T& team, C& cache, Middle m) {
  const auto sign = [&](int32_t i) -> double& { return cache.score(m.first + i); };
  const double small = smaller_class(team, m.count, sign);
  team.sync();
  if (team.rank() == 0) {
    int32_t left = m.count / 2;
    for (int32_t i = 0; i < m.count; ++i) left -= sign(i) == small ? 1 : 0;
    for (int32_t i = 0; i < m.count; ++i) {
      const bool in_class = sign(i) == small, stays = in_class || left > 0;
      left -= stays && !in_class ? 1 : 0;
      sign(i) = stays ? 2 : 0;
    }
  }
  team.sync();
}

}  // namespace kvreplay
