#pragma once
#include <span>
#include <vector>

#include "catalog/bound_method.hpp"
#include "catalog/token_lists.hpp"
#include "core/cache.hpp"

namespace kvreplay {

// How who has nothing but the lists finds out what a step attended to (docs/formats.md, kept.h5).
struct ListReading {
  bool attends = false;  // to the list of its own step, rather than to the one before it and its token
  bool partial = false;  // the lists say too little
};
// What follows from a method's hooks, the memory that it asks for, and its options. Rows that it writes, or weighs
// without reading them, turn up during the replay.
ListReading reading_of(const BoundMethod& method, const CommonOptions& options);

// What a cache held, for kept.h5: every resident token once, ascending, its weights summed over the rows that hold it.
struct ResidentLists {
  TokenLists kept;
  std::vector<double> num, den;      // empty when all weights are 1
  std::vector<TokenLists> attended;  // one series per query head; query-time methods only
  ListReading reading;

  // Adds what stands in some rows. num, den: empty where all are 1.
  template <class Real>
  void add(std::span<const int32_t> tokens, std::span<const Real> weights_num, std::span<const Real> weights_den);
  // Adds what a query head reads in a step; chosen: of the cache's rows.
  void add_attended(size_t head, std::span<const int32_t> tokens, std::span<const uint8_t> chosen);
};

}  // namespace kvreplay
