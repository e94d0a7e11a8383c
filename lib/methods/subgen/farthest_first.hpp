#pragma once
#include <limits>

#include "core/cache.hpp"
#include "core/linear.hpp"
#include "core/wide.hpp"

namespace kvreplay {

// Farthest-first traversal (Gonzalez 1985) of the first `rows` keys of a cache. After a given first centre, each next
// centre is the row farthest from its nearest centre (Euclidean; ties: lowest row). No row is a centre twice. Distances
// that cannot change the result are not computed:
//  - Distances only shrink. A row whose last known distance is below that of another waits. It is compared with the
//    centres that it has missed once it may be the farthest.
//  - (|x|^2 + |c|^2)/2 - <x, c> is half of a squared distance, up to rounding. If a centre cannot be the nearest even
//    so, the sum of squared differences, which decides, is skipped.
template <Cache C>
class FarthestFirst {
  using Real = typename C::real;
  // Centres compared with a row at once, partial sums of each product, rows that share one top.
  static constexpr int32_t kAtOnce = 2 * KVR_LANES, kChains = 2, kBlock = 16;
  static constexpr double kChosen = -1;  // marks a centre in place of its distance

 public:
  static int64_t doubles(int64_t rows, int64_t centres, int64_t dim) {
    return 4 * rows + rows / kBlock + 1 + 2 * centres + (centres + kAtOnce) * (dim + 1);
  }
  // state: at least doubles(rows, centres, dim) numbers.
  FarthestFirst(const C& cache, int32_t rows, int32_t centres, std::span<double> state)
      : cache_(cache), rows_(rows), count_(centres) {
    Carver cut{state.data()};
    distance_ = cut(rows), nearest_ = cut(rows), half_ = cut(rows), seen_ = cut(rows);
    top_ = cut((rows + kBlock - 1) / kBlock);
    order_ = cut(centres), members_ = cut(centres);
    centre_half_ = cut(centres + kAtOnce);
    centre_keys_ = cut.numbers<Real>((centres + kAtOnce) * cache.shape().dim).data();
  }
  int32_t row(int32_t centre) const { return int32_t(order_[size_t(centre)]); }
  // Number of rows whose nearest centre this is, after assign_rest(). Ties: the earlier centre.
  double members(int32_t centre) const { return members_[size_t(centre)]; }

  void choose(const Team auto& team, int32_t first) {
    open(team);
    for (int32_t next = first; true; next = farthest(team)) {
      const std::span<const Real> key = cache_.key(next);
      team.each(int32_t(key.size()), [&](int32_t c) { *centre_number(chosen_, c) = key[size_t(c)]; });
      add(next);
      if (++chosen_ == count_) return;
    }
  }
  // Takes the first centres of a longer traversal from the same start.
  void copy_order(const Team auto& team, const FarthestFirst& longer) {
    team.each(count_, [&](int32_t c) { order_[size_t(c)] = longer.order_[size_t(c)]; });
  }
  // Brings every row up to date and counts members.
  void assign_rest(const Team auto& team) {
    team.each(rows_, [&](int32_t i) { catch_up(i, 0); });
    team.each(count_, [&](int32_t c) { members_[size_t(c)] = 0; });
    for (const double centre : nearest_) members_[size_t(centre)] += 1;
  }

 private:
  // slack_ bounds the error of the estimates, for numbers of any size.
  void open(const Team auto& team) {
    team.each(rows_, [&](int32_t i) {
      distance_[size_t(i)] = INFINITY, nearest_[size_t(i)] = 0, seen_[size_t(i)] = 0;
      half_[size_t(i)] = wide_dot(cache_.key(i), cache_.key(i)) / 2;
    });
    team.each(blocks(), [&](int32_t b) { top_[size_t(b)] = INFINITY; });
    team.each(int32_t(centre_half_.size()), [&](int32_t c) { centre_half_[size_t(c)] = INFINITY; });
    using Limits = std::numeric_limits<Real>;
    const double most = team.largest(rows_, [&](int32_t i) { return half_[size_t(i)]; }).score;
    const double relative = 8.0 * (cache_.shape().dim + 8) * double(Limits::epsilon());
    slack_ = 2 * most < double(Limits::max()) ? relative * most + double(Limits::min()) : INFINITY;
  }
  // Adds a centre that has been compared with every earlier centre.
  void add(int32_t row) {
    order_[size_t(chosen_)] = row, centre_half_[size_t(chosen_)] = half_[size_t(row)];
    if (distance_[size_t(row)] > 0) nearest_[size_t(row)] = chosen_;
    distance_[size_t(row)] = kChosen;
    renew_top(row / kBlock);
  }
  int32_t farthest(const Team auto& team) {
    const auto top = [&](int32_t b) { return top_[size_t(b)]; };
    const int32_t likely = team.largest(blocks(), top).index, candidate = top_row(likely);
    catch_up(candidate, 0);
    double most = distance_[size_t(candidate)];  // largest distance among the rows so far
    team.each(blocks(), [&](int32_t b) {
      if (top(b) >= most) catch_up_block(b, most);
    });
    return top_row(team.largest(blocks(), top).index);
  }
  void catch_up_block(int32_t block, double& most) {
    for (int32_t i = block * kBlock; i < end_of(block); ++i) {
      if (distance_[size_t(i)] < most) continue;
      catch_up(i, most);
      if (distance_[size_t(i)] > most) most = distance_[size_t(i)];
    }
    renew_top(block);
  }
  void renew_top(int32_t block) {
    double top = kChosen;
    for (int32_t i = block * kBlock; i < end_of(block); ++i)
      if (distance_[size_t(i)] > top) top = distance_[size_t(i)];
    top_[size_t(block)] = top;
  }
  int32_t blocks() const { return int32_t(top_.size()); }
  int32_t end_of(int32_t block) const { return (block + 1) * kBlock < rows_ ? (block + 1) * kBlock : rows_; }
  int32_t top_row(int32_t block) const {
    int32_t i = block * kBlock;
    while (i + 1 < end_of(block) && distance_[size_t(i)] != top_[size_t(block)]) ++i;
    return i;
  }
  // Compares until the row is known to be nearer than `least` to a centre.
  void catch_up(int32_t i, double least) {
    while (distance_[size_t(i)] >= least && seen_[size_t(i)] < chosen_) compare(i);
  }
  void compare(int32_t i) {
    const int32_t near = first_near(i, int32_t(seen_[size_t(i)]));
    if (near < chosen_) visit(i, near);
    seen_[size_t(i)] = near < chosen_ ? near + 1 : chosen_;
  }
  void visit(int32_t i, int32_t centre) {
    const double s = squared_distance(cache_.key(i), cache_.key(row(centre)));
    if (s < distance_[size_t(i)]) distance_[size_t(i)] = s, nearest_[size_t(i)] = centre;
  }
  // The first centre from `next` on that may be nearer to row i than its nearest so far, or chosen_.
  int32_t first_near(int32_t i, int32_t next) const {
    // Lower bound of <x, c> - |c|^2/2 for every such centre; NaN and infinity exclude none.
    const double unreached = half_[size_t(i)] - slack_ - distance_[size_t(i)] / 2;
    int32_t found = chosen_;
    wide([&] {
      for (int32_t c = next - next % kAtOnce; c < chosen_ && found == chosen_; c += kAtOnce)
        found = first_near_in_block(cache_.key(i), c, next > c ? next : c, unreached);
    });
    return found;
  }
  // As first_near(), among kAtOnce centres from `first` on.
  int32_t first_near_in_block(std::span<const Real> x, int32_t first, int32_t next, double unreached) const {
    Real products[kAtOnce];
    multiply(x, first, products);
    const double* const half = centre_half_.data() + first;
    const auto near = [&](int32_t l) { return unreached + half[l] > double(products[l]) ? 0 : 1; };
    int32_t some = 0;
    KVR_SIMD_SUM(some) for (int32_t l = 0; l < kAtOnce; ++l) some += near(l);
    for (int32_t c = next; some > 0 && c < first + kAtOnce && c < chosen_; ++c)
      if (near(c - first) > 0) return c;
    return chosen_;
  }
  // Inner products of x with kAtOnce centres from `first` on.
  void multiply(std::span<const Real> x, int32_t first, Real (&products)[kAtOnce]) const {
    const Real* const keys = centre_number(first, 0);
    const int32_t n = int32_t(x.size()), whole = n - n % kChains;
    Real s[kChains][kAtOnce];
    for (int32_t k = 0; k < kChains; ++k) KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) s[k][l] = 0;
    for (int32_t c = 0; c < whole; c += kChains)
      for (int32_t k = 0; k < kChains; ++k)
        KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) s[k][l] += x[size_t(c + k)] * keys[(c + k) * kAtOnce + l];
    for (int32_t c = whole; c < n; ++c)
      KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) s[0][l] += x[size_t(c)] * keys[c * kAtOnce + l];
    KVR_SIMD for (int32_t l = 0; l < kAtOnce; ++l) products[l] = s[0][l] + s[1][l];
  }
  Real* centre_number(int32_t centre, int32_t c) const {
    const int32_t lane = centre % kAtOnce;
    return centre_keys_ + int64_t(centre - lane) * cache_.shape().dim + c * kAtOnce + lane;
  }

  const C& cache_;
  int32_t rows_, count_, chosen_ = 0;
  double slack_ = 0;
  // [rows] squared distance to the nearest centre seen so far, that centre, |x|^2/2, number of centres seen.
  std::span<double> distance_, nearest_, half_, seen_;
  std::span<double> top_;                            // [blocks] upper bound of the distances of kBlock rows
  std::span<double> order_, centre_half_, members_;  // [centres] row, |c|^2/2, number of rows
  // [groups of kAtOnce centres, dim, kAtOnce]; numbers after the last centre are not used.
  Real* centre_keys_;
};

}  // namespace kvreplay
