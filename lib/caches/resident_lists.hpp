#pragma once
#include <span>
#include <vector>

#include "catalog/bound_method.hpp"
#include "catalog/token_lists.hpp"
#include "core/cache.hpp"

namespace kvreplay {

// How a reader of the lists determines what a step attended to (docs/formats.md, kept.h5).
struct ListReading {
  bool attends = false;  // to the list of its own step; false: to the list before it and its own token
  bool partial = false;  // the lists are not sufficient
};
// Derived from a method's hooks, its memory layout and its options. Rows that the method writes, or weighs without
// reading them, are detected during the replay.
ListReading reading_of(const BoundMethod& method, const CommonOptions& options);

// Tokens that a cache held, for kept.h5: every resident token once, ascending, with its weights summed over its rows.
struct ResidentLists {
  TokenLists kept;
  std::vector<double> num, den;      // empty if all weights are 1
  std::vector<TokenLists> attended;  // one series per query head; query-time methods only
  ListReading reading;

  // Adds the tokens of some rows. num, den: empty if all are 1.
  template <class Real>
  void add(std::span<const int32_t> tokens, std::span<const Real> weights_num, std::span<const Real> weights_den);
  // Adds the tokens that a query head reads in a step. chosen: flags of the cache's rows.
  void add_attended(size_t head, std::span<const int32_t> tokens, std::span<const uint8_t> chosen);
};

}  // namespace kvreplay
