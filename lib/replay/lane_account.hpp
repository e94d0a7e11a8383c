#pragma once
#include <algorithm>
#include <span>

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
  using Payload = typename Formatter<Real>::Payload;
  // C_t: its newest row is exact. `reads_all`: the step reads all of it.
  void attended(int64_t rows, const Payload& payload, bool reads_all) {
    ledger.peak_attended = std::max(ledger.peak_attended, rows);
    take_peaks(payload.keys, payload.values, payload.bytes);
    if (reads_all) read(payload.bytes);
  }
  // The step reads so much of C_t, and all sketches.
  void read(int64_t bytes) {
    ledger.read_sum += bytes + more_keys_ + besides_ + read_sketches_;
    ledger.read_steps += 1;
  }
  // S_t, coded.
  struct Kept {
    int64_t rows, blocks, evictions, quantised;
    Payload payload;
    int64_t coding;  // bytes of one kv head that the row format adds
  };
  void kept(const Kept& now, const Formatter<Real>& formatter, const ExtraBytes& extra_bytes,
            const Extras& extras) {
    const int64_t rows = now.rows, blocks = now.blocks;
    ledger.peak_kept = std::max(ledger.peak_kept, rows);
    ledger.evictions = now.evictions;
    ledger.quantised = now.quantised + extra_bytes.coded_rows;
    ledger.kept_sum += rows, ledger.kept_steps += 1;
    const int64_t weights = extra_bytes.weight_floats + (extras.reweighted ? 1 : 0);
    ledger.peak_weight_floats = std::max(ledger.peak_weight_floats, weights / blocks);
    besides_ =
        4 * weights / blocks + extra_bytes.code_bytes - formatter.exact_bytes(extra_bytes.coded_floats);
    more_keys_ = formatter.exact_bytes(extra_bytes.key_floats);
    const Payload& payload = now.payload;
    take_peaks(payload.keys + extra_bytes.key_floats, payload.values, payload.bytes + more_keys_);
    const int64_t sketches = extra_bytes.aux_bytes + formatter.exact_bytes(extra_bytes.sketch_floats);
    take_aux(sketches + extra_bytes.mark_bytes, now.coding, extras.positions ? 4 * rows : 0,
             extras.scores ? 8 * rows : 0, blocks);
    read_sketches_ = sketches_ - extra_bytes.mark_bytes / blocks;
    ledger.final_bytes = payload.bytes + more_keys_ + besides_ + aux_;
    ledger.bytes_sum += ledger.final_bytes;
  }

 private:
  void take_peaks(int64_t keys, int64_t values, int64_t bytes) {
    ledger.peak_key_floats = std::max(ledger.peak_key_floats, keys);
    ledger.peak_value_floats = std::max(ledger.peak_value_floats, values);
    ledger.peak_floats = std::max(ledger.peak_floats, keys + values);
    ledger.peak_bytes = std::max(ledger.peak_bytes, bytes + besides_);
  }
  // The first four are of all `blocks` kv heads but for `coding`, what the row format adds to one.
  void take_aux(int64_t sketches, int64_t coding, int64_t positions, int64_t scores, int64_t blocks) {
    aux_ = (sketches + positions + scores) / blocks + coding;
    sketches_ = sketches / blocks + coding;
    if (aux_ <= ledger.peak_aux_bytes) return;
    ledger.peak_aux_bytes = aux_;
    ledger.sketch_bytes = sketches_;
    // What a division by `blocks` leaves over is the scores' where there are any.
    ledger.index_bytes = scores > 0 ? positions / blocks : aux_ - sketches_;
    ledger.score_bytes = aux_ - sketches_ - ledger.index_bytes;
  }
  int64_t besides_ = 0;    // weights, and what codes take more or less than the numbers they stand for
  int64_t more_keys_ = 0;  // bytes of keys that stand twice
  int64_t aux_ = 0, sketches_ = 0, read_sketches_ = 0;  // of the last S_t; without what only decisions read
};

}  // namespace kvreplay
