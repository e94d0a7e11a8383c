#pragma once
#include "evaluate/coded_strips.hpp"
#include "evaluate/evaluator.hpp"
#include "evaluate/row_products.hpp"
#include "evaluate/tile_output.hpp"

namespace kvreplay {

// The reference: a cache is replayed by its policy's own text, step by step (core/step.hpp), with logits from the
// shared strip and outputs deferred to the end of the tile. Audits, and caches that write rows, weigh them or choose
// what they read, always take it.
template <class Real>
class Stepwise final : public Evaluator<Real> {
 public:
  Stepwise(CacheReplay<Real>& cache, const RowsAsked& asked, bool audit, Workspace<Real>& workspace,
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
  void note_read(int32_t head, const uint8_t* chosen);

  CacheReplay<Real>& replay_;
  const HeadStream<Real>& stream_;
  RowsAsked asked_;
  bool audit_;
  Workspace<Real>& w_;
  CodedStrips<Real>& strips_;
  const Tile<Real>* coded_ = nullptr;  // strips over coded keys of the tile at hand, or null
  TileOutput<Real> output_;
  RowProducts<Real> products_;
  bool multiplies_ = false;  // in the tile at hand
  std::vector<int32_t> column_of_, attended_, rows_of_products_, exact_rows_;
  std::vector<uint8_t> read_;  // by any head so far, in a step of a query-time method
};

// Whether a row's output renormalises the exact attention over the attended tokens: each of them once, as it is in
// the trace, with weight 1, where it was recorded, at the layer's temperature.
template <class Real>
bool is_plain(const BasicCache<Real>& cache, const QueryView<Real>& view, size_t attended);

}  // namespace kvreplay
