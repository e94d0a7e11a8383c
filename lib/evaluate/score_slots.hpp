#pragma once
#include <cstdint>
#include <vector>

#include "evaluate/verbatim_row.hpp"

namespace kvreplay {

// Replays a cache that follows a ScoreRule row by row, but without moving rows. Older tokens are in slots with a copy
// of their values; recent ones are read from the trace. A token evicted within a tile is masked. At the end of the
// tile, tokens that grew old move into free slots. A row then costs a gather of the slots, sums over the recent window
// and a search for the lowest score; the output is one product per tile.
template <class Real>
class ScoreSlots final : public Evaluator<Real> {
 public:
  ScoreSlots(const ExactAttention<Real>& exact, CacheReplay<Real>& cache, const RequestedOutputs& asked);
  // Tokens without a strip attend by dot products with the tokens in the cache. So a token costs O(budget), whatever
  // the length of the trace.
  void rows(const Tile<Real>& tile, RowResults<Real>& results) override;

 private:
  void make_slots(int32_t count);
  int32_t most_slots(bool chunks) const;
  void load(const Tile<Real>& tile);
  void open(const Tile<Real>& tile);
  void find_logits(const Tile<Real>& tile);
  void step(const Tile<Real>& tile, int32_t t, int32_t row, RowResults<Real>& results);
  // Writes the coefficients of one head and adds its probabilities to the scores.
  void attend(const VerbatimRow<Real>& row, int32_t place);
  void attend_without_strip(int32_t head, int32_t t);
  // Adds what a row's head votes to the scores. e: [slots + window]; z: their sum, with a sink logit.
  void vote(const Real* e, double z, int32_t head, int32_t t);
  void add_rounded(const Real* e, double inverse, bool first, int32_t n);
  void vote_noisily(const Real* e, int32_t head, int32_t t);
  void mark_low(int32_t t);  // after the votes of all heads
  // Calls f(index in e, token, score) for each token of the cache, and perhaps for evicted ones of this tile.
  template <class F>
  void each_score(int32_t t, F f);
  Normaliser attend_alone(const VerbatimRow<Real>& row, Real* e);
  void evict(int32_t t);
  void evict_by_plan(int32_t t);
  int32_t lowest(int32_t t);
  void remove(int32_t token);
  void close(const Tile<Real>& tile, RowResults<Real>& results);
  void end_tile(int32_t end);
  void fill_slot(int32_t slot, int32_t token, double score);
  template <class F>
  void each_run(int32_t t, F f) const;
  int32_t heads() const { return replay_.cache().shape().heads; }
  int32_t span(int32_t t) const { return t + 1 - low_; }

  const ExactAttention<Real>& exact_;
  const HeadStream<Real>& stream_;
  CacheReplay<Real>& replay_;
  RequestedOutputs asked_;
  ScoreRule rule_;
  std::vector<int32_t> victims_;
  std::vector<double> scores_by_token_;  // [tokens], for a cut by the plan
  // [slots + window] low_marks: probabilities of a row; noisy: votes of a head, and its draws.
  std::vector<double> sums_, noise_;
  std::vector<int32_t> positions_;  // tokens of these draws
  bool in_chunks_ = false;          // a prompt in chunks is being read
  int32_t end_ = -1, low_ = 0, slots_ = 0,
          width_ = 0;                            // end_: end of the current tile, a column of zeros in its strip
  std::vector<int32_t> slot_token_, column_;     // [slots] token or -1; column in the strip, a zero column if empty
  std::vector<double> slot_score_, slot_guard_;  // guard: infinite for slots that must not be evicted
  std::vector<Real> slot_values_;                // [blocks, slots, v_dim]
  std::vector<Real> alive_;                      // [window] 1, or 0 after eviction
  std::vector<Real> slot_gone_, gone_;           // [slots], [window] added to logits: 0, or -infinity after eviction
  std::vector<double> score_;                    // [window] scores of tokens low_, low_ + 1, ...
  std::vector<Real> coefficients_, unscored_;    // [heads, scored rows, slots + window]; one unscored row
  std::vector<double> z_;                        // [heads, scored rows]
  std::vector<int32_t> scored_;
  std::vector<Real> product_;
  // For tokens without a strip: their indices, the packed keys of the slots, and the products with the queries, [heads,
  // such tokens, slots + window, which starts at a whole panel].
  std::vector<int32_t> without_strip_;
  std::vector<kernels::KeyPanels<Real>> slot_keys_;  // [blocks]; empty until needed
  std::vector<Real> logits_, queries_;
  int32_t window_panel_ = 0;  // first token of the window part of logits_
};

}  // namespace kvreplay
