#pragma once
#include <cstdint>
#include <vector>

#include "caches/residency.hpp"

// Caches that are likely to hold the same tokens (one method at several budgets) share the sums over them: tokens that
// the same caches hold, at the same weights, make a band, which is summed once. So nested budgets cost their largest.
// The same bands serve the cores (evaluate/resident) and a device's lists (device/key_lists).

namespace kvreplay {

struct Band {
  static constexpr int32_t kMostMembers = 64;
  struct Weights {
    double num = 1, den = 1;
    auto operator<=>(const Weights&) const = default;
  };
  struct Tokens {
    int32_t first, last;  // neighbours
  };
  uint64_t members = 0;          // a bit each
  std::vector<Weights> weights;  // of each member that is in it, in their order; empty: all 1
  std::vector<Tokens> tokens;    // ascending
  // Of a band that one member has for itself: weights of each run of tokens, and until when; empty: all 1, all stay.
  std::vector<Weights> weights_of;
  std::vector<int32_t> until;

  int32_t size() const {
    int32_t n = 0;
    for (const Tokens& run : tokens) n += run.last - run.first;
    return n;
  }
  Weights of(size_t member) const;  // which is in it
};

// Bands over what members[i] hold throughout; a null member holds nothing. band_cost: what a band costs beside its
// tokens, in tokens: where shared bands come to more than the members one by one, each member has one of its own.
// Tokens that are evicted inside of a residency are in a band of their member's own, behind the others.
std::vector<Band> find_bands(const std::vector<const Residency*>& members, int32_t band_cost);

}  // namespace kvreplay
