#pragma once
#include <cstdint>
#include <span>

#include "core/cache.hpp"
#include "methods/parts/thinning.hpp"
#include "methods/parts/walk.hpp"

namespace kvreplay {

// Rows first .. first + count - 1 of a cache, which are walked together. `begin` is the index of the first one among
// all rows that a round thins out.
struct WalkedBlock {
  int32_t round, begin, first, count;
};

// The tokens and weights that each block of each round of a method held, and the signs that they got. A sign depends
// only on these and the round's draws, so the method at another budget may reuse it.
class WalkRecord {
 public:
  static constexpr int32_t kMostRounds = 32;
  // rows: rows of the first round; every round leaves at most half of them.
  static int64_t doubles(int64_t rows) { return kMostRounds + 4 * rows; }
  // numbers: at least doubles(rows).
  explicit WalkRecord(std::span<double> numbers) : numbers_(numbers) {}

  // Starts a round with `count` rows and removes all later rounds.
  void open(const Team auto& team, int32_t round, int32_t count) const {
    team.each(kMostRounds - round, [&](int32_t r) { rows(round + r) = r == 0 ? count : 0; });
  }
  // Stores the signs of a block, which are the rows' scores.
  void keep(const Team auto& team, const Cache auto& cache, WalkedBlock b) const {
    double* const kept = at(b);
    team.each(b.count, [&](int32_t i) {
      kept[2 * i] = signed_token(cache.token(b.first + i), cache.score(b.first + i));
      kept[2 * i + 1] = double(cache.num(b.first + i));
    });
  }
  // Whether a block with the same rows is stored; `most`: rows of a full block.
  bool holds(const Team auto& team, const Cache auto& cache, WalkedBlock b, int32_t most) const {
    const int32_t behind = int32_t(rows(b.round)) - b.begin;
    if (b.count != (behind < most ? behind : most)) return false;
    const double* const kept = at(b);
    return b.count == team.count(b.count, [&](int32_t i) {
      return kept[2 * i] == signed_token(cache.token(b.first + i), kept[2 * i]) &&
             kept[2 * i + 1] == double(cache.num(b.first + i));
    });
  }
  // Copies the stored signs of a block to the scores.
  void give(const Team auto& team, Cache auto& cache, WalkedBlock b) const {
    const double* const kept = at(b);
    team.each(b.count, [&](int32_t i) { cache.score(b.first + i) = kept[2 * i] > 0 ? 1 : -1; });
  }

 private:
  static double signed_token(int32_t token, double sign) { return sign > 0 ? token + 1.0 : -(token + 1.0); }
  double& rows(int32_t round) const { return numbers_[size_t(round)]; }
  double* at(WalkedBlock b) const {
    int64_t row = b.begin;
    for (int32_t r = 0; r < b.round; ++r) row += int64_t(rows(r));
    return numbers_.data() + kMostRounds + 2 * row;
  }
  // [kMostRounds] number of rows of each round; then, round after round, [rows] token with its sign, and weight.
  std::span<double> numbers_;
};

// Below: which of the signed rows stay. The scores hold the signs; they are replaced by the factor for the row's
// weight: 0 (evicted), 1 or 2.

// The released code of BalanceKV: h = floor(m/2); cut = the later of the first indices at which the count of -1, and of
// +1, reaches h (0 if never). Rows up to the cut that have sign -e_cut double; rows after the cut keep their weight.
// The first h of these rows stay.
template <Cache C>
void truncate_at_cut(C& cache, Middle m) {
  if (m.count <= 0) return;
  const auto score = [&](int32_t i) -> double& { return cache.score(m.first + i); };
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

// Keeps exactly floor(m/2) rows: the smaller class (if equal: +), topped up with the lowest indices of the other. They
// double.
template <Team T, Cache C>
void smaller_half(const T& team, C& cache, Middle m) {
  const auto sign = [&](int32_t i) -> double& { return cache.score(m.first + i); };
  const double small = smaller_class(team, m.count, sign);
  int32_t left = m.count / 2;
  for (int32_t i = 0; i < m.count; ++i) left -= sign(i) == small ? 1 : 0;
  for (int32_t i = 0; i < m.count; ++i) {
    const bool in_class = sign(i) == small, stays = in_class || left > 0;
    left -= stays && !in_class ? 1 : 0;
    sign(i) = stays ? 2 : 0;
  }
}

}  // namespace kvreplay
