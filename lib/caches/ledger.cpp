#include "caches/ledger.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/registry.hpp"

namespace kvreplay {

ListReading reading_of(const BoundMethod& method, const CommonOptions& options) {
  const Hooks hooks = method.method().hooks;
  const Layout own = method.layout();
  const bool appends = hooks.has(Hook::append), chooses = method.traits().chooses;
  // True if the cache after a step equals the set that the step attends to: no later eviction, no change of weights.
  const bool weighs_later = hooks.has(Hook::observe) && own.weights;
  const bool ends_as_attended = options.phase == Phase::stream && !weighs_later &&
                                (options.order == Order::evict_then_attend || (appends && !hooks.has(Hook::evict)));
  ListReading r;
  r.attends = !chooses && ends_as_attended;
  // A step's token joins with weight 1, unless the policy's append() gives it another weight.
  const bool joins_unknown = !chooses && !r.attends && appends && own.weights;
  // Rows of one token differ if they were coded in different blocks or at different times.
  const bool unlike_rows = own.extra_rows > 0 && waits(options.row_format);
  r.partial = method.traits().changes_logits || (chooses && own.weights) || method.method().single.samples ||
              joins_unknown || unlike_rows;
  return r;
}

template <class Real>
void ResidentLists::add(std::span<const int32_t> tokens, std::span<const Real> weights_num,
                        std::span<const Real> weights_den) {
  std::map<int32_t, std::pair<double, double>> weights;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= 0) {
      std::pair<double, double>& w = weights[tokens[i]];
      if (!weights_num.empty()) w.first += double(weights_num[i]), w.second += double(weights_den[i]);
    }
  for (const auto& [token, w] : weights) {
    kept.flat.push_back(token);
    if (!weights_num.empty()) num.push_back(w.first), den.push_back(w.second);
  }
  kept.close();
}

void ResidentLists::add_attended(size_t head, std::span<const int32_t> tokens, std::span<const uint8_t> chosen) {
  TokenLists& to = attended[head];
  to.flat.insert(to.flat.end(), tokens.begin(), tokens.end());
  to.close();
  if (any_counts_unread(chosen)) reading.partial = true;
}

template void ResidentLists::add(std::span<const int32_t>, std::span<const float>, std::span<const float>);
template void ResidentLists::add(std::span<const int32_t>, std::span<const double>, std::span<const double>);

void LedgerKeeper::attended(int64_t rows, const Payload& payload, bool reads_all) {
  ledger.peak_attended = std::max(ledger.peak_attended, rows);
  take_peaks(payload.keys, payload.values, payload.bytes);
  last_attended_ = payload.bytes;
  if (reads_all) attended_again();
}

void LedgerKeeper::attended_again() { read(last_attended_); }

void LedgerKeeper::read(int64_t bytes) { read_some(bytes, read_sketches_ - coding_); }

void LedgerKeeper::read_some(int64_t bytes, int64_t index) {
  ledger.read_sum += bytes + more_keys_ + besides_ + coding_ + index;
  ledger.read_steps += 1;
}

void LedgerKeeper::kept(const Kept& now, const ExtraBytes& extra) {
  ledger.peak_kept = std::max(ledger.peak_kept, now.rows);
  ledger.quantised = now.quantised + extra.coded_rows;
  const int64_t weights = extra.weight_floats + (now.reweighted ? 1 : 0);
  ledger.peak_weight_floats = std::max(ledger.peak_weight_floats, weights / now.blocks);
  besides_ = 4 * weights / now.blocks + extra.code_bytes - exact_bytes(extra.coded_floats);
  more_keys_ = exact_bytes(extra.key_floats);
  take_peaks(now.payload.keys + extra.key_floats, now.payload.values, now.payload.bytes + more_keys_);
  take_aux(now, extra.aux_bytes + std::llround(extra.floats_stored() * stored_bytes_), extra.mark_bytes);
  ledger.final_bytes = now.payload.bytes + spare_ + more_keys_ + besides_ + aux_;
  ledger.final_aux_bytes = aux_, last_kept_ = now.rows;
  kept_again(now.evictions);
  if (now.ends_prompt) ledger.prompt_bytes = ledger.final_bytes, ledger.prompt_aux_bytes = aux_;
}

void LedgerKeeper::kept_again(int64_t evictions) {
  ledger.evictions = evictions;
  ledger.kept_sum += last_kept_, ledger.kept_steps += 1;
  ledger.bytes_sum += ledger.final_bytes, ledger.aux_sum += aux_;
}

void LedgerKeeper::take_peaks(int64_t keys, int64_t values, int64_t bytes) {
  ledger.peak_key_floats = std::max(ledger.peak_key_floats, keys);
  ledger.peak_value_floats = std::max(ledger.peak_value_floats, values);
  ledger.peak_floats = std::max(ledger.peak_floats, keys + values);
  ledger.peak_bytes = std::max(ledger.peak_bytes, bytes + spare_ + besides_);
}

// sketches, mark_bytes: over all kv heads. Only decisions read marks.
void LedgerKeeper::take_aux(const Kept& now, int64_t sketches, int64_t mark_bytes) {
  const int64_t positions = now.positions ? 4 * now.rows : 0, scores = 8 * now.scores * now.rows;
  aux_ = (sketches + mark_bytes + positions + scores) / now.blocks + now.coding;
  sketches_ = (sketches + mark_bytes) / now.blocks + now.coding, coding_ = now.coding;
  read_sketches_ = sketches_ - mark_bytes / now.blocks;
  if (aux_ <= ledger.peak_aux_bytes) return;
  ledger.peak_aux_bytes = aux_;
  ledger.sketch_bytes = sketches_;
  // The scores absorb the remainder of the division by the kv heads, if there are any.
  ledger.index_bytes = scores > 0 ? positions / now.blocks : aux_ - sketches_;
  ledger.score_bytes = aux_ - sketches_ - ledger.index_bytes;
}

}  // namespace kvreplay
