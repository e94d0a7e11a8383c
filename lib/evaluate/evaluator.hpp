#pragma once
#include <cstdint>
#include <vector>

#include "caches/cache_replay.hpp"
#include "exact/tile.hpp"
#include "measures/needles.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// Memory that the caches of a thread use one after another, while each is replayed step by step.
template <class Real>
struct Workspace {
  std::vector<Real> e, coefficients;  // for one step
  std::vector<double> group, by_head, log_sums;
  std::vector<uint8_t> chosen;
  std::vector<double> choice_weights;
  std::vector<Real> tile_coefficients, set_coefficients, tile_values, coded_values;  // for a tile's outputs
  std::vector<Real> products, queries;                                               // for rows without a strip
};

// Results requested for rows besides their outputs.
struct RequestedOutputs {
  bool set = false, prefix = false;  // side outputs (RowResults)
  bool details = false;              // Work::details
  std::vector<TokenSpan> needles;
  std::vector<int32_t> recall_k;  // empty where rows are not ranked
  bool reads = true;              // Work::reads
};

// Makes room for the recalls of a tile's rows.
template <class Real>
void open_recalls(const RequestedOutputs& asked, RowResults<Real>& results) {
  results.recalls.assign(results.cells() * asked.recall_k.size(), {});
}

// Computes the rows of one cache, tile after tile. There are several ways (evaluate/choice.hpp); all must agree with
// the step-by-step run of the policy's code.
template <class Real>
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // For caches that decide before any query attends: tokens tile.begin..tile.end-1 arrive. Throws ReplayError.
  virtual void decide(const Tile<Real>&) {}
  // Writes results for the scored rows of the tile, except the comparison of outputs with the exact ones. If decide()
  // does nothing, the tokens arrive here. Throws ReplayError.
  virtual void rows(const Tile<Real>& tile, RowResults<Real>& results) = 0;
  virtual void leave() {}  // call when the cache failed: caches that share work ignore it from then on
};

}  // namespace kvreplay
