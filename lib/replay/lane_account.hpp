#pragma once
#include <algorithm>

#include "formats/formatter.hpp"
#include "replay/lane.hpp"

namespace kvreplay {

// Keeps a cache's ledger (measures.md, section 3): rows and bytes when C_t stands and when S_t stands. A
// cache that spans a layer charges one kv head's share.
template <class Real>
class LaneAccount {
 public:
  LaneLedger ledger;

  // What the engine charges itself: 4 bytes a position that the layout does not imply, 8 bytes a score.
  struct Extras {
    bool positions, scores, reweighted;
  };
  // C_t: its newest row is exact.
  void attended(const BasicCache<Real>& cache, Formatter<Real>& formatter) {
    ledger.peak_attended = std::max<int64_t>(ledger.peak_attended, cache.size());
    take_peak(formatter.payload_bytes(cache));
  }
  // S_t, coded.
  void kept(const BasicCache<Real>& cache, Formatter<Real>& formatter, const Charge& charge,
            const Extras& extras) {
    const int64_t rows = cache.size(), blocks = cache.shape().blocks;
    ledger.peak_kept = std::max(ledger.peak_kept, rows);
    ledger.evictions = cache.evictions();
    ledger.quantised = formatter.quantised() + charge.coded_rows;
    ledger.kept_sum += rows, ledger.kept_steps += 1;
    besides_ = 4 * (charge.weight_floats + (extras.reweighted ? 1 : 0)) / blocks + charge.code_bytes -
               formatter.exact_bytes(charge.coded_floats);
    take_peak(formatter.payload_bytes(cache) + formatter.exact_bytes(charge.key_floats));
    int64_t aux = charge.aux_bytes + formatter.exact_bytes(charge.sketch_floats);
    aux += (extras.positions ? 4 * rows : 0) + (extras.scores ? 8 * rows : 0);
    ledger.peak_aux_bytes = std::max(ledger.peak_aux_bytes, aux / blocks + formatter.sketch_bytes(cache));
  }

 private:
  void take_peak(int64_t payload) { ledger.peak_bytes = std::max(ledger.peak_bytes, payload + besides_); }
  int64_t besides_ = 0;  // weights, and what codes take more or less than the numbers they stand for
};

}  // namespace kvreplay
