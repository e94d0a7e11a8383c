#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "caches/page_table.hpp"
#include "catalog/bound_method.hpp"
#include "catalog/token_lists.hpp"
#include "core/cache.hpp"
#include "core/method_info.hpp"
#include "formats/formatter.hpp"

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

// Sizes and events of one cache over its whole life (measures.md, section 3).
struct Ledger {
  int64_t peak_kept = 0, peak_attended = 0, kept_sum = 0, kept_steps = 0;
  int64_t peak_bytes = 0, peak_aux_bytes = 0;                  // share of one kv head
  int64_t score_bytes = 0, sketch_bytes = 0, index_bytes = 0;  // the parts of peak_aux_bytes
  int64_t bytes_sum = 0, final_bytes = 0;                      // after steps, scores and sketches included
  int64_t aux_sum = 0, final_aux_bytes = 0;                    // the part of these that is not rows
  int64_t prompt_bytes = 0, prompt_aux_bytes = 0;  // like final_bytes and final_aux_bytes, after the prompt's cut
  int64_t read_sum = 0, read_steps = 0;            // bytes that attention reads
  int64_t final_rows = 0;                          // after the last step
  double final_index_bytes = 0;                    // what a query-time method's index takes then
  int64_t peak_key_floats = 0, peak_value_floats = 0, peak_floats = 0, peak_weight_floats = 0;
  int64_t evictions = 0, quantised = 0, recoded = 0;
  std::vector<int32_t> evicted_ages;            // age of each evicted token, in tokens
  int64_t attended_sum = 0, attended_rows = 0;  // summed over scored rows and heads
  double select_s = 0, attend_s = 0;
  std::map<std::string, double> extras;  // the policy's own numbers
  PageLedger pages;                      // with the option `page`
  double page_bytes = 0;                 // bytes of one page's rows
};

// Keeps a cache's ledger: rows and bytes at C_t and at S_t. A cache that spans a layer charges the share of one kv
// head.
class LedgerKeeper {
 public:
  Ledger ledger;

  // stored_bytes: bytes of one number in the trace.
  explicit LedgerKeeper(int32_t stored_bytes = 4) : stored_bytes_(stored_bytes) {}
  // C_t: its newest row is exact. reads_all: the step reads the whole cache.
  void attended(int64_t rows, const Payload& payload, bool reads_all);
  // Bytes of slots without a row, in pages that are resident, from now on. They are stored, but not read.
  void hold_spare(int64_t bytes) { spare_ = bytes; }
  // Bytes of C_t that a step reads; adds all sketches.
  void read(int64_t bytes);
  // Likewise for a query-time method. index: bytes that it reads to choose.
  void read_some(int64_t bytes, int64_t index);
  // S_t after coding. The engine charges 4 bytes per position that the layout does not imply, and 8 per score. scores:
  // number in each row.
  struct Kept {
    int64_t rows, blocks, evictions, quantised;
    Payload payload;
    int64_t coding;  // bytes per kv head that the row format adds
    bool positions;
    int32_t scores;
    bool reweighted;
    bool ends_prompt;  // the prompt ends here
  };
  void kept(const Kept& now, const ExtraBytes& extra);
  // As attended() and kept(), with what the last calls were given.
  void attended_again();
  void kept_again(int64_t evictions);

 private:
  void take_peaks(int64_t keys, int64_t values, int64_t bytes);
  void take_aux(const Kept& now, int64_t sketches, int64_t mark_bytes);
  int64_t exact_bytes(int64_t numbers) const { return numbers * stored_bytes_; }

  int32_t stored_bytes_;
  int64_t last_attended_ = 0, last_kept_ = 0;  // bytes that are read at C_t, rows at S_t
  int64_t besides_ = 0;  // bytes of weights, and the difference between codes and the numbers that they replace
  int64_t spare_ = 0;
  int64_t more_keys_ = 0;  // bytes of keys that are stored twice
  int64_t aux_ = 0, sketches_ = 0,
          read_sketches_ = 0;  // at the last S_t; read_sketches_ excludes what only decisions read
  int64_t coding_ = 0;         // likewise, of the row format
};

}  // namespace kvreplay
