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

// One cache that is to be replayed: what decides together is a kv head, one of its query heads, or a layer.
struct CacheSetup {
  BoundMethod method;  // its context knows the stream's shape and window
  CommonOptions options;
  Rng rng;
  GivenLists given = {};
  std::shared_ptr<const RowCoding> coding = {};  // null: rows as the trace has them
  int32_t first_head = 0;                        // of its query heads, in the stream
  bool prompt_streams = false;                   // the prompt comes token by token, because the run says so
};

// What a run wants to see of it besides its rows.
struct CacheWatch {
  bool audit = false;  // the cache works on a private copy in which everything that no policy may read is NaN
  bool kept = false;   // lists of what it holds
  bool ages = true;    // of evicted tokens
};

// What the engine may do for a cache instead of attending row by row (the policy's text stays the definition, and an
// audit always follows it). All of it needs rows that are tokens of the trace as they stand, where they were recorded.
struct FastPath {
  enum class Kind {
    none,
    fixed,    // cut once: a set of prompt tokens and everything that came later
    sliding,  // streams, but looks at no probability: who is evicted when is known before anybody attends
    scores,   // follows a ScoreRule
  };
  Kind kind = Kind::none;
  ScoreRule rule{};  // of `scores`
};

// Decides and accounts: streams a policy over its cache, keeps the ledger, and says what the cache holds when. Who
// computes the rows is an Evaluator's business (evaluate/).
template <class Real>
class CacheReplay {
 public:
  // The stream outlives it.
  // coded: what caches that store their rows alike share of them; null: the cache codes its rows itself, as an audit's
  // must.
  CacheReplay(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
              std::shared_ptr<CodedTokens<Real>> coded = {});
  CacheReplay(const CacheReplay&) = delete;
  CacheReplay& operator=(const CacheReplay&) = delete;

  const BoundMethod& method() const { return setup_.method; }
  const CommonOptions& options() const { return setup_.options; }
  const HeadStream<Real>& stream() const { return stream_; }
  const BasicCache<Real>& cache() const { return cache_; }
  const Layout& layout() const { return layout_; }
  // Beside a row format: merged rows, or tokens that are held several times.
  bool method_writes_rows() const {
    const Layout own = setup_.method.layout();
    return own.own_rows > 0 || own.extra_rows > 0 || !setup_.options.merge.is_none();
  }
  CodedTokens<Real>* coded_tokens() const { return coded_.get(); }  // or null
  int32_t first_head() const { return setup_.first_head; }
  int32_t heads() const { return setup_.method.context().shape.heads; }
  bool heads_differ() const { return setup_.method.heads_differ(setup_.options); }
  bool observes() const { return setup_.method.observes(setup_.options) || (rules_.streaming && merging_.observes()); }
  bool streams_prompt() const { return prompt_streams_; }
  bool evicts_first() const { return rules_.evict_first; }
  bool moves_positions() const { return setup_.options.positions == Positions::cache && stream_.rotate().active(); }
  FastPath fast_path() const;
  // Most tokens that a row attends to while `tokens` more arrive, for rankings.
  int32_t most_attended(int32_t tokens) const;

  // ---- The prompt, where it comes in one call.
  PromptNeeds needs() const { return setup_.method.needs(); }
  // The first row whose attention evicted rows are merged by; PromptNeeds::kNoRows: by none.
  int32_t merges_by_rows_from() const { return merging_.rows_from(stream_.prompt); }
  // Row t, from needs().rows_from on; probabilities of all heads of the stream.
  void observe_prompt(int32_t t, const HeadProbabilities& p);
  // larger: the same method's cache at a larger budget, which has read the prompt already, or null.
  void read_prompt(const PromptSums& sums, const CacheReplay* larger);
  void forget_selection();  // no smaller budget will ask for what this one found
  // What this head says when a budget is shared: read_prompt() without the cut.
  HeadScores head_scores(const PromptSums& sums);
  // The same where its heads cut together: of the tokens that it holds when the first cut is due that it was not told;
  // nothing if none is.
  HeadScores cut_scores(const PromptSums& sums);

  // ---- Steps. All of them throw ReplayError.
  // By the policy's text; `heads` is as core/step.hpp asks, and calls open_step() when C_t stands.
  template <class Heads>
  void step(int32_t t, Heads& heads, const StepScratch<Real>& scratch, bool attends) {
    memory_.reveal(t, t + 1);
    replay_step(SerialTeam{}, step_calls(), cache_, token_at(t), rules_, heads, scratch, attends);
    close_step(t);
  }
  void open_step(int32_t t);
  StepQueries<Real> queries_at(int32_t t) const;  // its own query heads'
  double logit_factor(int32_t token) const { return calls().logit_factor(cache_.size(), token); }
  // Of caches that look at no probability (fixed, sliding): tokens begin..end-1 arrive. Valid until the next call.
  const Residency& decide(int32_t begin, int32_t end);
  // Of caches that follow a score rule: token t arrives; then `evicted` leaves, or nobody (negative).
  void arrive(int32_t t);
  void leave(int32_t t, int32_t evicted);

  // ---- The account.
  void count_attended(int64_t tokens, int64_t rows, double seconds);
  void count_read(std::span<const uint8_t> read);  // by query-time methods, in a step
  bool watches_lists() const { return watch_.kept; }
  ResidentLists& lists() { return lists_; }
  const ResidentLists& lists() const { return lists_; }
  const Ledger& ledger() const { return keeper_.ledger; }
  void take_report();  // what the policy says of itself, as things stand

  // ---- A device in its place: from the first token on (follow), or for the prompt's cut (follow_cut).
  // Whether the policy's text may run there, as far as this cache knows.
  bool may_run_on_device() const;
  bool may_cut_on_device() const;
  DevicePolicy device_policy(const PromptSums& sums, bool prefix, bool set);
  void follow_cut(const DevicePolicyRecord& record, double seconds);
  void follow(const DevicePolicyRecord& record, std::span<const uint8_t> scored);  // [tokens]
  void check_end(const PolicyEnd& end) const;

 private:
  using Clock = std::chrono::steady_clock;
  TableCalls<Real> calls() const {
    const Method& m = setup_.method.method();
    return {const_cast<std::byte*>(setup_.method.policy()), m.host, m.template of<Real>()};
  }
  // The policy's, with what the options `wrapper` and `merge` put around them.
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
  std::shared_ptr<void> session_;  // of a policy that asks for one
  const HeadStream<Real>& stream_;
  CacheWatch watch_;
  StepRules rules_;
  Layout layout_;
  bool prompt_streams_ = false, reweighted_ = false;
  int64_t most_kept_ = -1;  // rows after a step; negative: nobody promises a bound
  std::shared_ptr<CodedTokens<Real>> coded_;
  CacheMemory<Real> memory_;
  BasicCache<Real> cache_;
  Formatter<Real> formatter_;
  LedgerKeeper keeper_;
  ResidentLists lists_;
  WrappedScores wrapped_;      // with the option `wrapper`
  Merging merging_;            // with the option `merge`
  int32_t cut_evictions_ = 0;  // of the prompt's cut
  Residency residency_;
  std::vector<int32_t> held_;                 // when decide() began
  std::vector<Residency::Eviction> evicted_;  // since then
};

}  // namespace kvreplay
