#include "caches/ledger.hpp"

#include <algorithm>

namespace kvreplay {

void LedgerKeeper::attended(int64_t rows, const Payload& payload, bool reads_all) {
  ledger.peak_attended = std::max(ledger.peak_attended, rows);
  take_peaks(payload.keys, payload.values, payload.bytes);
  if (reads_all) read(payload.bytes);
}

void LedgerKeeper::read(int64_t bytes) {
  ledger.read_sum += bytes + more_keys_ + besides_ + read_sketches_;
  ledger.read_steps += 1;
}

void LedgerKeeper::kept(const Kept& now, const ExtraBytes& extra) {
  ledger.peak_kept = std::max(ledger.peak_kept, now.rows);
  ledger.evictions = now.evictions;
  ledger.quantised = now.quantised + extra.coded_rows;
  ledger.kept_sum += now.rows, ledger.kept_steps += 1;
  const int64_t weights = extra.weight_floats + (now.reweighted ? 1 : 0);
  ledger.peak_weight_floats = std::max(ledger.peak_weight_floats, weights / now.blocks);
  besides_ = 4 * weights / now.blocks + extra.code_bytes - exact_bytes(extra.coded_floats);
  more_keys_ = exact_bytes(extra.key_floats);
  take_peaks(now.payload.keys + extra.key_floats, now.payload.values, now.payload.bytes + more_keys_);
  take_aux(now, extra.aux_bytes + exact_bytes(extra.sketch_floats), extra.mark_bytes);
  if (extra.sketch_floats_read >= 0) read_sketches_ += exact_bytes(extra.sketch_floats_read - extra.sketch_floats);
  if (extra.aux_bytes_read >= 0) read_sketches_ += extra.aux_bytes_read - extra.aux_bytes;
  ledger.final_bytes = now.payload.bytes + more_keys_ + besides_ + aux_;
  ledger.bytes_sum += ledger.final_bytes;
  ledger.final_aux_bytes = aux_, ledger.aux_sum += aux_;
  if (now.ends_prompt) ledger.prompt_bytes = ledger.final_bytes, ledger.prompt_aux_bytes = aux_;
}

void LedgerKeeper::take_peaks(int64_t keys, int64_t values, int64_t bytes) {
  ledger.peak_key_floats = std::max(ledger.peak_key_floats, keys);
  ledger.peak_value_floats = std::max(ledger.peak_value_floats, values);
  ledger.peak_floats = std::max(ledger.peak_floats, keys + values);
  ledger.peak_bytes = std::max(ledger.peak_bytes, bytes + besides_);
}

// sketches, mark_bytes: over all kv heads. Only decisions read marks.
void LedgerKeeper::take_aux(const Kept& now, int64_t sketches, int64_t mark_bytes) {
  const int64_t positions = now.positions ? 4 * now.rows : 0, scores = now.scores ? 8 * now.rows : 0;
  aux_ = (sketches + mark_bytes + positions + scores) / now.blocks + now.coding;
  sketches_ = (sketches + mark_bytes) / now.blocks + now.coding;
  read_sketches_ = sketches_ - mark_bytes / now.blocks;
  if (aux_ <= ledger.peak_aux_bytes) return;
  ledger.peak_aux_bytes = aux_;
  ledger.sketch_bytes = sketches_;
  // The scores absorb the remainder of the division by the kv heads, if there are any.
  ledger.index_bytes = scores > 0 ? positions / now.blocks : aux_ - sketches_;
  ledger.score_bytes = aux_ - sketches_ - ledger.index_bytes;
}

}  // namespace kvreplay
