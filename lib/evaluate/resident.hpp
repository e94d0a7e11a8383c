#pragma once
#include <memory>
#include <vector>

#include "caches/bands.hpp"
#include "evaluate/verbatim_row.hpp"

namespace kvreplay {

// Rows of caches that decide before any query attends: those that were cut once (fixed) and those that stream without
// reading probabilities (sliding). A family groups caches over the same heads that probably hold the same tokens. The
// family sums its bands over the strip once per tile. A cache then adds up its bands and, if it holds all later tokens,
// the exact pass's sums over them.
template <class Real>
class ResidentFamily {
 public:
  ResidentFamily(const HeadStream<Real>& stream, const RequestedOutputs& asked) : stream_(stream), asked_(asked) {}
  bool is_full() const { return members_.size() == size_t(Band::kMostMembers); }
  // Call after the prompt, if it arrives in one call. Returns the member's number.
  size_t add(CacheReplay<Real>& cache);
  // The tile's tokens arrive at a member. Throws ReplayError.
  void decide(size_t member, const Tile<Real>& tile);
  void leave(size_t member) { members_[member].alive = false; }
  // Call after decide() of all members that are alive.
  void rows(size_t member, const Tile<Real>& tile, RowResults<Real>& results);

 private:
  // Sums over a band, or over all bands of a member, for the current tile's scored rows: [heads, scored rows].
  struct Sums {
    std::vector<Real> out;         // sum of num_i e_i v_i, [.., v_dim]
    std::vector<Real> set_out;     // sum of e_i v_i, if weights differ and `set` is requested
    std::vector<double> z, z_den;  // sums of e_i and of den_i e_i
  };
  struct BandSums : Sums {
    Band band;
    std::vector<int32_t> loose;      // tokens in short runs, whose values are gathered
    std::vector<Band::Tokens> runs;  // long runs, multiplied in place in the strip
    std::vector<Real> num, den;      // weights of loose tokens, if they differ within the band
    std::vector<int32_t> until;      // end of residency of loose tokens, if some are evicted
    std::vector<Real> values;        // [blocks, loose, v_dim]
    size_t first = 0;                // index of its first coefficient
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
    bool everything = false;  // the exact pass already has its sums
    bool plain = true;        // every weight is 1
    std::vector<Part> parts;
    // Another member whose sums are part of this one's, and the parts that it lacks; or kNone and all parts.
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
  RequestedOutputs asked_;
  std::vector<Member> members_;
  std::vector<BandSums> bands_;
  std::vector<size_t> by_parts_;  // member indices, a base before the members that use it
  bool listed_ = false;           // bands_ stay valid for all tiles: every member was cut once
  int32_t tile_ = -1;             // begin of the last tile summed
  std::vector<int32_t> scored_;   // its scored rows
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
