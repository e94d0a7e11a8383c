#pragma once
#include <cstdint>
#include <vector>

#include "caches/residency.hpp"

// Caches that probably hold the same tokens (one method at several budgets) share the sums over them. Tokens that the
// same caches hold at the same weights form a band, which is summed once, so nested budgets cost only as much as the
// largest. CPU cores (evaluate/resident) and a device's lists (device/key_lists) use the same bands.

namespace kvreplay {

struct Band {
  static constexpr int32_t kMostMembers = 64;
  struct Weights {
    double num = 1, den = 1;
    auto operator<=>(const Weights&) const = default;
  };
  struct Tokens {
    int32_t first, last;  // consecutive tokens first..last-1
  };
  uint64_t members = 0;          // one bit per member
  std::vector<Weights> weights;  // weights of the members in the band, in member order; empty: all 1
  std::vector<Tokens> tokens;    // ascending
  // Only in a band of one member: the weights and the end of residency of each run; empty: all 1, all stay.
  std::vector<Weights> weights_of;
  std::vector<int32_t> until;

  int32_t size() const {
    int32_t n = 0;
    for (const Tokens& run : tokens) n += run.last - run.first;
    return n;
  }
  Weights of(size_t member) const;  // member must be in the band
};

// Finds bands over what members[i] hold throughout; a null member holds nothing. band_cost: the fixed cost of a band,
// in tokens. If shared bands cost more than separate ones, each member gets its own band. Tokens that are evicted
// within a residency are in separate bands of their member, at the end.
std::vector<Band> find_bands(const std::vector<const Residency*>& members, int32_t band_cost);

}  // namespace kvreplay
