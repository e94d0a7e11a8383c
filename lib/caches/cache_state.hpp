#pragma once
#include <memory>

#include "caches/cache_memory.hpp"
#include "caches/merged_calls.hpp"
#include "caches/prompt_view.hpp"
#include "caches/step_record.hpp"
#include "catalog/bound_method.hpp"
#include "core/replay_error.hpp"
#include "core/step.hpp"
#include "exact/head_stream.hpp"
#include "formats/formatter.hpp"

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

// The policy, the memory and the rules of one cache. The parts of a CacheReplay share it.
template <class Real>
struct CacheState {
  CacheState(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
             std::shared_ptr<CodedTokens<Real>> coded);

  const HostHooks& host() const { return setup.method.method().host; }
  int32_t heads() const { return setup.method.context().shape.heads; }
  bool observes() const { return setup.method.observes(setup.options) || (rules.streaming && merging.observes()); }
  bool moves_positions() const { return setup.options.positions == Positions::cache && stream.rotate().active(); }
  // The hooks of the policy, and those hooks wrapped by the options `wrapper` and `merge`.
  TableCalls<Real> calls() const {
    const Method& m = setup.method.method();
    return {const_cast<std::byte*>(setup.method.policy()), m.host, m.template of<Real>(),
            setup.method.traits().chooses};
  }
  MergedCalls<Real> step_calls() {
    return {{calls(), setup.options.wrapper.is_none() ? nullptr : &wrapped},
            setup.options.merge.is_none() ? nullptr : &merging};
  }
  // Called as late as possible: a cache that is cut needs the whole prompt only for a moment.
  void open_memory();
  // Makes room for `rows` rows only, and forgets evicted tokens.
  void shrink(size_t rows);
  void drop_scores();
  Token<Real> token_at(int32_t t) const;
  // Checks guarantees of the policy that types cannot enforce. Both functions throw ReplayError.
  void check() const;
  void check_end(const PolicyEnd& end) const;

  CacheSetup setup;
  std::shared_ptr<void> session;  // for a policy that requests one
  const HeadStream<Real>& stream;
  CacheWatch watch;
  StepRules rules;
  Layout layout;
  bool prompt_streams = false, reweighted = false;
  int64_t most_kept = Traits::kUnbounded;  // most rows after a step
  std::shared_ptr<CodedTokens<Real>> coded;
  CacheMemory<Real> memory;
  BasicCache<Real> cache;
  Formatter<Real> formatter;
  WrappedScores wrapped;  // with the option `wrapper`
  Merging merging;        // with the option `merge`

 private:
  void open_wrapper();
  Layout full_layout() const;
  int32_t most_merged_rows() const;
  int32_t most_rows() const;
};

}  // namespace kvreplay
