#pragma once
#include <map>

#include "evaluate/evaluator.hpp"
#include "evaluate/row_products.hpp"
#include "evaluate/tile_output.hpp"
#include "exact/tile.hpp"
#include "formats/coded_tokens.hpp"

namespace kvreplay {

// Strips over coded keys, for caches that store their rows alike: exp(l - shift) as in the exact pass, but with the
// decoded keys of all tokens.
template <class Real>
class CodedStrips {
 public:
  // Strips for the rows of `tile` that have a strip; valid until the next tile.
  const Tile<Real>& of(CodedTokens<Real>& tokens, const HeadStream<Real>& stream, const Tile<Real>& tile) {
    tokens.code_until(stream.arrived());
    auto& own = of_[&tokens];
    if (own == nullptr) own = std::make_unique<Own>(stream, tokens.keys());
    own->exact.take_arrived();
    if (own->tile.begin == tile.begin && own->tile.rows == tile.rows) return own->tile;
    own->tile.begin = tile.begin, own->tile.end = tile.end, own->tile.window = tile.window;
    own->tile.rows = tile.rows;
    if (!tile.rows.empty()) own->exact.strip_pass(own->tile);
    return own->tile;
  }

 private:
  struct Own {
    ExactAttention<Real> exact;
    Tile<Real> tile;
    Own(const HeadStream<Real>& stream, const Real* keys) : exact(stream, keys) { tile.begin = -1; }
  };
  std::map<const CodedTokens<Real>*, std::unique_ptr<Own>> of_;
};

// The reference: runs the policy's code step by step (core/step.hpp), with logits from the shared strip and outputs
// deferred to the end of the tile. Audits always use it, and so do caches that write or weigh rows or choose which rows
// to read.
template <class Real>
class Stepwise final : public Evaluator<Real> {
 public:
  Stepwise(CacheReplay<Real>& cache, const RequestedOutputs& asked, bool audit, Workspace<Real>& workspace,
           CodedStrips<Real>& strips);
  void rows(const Tile<Real>& tile, RowResults<Real>& results) override;

 private:
  struct Heads;
  bool may_multiply() const;
  std::span<const int32_t> rows_of_products(const Tile<Real>& tile);
  const Tile<Real>* coded_strip(const Tile<Real>& tile);
  void reserve(int32_t rows);
  void measure(const Heads& at, int32_t head, Normaliser tau, const uint8_t* chosen);
  void measure_tokens(const Heads& at, int32_t head, Normaliser tau, std::span<const int32_t> tokens,
                      RowResult& result) const;
  std::span<const int32_t> attended_tokens(const uint8_t* chosen);
  void measure_sides(const Heads& at, int32_t head, Normaliser tau, const QueryView<Real>& view,
                     std::span<const int32_t> tokens, RowResult& result);
  double prefix_weight(const QueryView<Real>& view, Normaliser tau) const;
  double set_coefficients(const Heads& at, int32_t head, const QueryView<Real>& view, std::span<const int32_t> tokens,
                          Real* to) const;
  int32_t repeated(const Heads& at, int32_t head, std::span<const int32_t> tokens);
  void note_reads(const Heads& at, std::span<const int32_t> tokens);
  void note_chosen(const Heads& at, int32_t head, const uint8_t* chosen);

  CacheReplay<Real>& replay_;
  const HeadStream<Real>& stream_;
  RequestedOutputs asked_;
  bool audit_;
  Workspace<Real>& w_;
  CodedStrips<Real>& strips_;
  const Tile<Real>* coded_ = nullptr;  // strips over coded keys for the current tile, or null
  TileOutput<Real> output_;
  RowProducts<Real> products_;
  bool multiplies_ = false;  // for the current tile
  std::vector<int32_t> column_of_, attended_, rows_of_products_, exact_rows_;
  std::vector<uint8_t> read_;      // by any head so far, in a step of a query-time method
  std::vector<int32_t> last_row_;  // [sets, tokens] last scored row that attended to a token; heads may have own sets
};

// Whether a row's output is the exact attention over the attended tokens, renormalised: each token once, unmodified,
// with weight 1, at its recorded position and the layer's temperature.
template <class Real>
bool is_plain(const BasicCache<Real>& cache, const QueryView<Real>& view, size_t attended);

}  // namespace kvreplay
