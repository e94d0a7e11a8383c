#pragma once
#include <span>

#include "caches/cache_state.hpp"
#include "caches/ledger.hpp"
#include "measures/row_result.hpp"

namespace kvreplay {

// Keeps the account of one cache: its ledger of tokens and bytes, the lists of the tokens that it held, and the ages of
// evicted ones.
template <class Real>
class CacheAccount {
 public:
  explicit CacheAccount(CacheState<Real>& state);

  // Call when C_t is complete: its newest row is exact, unless the row format codes it at once.
  void open_step(int32_t t);
  // Call when S_t is complete, after the prompt and after every step: checks it, codes due rows and charges it. Throws
  // ReplayError.
  void close_step(int32_t t);
  // Likewise for a cache whose policy does not run and whose rows are unmodified tokens: a step of the last one's size
  // costs what that one did.
  void open_step_by_rule(int32_t t);
  void close_step_by_rule(int32_t t);
  void count_attended(int64_t tokens, int64_t rows, double seconds);
  // For query-time methods, in a step. read: flags of the rows, of all heads together. Fills the counts of `to`.
  void count_read(std::span<const uint8_t> read, StepReads& to);
  void add_attention_seconds(double seconds) { keeper_.ledger.attend_s += seconds; }
  void add_selection_seconds(double seconds) { keeper_.ledger.select_s += seconds; }
  void take_report();  // the policy's extras in its current state
  bool has_lists() const { return state_.watch.kept; }
  ResidentLists& lists() { return lists_; }
  std::vector<int32_t> tokens_held() const;  // now, ascending, each once
  // The tokens held at the end of the prompt. Filled if the cache is watched for them.
  const std::vector<int32_t>& after_prompt() const { return after_prompt_; }
  Ledger& ledger() { return keeper_.ledger; }
  const Ledger& ledger() const { return keeper_.ledger; }
  const PageTable& page_table() const { return pages_; }

 private:
  void note_ages(int32_t t);
  void charge(int32_t t);
  void list_kept();
  ExtraBytes of_method() const;
  ExtraBytes extra_bytes(int32_t t) const;
  void follow_pages(int32_t t);

  CacheState<Real>& state_;
  LedgerKeeper keeper_;
  ResidentLists lists_;
  std::vector<int32_t> after_prompt_;
  PageTable pages_;
  double row_bytes_ = 0;                            // a plain row takes
  int32_t paged_evictions_ = 0;                     // evictions that the table of pages knows
  int32_t prompt_peak_ = 0;                         // most rows of the cache while the prompt arrives
  int32_t charged_open_ = -1, charged_close_ = -1;  // sizes in the last step by a rule
};

}  // namespace kvreplay
