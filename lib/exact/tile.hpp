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

// Tokens of one row in order of their exact probability (C8), for recalls: how much the best m hold.
struct RowRanking {
  std::vector<double> top_mass;  // [m]: mass of the first m + 1 tokens, up to the depth that was asked for
  std::vector<int32_t> rank;     // [tokens of the row]; kUnranked beyond the depth
  static constexpr int32_t kUnranked = 1 << 30;
};

// What the exact pass leaves behind for a tile of query rows, once for all methods: the strip
// exp(l - shift) of every row, its normaliser, and the exact output.
template <class Real>
struct Tile {
  int32_t begin = 0, end = 0;   // tokens that arrive during the tile
  std::vector<int32_t> rows;    // tokens of it that have a strip, ascending
  std::vector<uint8_t> scored;  // [rows]
  int32_t window = 0;           // the layer's sliding window; 0: none
  int64_t stride = 0;           // of the strip: tokens, more than `end`; zeros behind a row's own token
  int32_t heads = 0, v_dim = 0, blocks = 1;
  std::vector<Real> strip;  // [heads, rows, stride]; 0 where a row does not attend
  std::vector<Real> shift;  // [heads, rows] largest logit
  std::vector<double> z,
      l2;                 // [heads, rows] sum of the strip (and of a sink logit); ||x||_2 of the probabilities
  std::vector<Real> out;  // [heads, rows, v_dim], of scored rows
  // Tiles after the prompt: the sums over its tokens and over the later ones apart, not normalised and
  // without a sink logit.
  bool divided = false;
  std::vector<double> z_prompt, z_later;  // [heads, rows]
  std::vector<Real> of_prompt, of_later;  // [heads, rows, v_dim], of scored rows
  // Exact attention over the prompt's tokens alone, filled by prefix_pass; 0 where a row sees none of them.
  std::vector<Real> prefix_out;                       // [heads, rows, v_dim]; may be empty
  std::vector<RowRanking> ranking;                    // [rows] of the group's mean probability; may be empty
  std::vector<std::vector<RowRanking>> head_ranking;  // [heads][rows], only where a method needs it

  int64_t at(int32_t head, int32_t row) const { return int64_t(head) * int64_t(rows.size()) + row; }
  const Real* strip_row(int32_t head, int32_t row) const { return strip.data() + at(head, row) * stride; }
  // Of the group's mean, or of a head that chooses for itself; null: not ranked.
  const RowRanking* ranking_of(bool heads_differ, int32_t head, int32_t row) const {
    if (!heads_differ) return ranking.empty() ? nullptr : &ranking[size_t(row)];
    return head_ranking.empty() ? nullptr : &head_ranking[size_t(head)][size_t(row)];
  }
  void list_scored(std::vector<int32_t>& to) const {  // which rows are
    to.clear();
    for (int32_t r = 0; r < int32_t(rows.size()); ++r)
      if (scored[size_t(r)] != 0) to.push_back(r);
  }
  bool any_scored() const { return std::find(scored.begin(), scored.end(), uint8_t{1}) != scored.end(); }
};

constexpr int32_t kStripPad = 16;
// Length of a strip for tokens 0..end-1: whole vectors, and at least one zero.
constexpr int32_t padded(int32_t end) { return (end + kStripPad) / kStripPad * kStripPad; }

// Exact attention over a stream, whose keys it packs.
template <class Real>
class ExactAttention {
 public:
  explicit ExactAttention(const HeadStream<Real>& stream) : ExactAttention(stream, stream.keys.data()) {}
  // Against other keys, [blocks, tokens, dim], than the stream's own.
  ExactAttention(const HeadStream<Real>& stream, const Real* keys);
  // Fills strip, shift, z and l2 for tile.rows. Needs queries for all of them.
  void strip_pass(Tile<Real>& tile) const;
  // Fills what strip_pass does, and the exact outputs of scored rows; divided where the tile lies after the prompt.
  void exact_pass(Tile<Real>& tile) const;
  // Fills prefix_out of a divided tile: what one-shot methods chose from.
  void prefix_pass(Tile<Real>& tile) const;
  const HeadStream<Real>& stream() const { return stream_; }
  const kernels::KeyPanels<Real>& panels(int32_t block) const { return panels_[size_t(block)]; }

 private:
  void finish_row(Tile<Real>& tile, int32_t head, int32_t row) const;
  void weigh_values(const Tile<Real>& tile, int32_t first, int32_t last, std::vector<Real>& out) const;
  const HeadStream<Real>& stream_;
  std::vector<kernels::KeyPanels<Real>> panels_;  // [blocks]
};

// Rankings of all scored rows down to `depth` tokens: of the group (heads = false) or of each head.
template <class Real>
void rank_rows(Tile<Real>& tile, int32_t depth, bool of_heads);

// Column sums over rows from..prompt+ahead-1 of what a row gives to each token of the prompt.
struct ColumnSum {
  TokenScore of = TokenScore::attention;
  int32_t ahead = 0, from = 0;
  bool of_prompt_attention() const { return of == TokenScore::attention && ahead == 0; }  // these come first
  auto operator<=>(const ColumnSum&) const = default;
};
// One pass over the prompt's attention rows, for everyone.
struct PromptPass {
  std::vector<ColumnSum> sums;
  bool maxima = false;     // some method aggregates by the maximum over query heads
  int32_t rows_from = -1;  // first row for on_row; negative: none
  std::function<void(int32_t row, const HeadProbabilities&)> on_row;  // over tokens 0..row
};
// [heads + 1, prompt] for each of the sums. The last row sums what each row's largest head gives (filled only with
// `maxima`).
template <class Real>
std::vector<std::vector<double>> prompt_pass(const ExactAttention<Real>& exact, const PromptPass& pass);

// Sums over the marked decode rows, [heads, tokens]: what only an oracle knows.
template <class Real>
std::vector<double> future_sums(const ExactAttention<Real>& exact, const std::vector<uint8_t>& scored);

// Up to so many tokens a row that only some cache observes has a strip too, which all of them share. Beyond,
// a strip costs more than the caches' own dot products.
constexpr int32_t kLongTrace = 16384;
// Rows of a tile, so that the strips of a group stay in the second-level cache together; whole blocks of a
// product, where there is room for two.
constexpr int32_t tile_rows(int32_t heads) { return heads == 1 ? 48 : heads == 2 ? 24 : heads <= 4 ? 12 : 8; }

}  // namespace kvreplay
