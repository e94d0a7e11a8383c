#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "catalog/cell.hpp"
#include "exact/tile.hpp"
#include "measures/row_measure.hpp"

namespace kvreplay {

// Sizes and events of one cache over its whole life (measures.md, section 3).
struct LaneLedger {
  int64_t peak_kept = 0, peak_attended = 0, kept_sum = 0, kept_steps = 0;
  int64_t weight_floats = 0, peak_aux_bytes = 0, evictions = 0;
  double select_s = 0, attend_s = 0;
};

// Token lists for kept.h5; num and den are empty when all weights are 1.
struct LaneLists {
  TokenLists kept;
  std::vector<double> num, den;
  std::vector<TokenLists> attended;  // one series per query head; query-time methods only
};

// Memory that all caches of a thread use in turn.
template <class Real>
struct LaneWorkspace {
  std::vector<Real> e, coefficients, tile_coefficients, tile_values, product;
  std::vector<double> group, by_head;
  std::vector<uint8_t> chosen;
};

// One cache that is replayed: the unit that decides together is a kv head, or one query head.
template <class Real>
class Lane {
 public:
  virtual ~Lane() = default;
  virtual PromptNeeds needs() const = 0;
  virtual bool observes() const = 0;  // needs the probabilities of every decode row
  // Most tokens that a row attends to while `tokens` more arrive, for rankings.
  virtual int32_t attended_bound(int32_t tokens) const = 0;
  virtual bool heads_differ() const = 0;  // each query head attends to tokens of its own choice
  // Fixes the stream and the first query head; with `audit` on a private copy that is poisoned.
  virtual void bind(const HeadStream<Real>& stream, int32_t first_head, bool audit,
                    const SaveOptions& save) = 0;
  // Tokens 0..prompt-1 arrive in one call. column_sums: [heads of the stream, prompt] or null.
  virtual void read_prompt(const double* column_sums) = 0;
  // Tokens tile.begin..tile.end-1 arrive one by one. Throws LaneError.
  virtual void replay(const Tile<Real>& tile, LaneWorkspace<Real>& workspace, LaneTile<Real>& result) = 0;
  virtual const LaneLedger& ledger() const = 0;
  virtual const LaneLists& lists() const = 0;
};

// This cell failed; the others go on.
struct LaneError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace kvreplay
