#pragma once
#include <cstdint>
#include <vector>

#include "replay/plain_row.hpp"

namespace kvreplay {

// Caches that stream and look at no probability, so that who leaves is known before anybody attends. A family
// is a number of such caches over the same heads (one method at several budgets). In a tile most tokens are
// attended to by every row or by none; those that the same caches hold throughout make a band, summed once
// over the strip. What leaves a cache inside the tile is summed for it alone.
template <class Real>
class SlidingSets {
 public:
  static constexpr size_t kMostInFamily = 64;
  explicit SlidingSets(const HeadStream<Real>& stream) : stream_(stream) {}
  // Returns the lane's number. A family takes at most kMostInFamily.
  size_t add(Lane<Real>& lane, size_t family, bool evicts_first);
  // Tokens begin..end-1 arrive at lane `id`; nothing attends. Throws LaneError.
  void step(size_t id, int32_t begin, int32_t end);
  // After step() of all lanes that are still alive: results for the scored rows.
  void fill(size_t id, const Tile<Real>& tile, const LaneWatch& watch, LaneTile<Real>& result);
  // The lane failed: it is no longer part of its family.
  void leave(size_t id);

 private:
  struct Departure {
    int32_t token, until;  // rows of tokens before `until` attend to it
  };
  struct Member {
    Lane<Real>* lane;
    size_t family;
    bool evicts_first, alive = true;
    int32_t begin = 0;                  // first token of the tile
    std::vector<int32_t> start;         // tokens when the tile began
    std::vector<Departure> departures;  // inside the tile
    std::vector<int32_t> sizes;         // |C_t| of each token of the tile
    std::vector<Real> out;              // [heads, scored rows, v_dim] of the departures
    std::vector<double> z;              // [heads, scored rows]
  };
  struct Band {
    uint64_t members = 0;
    std::vector<int32_t> tokens;
    std::vector<Real> out;
    std::vector<double> z;
  };
  struct Family {
    std::vector<size_t> members;
    std::vector<Band> bands;
    size_t used = 0;  // of `bands`
    int32_t tile = -1;
  };
  // Coefficients of some tokens for the scored rows, gathered from the strip.
  struct Part {
    std::vector<Real>& out;
    std::vector<double>& z;
  };
  void sum_family(Family& family, const Tile<Real>& tile);
  void find_bands(Family& family, const Tile<Real>& tile);
  void sum_band(const Lane<Real>& lane, const Tile<Real>& tile, Band& band);
  void sum_departures(Member& member, const Tile<Real>& tile);
  void gather(const Lane<Real>& lane, const Tile<Real>& tile, const std::vector<int32_t>& tokens, Part to);
  void multiply_gathered(const Lane<Real>& lane, const std::vector<int32_t>& tokens, Part to);
  void multiply_run(const Lane<Real>& lane, const Tile<Real>& tile, int32_t first, int32_t count, Part to);
  void clear(const Lane<Real>& lane, Part to) const;
  template <class F>
  void visit(const Member& member, int32_t t, F f) const;

  const HeadStream<Real>& stream_;
  std::vector<Member> members_;
  std::vector<Family> families_;
  std::vector<size_t> open_;  // of each family that was asked for, the one that takes its next member
  std::vector<int32_t> scored_;
  std::vector<uint64_t> held_;  // [tokens] members of a family that hold a token throughout the tile
  std::vector<int32_t> touched_, loose_;
  std::vector<Real> coefficients_, values_, sum_;
};

}  // namespace kvreplay
