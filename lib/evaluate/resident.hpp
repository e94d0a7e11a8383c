#pragma once
#include <memory>
#include <vector>

#include "caches/bands.hpp"
#include "evaluate/verbatim_row.hpp"

namespace kvreplay {

// Rows of caches that decide before anybody attends: those that were cut once (fixed) and those that stream without
// looking at a probability (sliding). A family is a number of them over the same heads that are likely to hold the
// same tokens. Bands of a family are summed over the strip once a tile; a cache then adds up its bands, and what the
// exact pass knows of the later tokens where it holds all of them.
template <class Real>
class ResidentFamily {
 public:
  ResidentFamily(const HeadStream<Real>& stream, const RowsAsked& asked) : stream_(stream), asked_(asked) {}
  bool is_full() const { return members_.size() == size_t(Band::kMostMembers); }
  // After its prompt, if that comes in one call. Returns its number.
  size_t add(CacheReplay<Real>& cache);
  // Tokens of the tile arrive at a member. Throws ReplayError.
  void decide(size_t member, const Tile<Real>& tile);
  void leave(size_t member) { members_[member].alive = false; }
  // After decide() of all members that are alive.
  void rows(size_t member, const Tile<Real>& tile, RowResults<Real>& results);

 private:
  // Sums over a band, or over all of a member's, for the scored rows of the tile at hand: [heads, scored rows].
  struct Sums {
    std::vector<Real> out;         // of num_i e_i v_i, [.., v_dim]
    std::vector<Real> set_out;     // of e_i v_i, where weights differ and somebody asks
    std::vector<double> z, z_den;  // of e_i, of den_i e_i
  };
  struct BandSums : Sums {
    Band band;
    std::vector<int32_t> loose;      // tokens that are gathered: those without many neighbours
    std::vector<Band::Tokens> runs;  // and those that are multiplied where they lie in the strip
    std::vector<Real> num, den;      // of the loose tokens, where they differ inside of the band
    std::vector<int32_t> until;      // of the loose tokens, where some are evicted
    std::vector<Real> values;        // [blocks, loose, v_dim]
    size_t first = 0;                // of its coefficients
  };
  struct Part {
    size_t band;
    double num, den;
    auto operator<=>(const Part&) const = default;
  };
  static constexpr size_t kNone = size_t(-1);
  struct Member : Sums {
    CacheReplay<Real>* cache;
    const Residency* held = nullptr;
    bool alive = true;
    bool everything = false;  // the exact pass has its sums
    bool plain = true;        // every weight is 1
    std::vector<Part> parts;
    // Another member, whose sums are part of this one's, and the parts that it lacks; or kNone, and all parts.
    size_t base = kNone;
    std::vector<Part> beyond;
  };

  HeadShape shape() const { return members_.front().cache->cache().shape(); }
  int32_t first_head() const { return members_.front().cache->first_head(); }
  int32_t first_block() const { return stream_.shape.block_of(first_head()); }
  size_t cells() const { return size_t(shape().heads) * scored_.size(); }
  void sum_tile(const Tile<Real>& tile);
  void list_bands();
  void split(BandSums& band) const;
  void gather_values(BandSums& band) const;
  void find_bases();
  void gather(const Tile<Real>& tile);
  void weigh(const Tile<Real>& tile, BandSums& band);
  void sum_band(const Tile<Real>& tile, BandSums& band);
  void multiply_run(const Tile<Real>& tile, Band::Tokens run, BandSums& band);
  void sum_member(Member& member);
  void add_parts(const std::vector<Part>& parts, const std::vector<Real>* base, bool unit, std::vector<Real>& to) const;
  void put_row(const Member& member, const VerbatimRow<Real>& row, size_t at, const RowRanking* ranking) const;

  const HeadStream<Real>& stream_;
  RowsAsked asked_;
  std::vector<Member> members_;
  std::vector<BandSums> bands_;
  std::vector<size_t> by_parts_;  // members, a base before those that add to it
  bool listed_ = false;           // bands that last: all members were cut once
  int32_t tile_ = -1;             // begin of the tile that was summed
  std::vector<int32_t> scored_;   // its rows
  std::vector<Real> coefficients_, zeros_;
};

// A cache of a family.
template <class Real>
class Resident final : public Evaluator<Real> {
 public:
  Resident(std::shared_ptr<ResidentFamily<Real>> family, CacheReplay<Real>& cache)
      : family_(std::move(family)), member_(family_->add(cache)) {}
  void decide(const Tile<Real>& tile) override { family_->decide(member_, tile); }
  void rows(const Tile<Real>& tile, RowResults<Real>& results) override { family_->rows(member_, tile, results); }
  void leave() override { family_->leave(member_); }

 private:
  std::shared_ptr<ResidentFamily<Real>> family_;
  size_t member_;
};

}  // namespace kvreplay
