#pragma once
#include "core/thinning.hpp"
#include "core/walk.hpp"

// Which of the signed rows stay. Signs stand in the scores, and become what a row's weight is multiplied by:
// 0, where it is dropped, 1 or 2.

namespace kvreplay {

// The released code of BalanceKV: h = floor(m/2); cut = the later of the first indices at which the count of
// -1, and of +1, reaches h (0 if never). What has sign -e_cut up to the cut doubles, everything after it
// stays as it is; the first h of these.
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

// Exactly floor(m/2): the smaller class (equal: +), topped up with the lowest indices of the other; they
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
