#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "core/policy.hpp"
#include "exact/tile.hpp"
#include "measures/row_measure.hpp"
#include "replay/chain.hpp"
#include "replay/failures.hpp"
#include "replay/list_reading.hpp"
#include "replay/shortcut.hpp"

namespace kvreplay {

// Sizes and events of one cache over its whole life (measures.md, section 3).
struct LaneLedger {
  int64_t peak_kept = 0, peak_attended = 0, kept_sum = 0, kept_steps = 0;
  int64_t peak_bytes = 0, peak_aux_bytes = 0;                  // of one kv head's share
  int64_t score_bytes = 0, sketch_bytes = 0, index_bytes = 0;  // the parts of peak_aux_bytes
  int64_t bytes_sum = 0, final_bytes = 0;                      // after steps, scores and sketches included
  int64_t read_sum = 0, read_steps = 0;                        // bytes that attention reads
  int64_t peak_key_floats = 0, peak_value_floats = 0, peak_floats = 0, peak_weight_floats = 0;
  int64_t evictions = 0, quantised = 0;
  std::vector<int32_t> evicted_ages;            // in tokens, of each eviction
  int64_t attended_sum = 0, attended_rows = 0;  // over scored rows and heads
  double select_s = 0, attend_s = 0;
  std::map<std::string, double> extras;  // what the policy reports of itself
};

// Sums over rows of the prompt and, for oracles, of the future: of all heads of the stream, or null.
struct PromptSums {
  const double *columns = nullptr, *future = nullptr;  // [heads, prompt], [heads, tokens]
};

// Token lists for kept.h5; num and den are empty when all weights are 1.
struct LaneLists {
  TokenLists kept;
  std::vector<double> num, den;
  std::vector<TokenLists> attended;  // one series per query head; query-time methods only
  ListReading reading;
};

// What a run wants to see of a cache besides its outputs.
struct LaneWatch {
  bool audit = false;  // the cache works on a private copy that is poisoned
  SaveOptions save;
  bool prompt_streams = false;  // the prompt comes token by token
  bool set_error = false, prefix_error = false, ages = true;
  std::vector<TokenSpan> needles;
};

// Memory that all caches of a thread use in turn.
template <class Real>
struct LaneWorkspace {
  std::vector<Real> e, coefficients, tile_coefficients, set_coefficients, tile_values;
  std::vector<Real> solo_products, solo_queries;  // of SoloProducts
  std::vector<double> group, by_head;
  std::vector<uint8_t> chosen;
};

// One cache that is replayed: the unit that decides together is a kv head, or one query head.
template <class Real>
class Lane {
 public:
  virtual ~Lane() = default;
  virtual PromptNeeds needs() const = 0;
  virtual bool observes() const = 0;        // needs the probabilities of every decode row
  virtual bool streams_prompt() const = 0;  // wants the prompt as decode steps
  // Most tokens that a row attends to while `tokens` more arrive, for rankings.
  virtual int32_t attended_bound(int32_t tokens) const = 0;
  virtual bool heads_differ() const = 0;  // each query head attends to tokens of its own choice
  // Fixes the stream and the first query head.
  virtual void bind(const HeadStream<Real>& stream, int32_t first_head, const LaneWatch& watch) = 0;
  // Row t of the prompt, from needs().rows_from on; probabilities of all heads of the stream.
  virtual void observe_prompt(int32_t t, const HeadProbabilities& p) = 0;
  // Tokens 0..prompt-1 arrive in one call. larger: the same method's cache at a larger budget, which has read
  // them already, or null.
  virtual void read_prompt(const PromptSums& sums, const Lane* larger) = 0;
  // No smaller budget asks for what this one found any more.
  virtual void forget_selection() = 0;
  // The same without the cut: what this cache says when a budget is shared.
  virtual HeadScores head_scores(const PromptSums& sums) = 0;
  // Tokens tile.begin..tile.end-1 arrive one by one. Throws LaneError.
  virtual void replay(const Tile<Real>& tile, LaneWorkspace<Real>& workspace, LaneTile<Real>& result) = 0;
  // From the end of the prompt on (or from token 0, where it streams): what may be done instead of replay().
  virtual Shortcut shortcut() const = 0;
  virtual const BasicCache<Real>& cache() const = 0;
  virtual int32_t first_head() const = 0;
  virtual int32_t heads() const = 0;
  // Of `fixed` and `sliding`: token t arrives, nothing attends, who must leave leaves.
  virtual void step_alone(int32_t t) = 0;
  // Of `scores`: token t arrives; then the token `evicted` leaves, or nobody (negative).
  virtual void arrive(int32_t t) = 0;
  virtual void settle(int32_t t, int32_t evicted) = 0;
  // Rows that were attended to on its behalf, and what that took.
  virtual void count_attended(int64_t tokens, int64_t rows, double seconds) = 0;
  // Instead of read_prompt(): a device reads and cuts the prompt by the method's program, which takes the
  // chain() of it; then follow_cut(). Worth it where a selection is long work.
  virtual bool may_cut_elsewhere() const = 0;
  virtual void follow_cut(const ChainRecord& record, double seconds) = 0;
  // Instead of all of that: a device replays the cache from the first token on, by the method's programs,
  // unless something is asked for that only cores do. sums: as of read_prompt(); they are read until the end.
  virtual bool may_chain() const = 0;
  virtual ChainOrder chain(const ChainPrograms& programs, const PromptSums& sums) = 0;
  // Throws LaneError where the chain has ended early: before either follow_.
  virtual void check_chain(const ChainEnd& end) const = 0;
  // When it has ended; scored: [tokens].
  virtual void follow_chain(const ChainRecord& record, std::span<const uint8_t> scored) = 0;
  // Of the theorem behind the method, as things stand.
  virtual ErrorBound error_bound() const = 0;
  virtual const LaneLedger& ledger() const = 0;
  virtual const LaneLists& lists() const = 0;
};

// This cell failed; the others go on.
struct LaneError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace kvreplay
