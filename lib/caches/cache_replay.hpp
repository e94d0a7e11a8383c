#pragma once
#include <memory>

#include "caches/prompt_cut.hpp"

namespace kvreplay {

// Replays one cache. Its parts share its state: `steps` decides token by token, `prompt` cuts a prompt that arrives in
// one call, `account` counts tokens and bytes and lists what was held. An Evaluator computes the rows (evaluate/).
template <class Real>
class CacheReplay {
  CacheState<Real> state_;

 public:
  // The stream must live as long as this object. coded: shared by caches that store their rows alike; null: the cache
  // codes its rows itself, which an audit requires.
  CacheReplay(CacheSetup setup, const HeadStream<Real>& stream, const CacheWatch& watch,
              std::shared_ptr<CodedTokens<Real>> coded = {})
      : state_(std::move(setup), stream, watch, std::move(coded)) {}
  CacheReplay(const CacheReplay&) = delete;
  CacheReplay& operator=(const CacheReplay&) = delete;

  CacheAccount<Real> account{state_};
  CacheSteps<Real> steps{state_, account};
  PromptCut<Real> prompt{state_, account, steps};

  const BoundMethod& method() const { return state_.setup.method; }
  const CommonOptions& options() const { return state_.setup.options; }
  const HeadStream<Real>& stream() const { return state_.stream; }
  const BasicCache<Real>& cache() const { return state_.cache; }
  const Layout& layout() const { return state_.layout; }
  int32_t first_head() const { return state_.setup.first_head; }
  int32_t heads() const { return state_.heads(); }
  bool heads_differ() const { return method().heads_differ(options()); }
  bool observes() const { return state_.observes(); }
  bool observes_heads() { return state_.step_calls().observes_heads(); }  // each query head's probabilities apart
  bool hands_over() const { return state_.later.has_value(); }            // to another method, at the end of the prompt
  bool observes_later() const {  // from the end of the prompt on, by another method
    return state_.later && state_.later->traits().observes;
  }
  bool streams_prompt() const { return state_.prompt_streams; }
  bool moves_positions() const { return state_.moves_positions(); }
  // Merged rows, keys without some channels, tokens held several times, or rows that are coded again.
  bool rewrites_rows() const {
    const Layout own = method().layout();
    return own.own_rows > 0 || own.extra_rows > 0 || !options().merge.is_none() || !options().think.is_none() ||
           codes_again(options().row_format);
  }
  bool has_injected_numbers() const { return state_.setup.rng.has_injected(); }
  CodedTokens<Real>* coded_tokens() const { return state_.coded.get(); }  // null if the cache codes its rows itself
  // Upper bound on the tokens that a row attends to while `tokens` more arrive; used for rankings.
  int32_t most_attended(int32_t tokens) const {
    const int32_t read = method().traits().max_rows_read;
    return read != Traits::kUnbounded ? read : cache().size() + tokens;
  }
};

}  // namespace kvreplay
