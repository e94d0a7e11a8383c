#pragma once
#include <chrono>
#include <memory>
#include <span>

#include "caches/cache_memory.hpp"
#include "caches/device_policy.hpp"
#include "caches/ledger.hpp"
#include "caches/merged_calls.hpp"
#include "caches/prompt_view.hpp"
#include "caches/residency.hpp"
#include "caches/resident_lists.hpp"
#include "catalog/bound_method.hpp"
#include "core/replay_error.hpp"
#include "exact/head_stream.hpp"

namespace kvreplay {

// One cache to be replayed. A kv head, one of its query heads, or a layer decides as a unit.
struct CacheSetup {
  BoundMethod method;  // its context has the stream's shape and window
  CommonOptions options;
  Rng rng;
  GivenLists given = {};
  std::shared_ptr<const RowCoding> coding = {};  // null: rows as the trace has them
  int32_t first_head = 0;                        // first of its query heads in the stream
  bool prompt_streams = false;                   // the prompt arrives token by token because the run says so
};

// What a run wants to observe of a cache besides its rows.
struct CacheWatch {
  bool audit = false;  // use a private copy in which everything that no policy may read is NaN
  bool kept = false;   // lists of the tokens held
  bool ages = true;    // ages of evicted tokens
};

// Shortcuts that the engine may take instead of attending row by row. The policy's code remains the definition, and an
// audit always follows it. Every shortcut needs rows that are unmodified tokens of the trace at their recorded
// positions.
struct FastPath {
  enum class Kind {
    none,
    fixed,    // cut once: a set of prompt tokens and every later token
    sliding,  // streams without reading probabilities: evictions are known before any query attends
    scores,   // follows a ScoreRule
  };
  Kind kind = Kind::none;
  ScoreRule rule{};  // if kind is scores
};

// Decides and accounts: runs a policy over its cache token by token, keeps the ledger, and reports which tokens the
// cache holds when. An Evaluator computes the rows (evaluate/).
template <class Real>
class CacheReplay {
 public:
  // The stream must live as long as this object. coded: shared by caches that store their rows alike; null: the cache
  // codes its rows itself, which an audit requires.
  CacheReplay(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
              std::shared_ptr<CodedTokens<Real>> coded = {});
  CacheReplay(const CacheReplay&) = delete;
  CacheReplay& operator=(const CacheReplay&) = delete;

  const BoundMethod& method() const { return setup_.method; }
  const CommonOptions& options() const { return setup_.options; }
  const HeadStream<Real>& stream() const { return stream_; }
  const BasicCache<Real>& cache() const { return cache_; }
  const Layout& layout() const { return layout_; }
  // Apart from the row format: merged rows, or tokens held several times.
  bool method_writes_rows() const {
    const Layout own = setup_.method.layout();
    return own.own_rows > 0 || own.extra_rows > 0 || !setup_.options.merge.is_none();
  }
  CodedTokens<Real>* coded_tokens() const { return coded_.get(); }  // null if the cache codes its rows itself
  int32_t first_head() const { return setup_.first_head; }
  int32_t heads() const { return setup_.method.context().shape.heads; }
  bool heads_differ() const { return setup_.method.heads_differ(setup_.options); }
  bool observes() const { return setup_.method.observes(setup_.options) || (rules_.streaming && merging_.observes()); }
  bool streams_prompt() const { return prompt_streams_; }
  bool evicts_first() const { return rules_.evict_first; }
  bool moves_positions() const { return setup_.options.positions == Positions::cache && stream_.rotate().active(); }
  FastPath fast_path() const;
  // Upper bound on the tokens that a row attends to while `tokens` more arrive; used for rankings.
  int32_t most_attended(int32_t tokens) const;

  // ---- The prompt, if it arrives in one call.
  PromptNeeds needs() const { return setup_.method.needs(); }
  // The first row whose attention the merge rule uses; PromptNeeds::kNoRows if it uses none.
  int32_t merge_rows_from() const { return merging_.rows_from(stream_.prompt); }
  // Shows row t, from needs().rows_from on; p: probabilities of all heads of the stream.
  void observe_prompt(int32_t t, const HeadProbabilities& p);
  // larger: the same method's cache at a larger budget, which has read the prompt already; or null.
  void read_prompt(const PromptSums& sums, const CacheReplay* larger);
  void forget_selection();  // call when no smaller budget will reuse the selection
  // The head's scores for sharing a budget: read_prompt() without the cut.
  HeadScores head_scores(const PromptSums& sums);
  // For heads that cut together: scores of the tokens held at the first undecided cut; empty if there is none.
  HeadScores cut_scores(const PromptSums& sums);

  // ---- Steps. All functions throw ReplayError.
  // Runs a step by the policy's code. `heads` is as core/step.hpp requires and calls open_step() when C_t is complete.
  template <class Heads>
  void step(int32_t t, Heads& heads, const StepScratch<Real>& scratch, bool attends) {
    memory_.reveal(t, t + 1);
    replay_step(SerialTeam{}, step_calls(), cache_, token_at(t), rules_, heads, scratch, attends);
    close_step(t);
  }
  void open_step(int32_t t);
  StepQueries<Real> queries_at(int32_t t) const;  // queries of the cache's heads
  double logit_factor(int32_t token) const { return calls().logit_factor(cache_.size(), token); }
  // For caches that read no probabilities (fixed, sliding): tokens begin..end-1 arrive. Valid until the next call.
  const Residency& decide(int32_t begin, int32_t end);
  // For caches that follow a score rule: token t arrives, then `evicted` is evicted (negative: no token).
  void arrive(int32_t t);
  void leave(int32_t t, int32_t evicted);

  // ---- Accounting.
  void count_attended(int64_t tokens, int64_t rows, double seconds);
  void count_read(std::span<const uint8_t> read);  // for query-time methods, in a step
  bool watches_lists() const { return watch_.kept; }
  ResidentLists& lists() { return lists_; }
  const ResidentLists& lists() const { return lists_; }
  const Ledger& ledger() const { return keeper_.ledger; }
  void take_report();  // the policy's extras in its current state

  // ---- Replay on a device: from the first token on (follow), or only the prompt's cut (follow_cut).
  // Whether the policy may run there, as far as this cache can tell.
  bool may_run_on_device() const;
  bool may_cut_on_device() const;
  DevicePolicy device_policy(const PromptSums& sums, bool prefix, bool set);
  void follow_cut(const DevicePolicyRecord& record, double seconds);
  void follow(const DevicePolicyRecord& record, std::span<const uint8_t> scored);  // scored: [tokens]
  void check_end(const PolicyEnd& end) const;

 private:
  using Clock = std::chrono::steady_clock;
  TableCalls<Real> calls() const {
    const Method& m = setup_.method.method();
    return {const_cast<std::byte*>(setup_.method.policy()), m.host, m.template of<Real>(),
            setup_.method.traits().chooses};
  }
  // The policy's calls, wrapped by the options `wrapper` and `merge`.
  MergedCalls<Real> step_calls() {
    return {{calls(), setup_.options.wrapper.is_none() ? nullptr : &wrapped_},
            setup_.options.merge.is_none() ? nullptr : &merging_};
  }
  void open_wrapper();
  void receive_prompt(const PromptSums& sums);
  Layout full_layout() const;
  int32_t most_merged_rows() const;
  void open_memory();
  void close_prompt();
  void take_over(const DevicePolicyRecord& record);
  Prompt<Real> prompt(const PromptSums& sums) const;
  Token<Real> token_at(int32_t t) const;
  void step_unattended(int32_t t);
  void close_step(int32_t t);
  void note_ages(int32_t t, int32_t evictions);
  void keep_account(int32_t t);
  void keep_account(int32_t t, const StepRecord& step, bool scored);
  ExtraBytes extra_bytes() const;
  void check() const;
  int32_t most_rows() const;
  void list_record(const DevicePolicyRecord::Rows& rows, int32_t from);

  CacheSetup setup_;
  std::shared_ptr<void> session_;  // for a policy that requests one
  const HeadStream<Real>& stream_;
  CacheWatch watch_;
  StepRules rules_;
  Layout layout_;
  bool prompt_streams_ = false, reweighted_ = false;
  int64_t most_kept_ = -1;  // most rows after a step; negative: no guaranteed bound
  std::shared_ptr<CodedTokens<Real>> coded_;
  CacheMemory<Real> memory_;
  BasicCache<Real> cache_;
  Formatter<Real> formatter_;
  LedgerKeeper keeper_;
  ResidentLists lists_;
  WrappedScores wrapped_;      // with the option `wrapper`
  Merging merging_;            // with the option `merge`
  int32_t cut_evictions_ = 0;  // evictions by the prompt's cut
  Residency residency_;
  std::vector<int32_t> held_;                 // tokens when decide() began
  std::vector<Residency::Eviction> evicted_;  // evictions since then
};

}  // namespace kvreplay
