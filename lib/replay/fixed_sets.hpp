#pragma once
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "replay/plain_row.hpp"

namespace kvreplay {

// Caches that were cut once: a set S of prompt tokens with weights, and every later token. A family is a
// number of such sets that are likely to overlap (one method at several budgets). Tokens that have the same
// weights in all sets of a family make a band, whose sums over the strip are computed once a tile; a set then
// adds up its bands and what the exact pass knows of the later tokens. So nested budgets cost their largest.
template <class Real>
class FixedSets {
 public:
  explicit FixedSets(const HeadStream<Real>& stream) : stream_(stream) {}
  // The cache as the cut left it, for `heads` query heads from first_head on. Returns the set's number.
  size_t add(const BasicCache<Real>& cache, int32_t first_head, size_t family);
  // Once, after the last add().
  void build();
  // Results of set `id` for the scored rows of a tile, side outputs included.
  void fill(size_t id, const Tile<Real>& tile, const LaneWatch& watch, bool heads_differ, double spread,
            LaneTile<Real>& result);

 private:
  using Weights = std::pair<Real, Real>;  // num, den
  struct Band {
    std::vector<int32_t> tokens;
    std::vector<Real> num, den;  // of each token, where they differ inside the band; else empty
    std::vector<Real> values;    // [blocks, tokens, v_dim]
    size_t first = 0;            // token of the family's bands one behind the other
    // Of the tile at hand, [heads, scored rows]: sums of e_i (of num_i e_i v_i), of den_i e_i, and where
    // weights differ and someone asks, of e_i v_i.
    std::vector<Real> out, set_out;
    std::vector<double> z, z_den;
  };
  struct Part {
    size_t band;
    Real num, den;
    auto operator<=>(const Part&) const = default;
  };
  static constexpr size_t kNone = size_t(-1);
  struct Set {
    size_t family;
    std::vector<int32_t> tokens;
    std::vector<Weights> weights;  // of each token
    bool plain = true;             // every weight is 1
    bool whole = false;            // plain, and all of the prompt: the exact pass has its sums
    std::vector<Part> parts;
    // Another set of the family, whose sums are part of this one's, and the parts that it lacks; or kNone,
    // and all parts.
    size_t base = kNone;
    std::vector<Part> beyond;
    // Of the tile at hand, [heads, scored rows]: sums over all parts of num_i e_i v_i, of e_i and of den_i
    // e_i; where someone asks, of e_i v_i.
    std::vector<Real> out, set_out;
    std::vector<double> z, z_den;
  };
  struct Family {
    int32_t first_head = 0;
    HeadShape shape{};
    std::vector<size_t> sets;  // once built: a base before the sets that add to it
    std::vector<Band> bands;
    int32_t tile = -1;  // begin of the tile that bands and sets hold
  };
  using Signature = std::vector<std::pair<size_t, Weights>>;  // (set, weights) of a token

  using Bands = std::map<Signature, std::vector<int32_t>>;  // tokens of each
  Bands signatures(const Family& family) const;
  void share_bands(Family& family, const Bands& bands);
  void own_bands(Family& family);
  void find_bases(Family& family);
  size_t add_band(Family& family, std::vector<int32_t> tokens);
  void sum_family(Family& family, const Tile<Real>& tile, const LaneWatch& watch);
  void gather_bands(Family& family, const Tile<Real>& tile);
  void sum_band(const Family& family, Band& band, bool wants_set);
  void sum_set(const Family& family, Set& set, bool wants_set);
  void multiply(const Family& family, const Band& band, const Real* coefficients,
                std::vector<Real>& out) const;
  void fill_row(const Set& set, const PlainRow<Real>& row, size_t at, const RowRanking* ranking);
  template <class F>
  void visit(const Set& set, int32_t t, F f) const;

  const HeadStream<Real>& stream_;
  std::vector<Set> sets_;
  std::vector<Family> families_;
  std::vector<int32_t> scored_;     // rows of the tile at hand
  std::vector<Real> coefficients_;  // of each band of a family, [heads, scored rows, tokens]
  std::vector<Real> zeros_;         // [heads, scored rows, v_dim]
};

}  // namespace kvreplay
