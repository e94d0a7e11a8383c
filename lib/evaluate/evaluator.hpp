#pragma once
#include <vector>

#include "caches/cache_replay.hpp"
#include "exact/tile.hpp"
#include "measures/needles.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// What somebody asks of rows besides their outputs.
struct RowsAsked {
  bool set = false, prefix = false;  // side outputs (RowResults)
  bool details = false;              // Work::details
  std::vector<TokenSpan> needles;
};

// Computes the rows of one cache, tile after tile. Several ways to do so exist (evaluate/choice.hpp); the policy's
// own text, step by step, is what the others are held against.
template <class Real>
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // Tokens tile.begin..tile.end-1 arrive, where the cache decides before anybody attends. Throws ReplayError.
  virtual void decide(const Tile<Real>&) {}
  // Results for the scored rows of the tile: everything but how outputs compare with the exact ones. Where decide()
  // does nothing, the tokens arrive here. Throws ReplayError.
  virtual void rows(const Tile<Real>& tile, RowResults<Real>& results) = 0;
  virtual void leave() {}  // the cache failed, and is of no more interest to those who share work with it
};

}  // namespace kvreplay
