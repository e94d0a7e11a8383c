#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/policy.hpp"
#include "exact/head_stream.hpp"
#include "kernels/panels.hpp"

namespace kvreplay {

// Tokens of one row by descending exact probability (C8), for recalls: the mass of the best m tokens.
struct RowRanking {
  std::vector<double> top_mass;  // [m]: mass of the first m + 1 tokens, up to the requested depth
  std::vector<int32_t> rank;     // [tokens of the row]; kUnranked beyond the depth
  static constexpr int32_t kUnranked = 1 << 30;
};

// Results of the exact pass for a tile of query rows, shared by all methods: the strip exp(l - shift) of every row, its
// normaliser, and the exact output.
template <class Real>
struct Tile {
  int32_t begin = 0, end = 0;   // tokens that arrive during the tile
  std::vector<int32_t> rows;    // its tokens that have a strip, ascending
  std::vector<uint8_t> scored;  // [rows]
  LayerWindow window;
  int64_t stride = 0;  // tokens in a strip row, more than `end`; zeros after a row's own token
  int32_t heads = 0, v_dim = 0, blocks = 1;
  std::vector<Real> strip;  // [heads, rows, stride]; 0 where a row does not attend
  std::vector<Real> shift;  // [heads, rows] largest logit
  std::vector<double> z,
      l2;                 // [heads, rows] sum of the strip (and of a sink logit); ||x||_2 of the probabilities
  std::vector<Real> out;  // [heads, rows, v_dim], valid for scored rows
  // For tiles after the prompt: separate sums over the prompt's tokens and over later tokens, not normalised and
  // without a sink logit.
  bool divided = false;
  std::vector<double> z_prompt, z_later;  // [heads, rows]
  std::vector<Real> of_prompt, of_later;  // [heads, rows, v_dim], valid for scored rows
  // Exact attention over the prompt's tokens alone, filled by prefix_pass; 0 for a row that sees none of them.
  std::vector<Real> prefix_out;                       // [heads, rows, v_dim]; may be empty
  std::vector<RowRanking> ranking;                    // [rows] by the group's mean probability; may be empty
  std::vector<std::vector<RowRanking>> head_ranking;  // [heads][rows], only if a method needs it

  int64_t at(int32_t head, int32_t row) const { return int64_t(head) * int64_t(rows.size()) + row; }
  const Real* strip_row(int32_t head, int32_t row) const { return strip.data() + at(head, row) * stride; }
  // The ranking by the group's mean, or by one head if heads_differ; null if not ranked.
  const RowRanking* ranking_of(bool heads_differ, int32_t head, int32_t row) const {
    if (!heads_differ) return ranking.empty() ? nullptr : &ranking[size_t(row)];
    return head_ranking.empty() ? nullptr : &head_ranking[size_t(head)][size_t(row)];
  }
  void list_scored(std::vector<int32_t>& to) const {  // indices of scored rows
    to.clear();
    for (int32_t r = 0; r < int32_t(rows.size()); ++r)
      if (scored[size_t(r)] != 0) to.push_back(r);
  }
  bool any_scored() const { return std::find(scored.begin(), scored.end(), uint8_t{1}) != scored.end(); }
};

constexpr int32_t kStripPad = 16;
// Length of a strip for tokens 0..end-1: whole vectors, with at least one zero at the end.
constexpr int32_t padded(int32_t end) { return (end + kStripPad) / kStripPad * kStripPad; }

// Exact attention over a stream; packs its keys.
template <class Real>
class ExactAttention {
 public:
  explicit ExactAttention(const HeadStream<Real>& stream) : ExactAttention(stream, stream.keys.data()) {}
  // Attention to other keys, [blocks, tokens, dim], in place of the stream's.
  ExactAttention(const HeadStream<Real>& stream, const Real* keys);
  // Packs the keys of tokens that have arrived since.
  void take_arrived();
  // Fills strip, shift, z and l2 for tile.rows, which must all have queries.
  void strip_pass(Tile<Real>& tile) const;
  // Like strip_pass, plus the exact outputs of scored rows; divided if the tile is after the prompt.
  void exact_pass(Tile<Real>& tile) const;
  // Fills prefix_out of a divided tile: attention to the tokens that one-shot methods select from.
  void prefix_pass(Tile<Real>& tile) const;
  const HeadStream<Real>& stream() const { return stream_; }
  const kernels::KeyPanels<Real>& panels(int32_t block) const { return panels_[size_t(block)]; }

 private:
  void finish_row(Tile<Real>& tile, int32_t head, int32_t row) const;
  void weigh_values(const Tile<Real>& tile, int32_t first, int32_t last, std::vector<Real>& out) const;
  const HeadStream<Real>& stream_;
  const Real* keys_;
  int32_t packed_;                                // tokens
  std::vector<kernels::KeyPanels<Real>> panels_;  // [blocks]
};

// Ranks all scored rows down to `depth` tokens: by the group's mean (of_heads = false), or for each head.
template <class Real>
void rank_rows(Tile<Real>& tile, int32_t depth, bool of_heads);

// Column sums over rows from..prompt+ahead-1: the scores that rows give to each token of the prompt.
struct ColumnSum {
  TokenScore of = TokenScore::attention;
  int32_t ahead = 0, from = 0;
  bool of_prompt_attention() const { return of == TokenScore::attention && ahead == 0; }  // the sums that come first
  auto operator<=>(const ColumnSum&) const = default;
};
// One pass over the prompt's attention rows, shared by all methods.
struct PromptPass {
  std::vector<ColumnSum> sums;
  bool maxima = false;     // a method aggregates by the maximum over query heads
  int32_t rows_from = -1;  // first row for on_row; negative: none
  std::function<void(int32_t row, const HeadProbabilities&)> on_row;  // over tokens 0..row
};
// [heads + 1, prompt] for each sum. The last row sums each query row's maximum over heads; only filled with `maxima`.
template <class Real>
std::vector<std::vector<double>> prompt_pass(const ExactAttention<Real>& exact, const PromptPass& pass);

// Attention sums over the marked decode rows, [heads, tokens]: only an oracle may use them.
template <class Real>
std::vector<double> future_sums(const ExactAttention<Real>& exact, const std::vector<uint8_t>& scored);

// Up to this many tokens, a row that only some caches observe also gets a strip, which all caches share. In longer
// traces a strip costs more than the caches' own dot products.
constexpr int32_t kLongTrace = 16384;
// Rows of a tile, chosen so that the strips of a group fit together in the second-level cache. Whole blocks of
// a product where two blocks fit.
constexpr int32_t tile_rows(int32_t heads) { return heads == 1 ? 48 : heads == 2 ? 24 : heads <= 4 ? 12 : 8; }

}  // namespace kvreplay
