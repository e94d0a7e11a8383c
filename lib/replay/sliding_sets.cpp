#include "replay/sliding_sets.hpp"

#include <algorithm>

#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kRun = 16;  // neighbouring tokens from which on the strip is multiplied where it lies

}  // namespace

template <class Real>
size_t SlidingSets<Real>::add(Lane<Real>& lane, size_t family, bool evicts_first) {
  constexpr size_t kNone = SIZE_MAX;
  if (open_.size() <= family) open_.resize(family + 1, kNone);
  size_t& open = open_[family];
  if (open == kNone || families_[open].members.size() == kMostInFamily) {
    open = families_.size();
    families_.emplace_back();
  }
  families_[open].members.push_back(members_.size());
  Member member;
  member.lane = &lane, member.family = open, member.evicts_first = evicts_first;
  members_.push_back(std::move(member));
  return members_.size() - 1;
}

template <class Real>
void SlidingSets<Real>::leave(size_t id) {
  members_[id].alive = false;
}

template <class Real>
void SlidingSets<Real>::step(size_t id, int32_t begin, int32_t end) {
  Member& m = members_[id];
  const auto tokens = m.lane->cache().tokens();
  m.begin = begin;
  m.start.assign(tokens.begin(), tokens.end());
  m.departures.clear();
  m.sizes.clear();
  for (int32_t t = begin; t < end; ++t) {
    const int32_t before = m.lane->cache().evictions(), size = m.lane->cache().size();
    m.lane->step_alone(t);
    const auto left = m.lane->cache().left(before);
    for (const int32_t token : left) m.departures.push_back({token, m.evicts_first ? t : t + 1});
    m.sizes.push_back(size + 1 - (m.evicts_first ? int32_t(left.size()) : 0));
  }
}

template <class Real>
void SlidingSets<Real>::sum_family(Family& family, const Tile<Real>& tile) {
  if (family.tile == tile.begin) return;
  family.tile = tile.begin;
  find_bands(family, tile);
  const Lane<Real>& lane = *members_[family.members.front()].lane;
  for (size_t b = 0; b < family.used; ++b) sum_band(lane, tile, family.bands[b]);
  for (const size_t m : family.members)
    if (members_[m].alive) sum_departures(members_[m], tile);
}

// Members that never dropped a token need no band: the exact pass has their sums.
template <class Real>
void SlidingSets<Real>::find_bands(Family& family, const Tile<Real>& tile) {
  held_.resize(size_t(stream_.tokens));
  touched_.clear();
  for (size_t i = family.members.size();
       i-- > 0;) {  // larger budgets mostly come later, and hold what others hold
    const Member& m = members_[family.members[i]];
    if (!m.alive || m.lane->cache().evictions() == 0) continue;
    const uint64_t bit = uint64_t{1} << i;
    const auto hold = [&](int32_t token) {
      if (held_[size_t(token)] == 0) touched_.push_back(token);
      held_[size_t(token)] |= bit;
    };
    for (const int32_t token : m.start) hold(token);
    for (int32_t t = tile.begin; t < tile.end; ++t) hold(t);
    for (const Departure& d : m.departures) held_[size_t(d.token)] &= ~bit;
  }
  if (!std::is_sorted(touched_.begin(), touched_.end())) std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  family.used = 0;
  for (const int32_t token : touched_) {
    const uint64_t members = std::exchange(held_[size_t(token)], 0);
    if (members == 0) continue;
    const auto end = family.bands.begin() + int64_t(family.used);
    auto band = std::find_if(family.bands.begin(), end, [&](const Band& b) { return b.members == members; });
    if (band == end) {
      if (family.used == family.bands.size()) family.bands.emplace_back();
      band = family.bands.begin() + int64_t(family.used++);
      band->members = members;
      band->tokens.clear();
    }
    band->tokens.push_back(token);
  }
}

template <class Real>
void SlidingSets<Real>::clear(const Lane<Real>& lane, Part to) const {
  const size_t cells = size_t(lane.cache().shape().heads) * scored_.size();
  to.out.assign(cells * size_t(stream_.shape.v_dim), Real(0));
  to.z.assign(cells, 0.0);
}

template <class Real>
void SlidingSets<Real>::sum_band(const Lane<Real>& lane, const Tile<Real>& tile, Band& band) {
  const Part to{band.out, band.z};
  clear(lane, to);
  loose_.clear();
  for (size_t i = 0; i < band.tokens.size();) {
    size_t end = i + 1;
    while (end < band.tokens.size() && band.tokens[end] == band.tokens[end - 1] + 1) ++end;
    const int32_t count = int32_t(end - i);
    if (count >= kRun) multiply_run(lane, tile, band.tokens[i], count, to);
    else loose_.insert(loose_.end(), band.tokens.begin() + int64_t(i), band.tokens.begin() + int64_t(end));
    i = end;
  }
  if (loose_.empty()) return;
  gather(lane, tile, loose_, to);
  multiply_gathered(lane, loose_, to);
}

template <class Real>
void SlidingSets<Real>::sum_departures(Member& m, const Tile<Real>& tile) {
  const Part to{m.out, m.z};
  clear(*m.lane, to);
  if (m.departures.empty()) return;
  loose_.clear();
  for (const Departure& d : m.departures) loose_.push_back(d.token);
  gather(*m.lane, tile, loose_, to);
  std::fill(m.z.begin(), m.z.end(), 0.0);
  size_t at = 0;
  for (int32_t h = 0; h < m.lane->cache().shape().heads; ++h)
    for (const int32_t r : scored_) {
      Real* const e = coefficients_.data() + at * loose_.size();
      for (size_t i = 0; i < loose_.size(); ++i) {
        if (tile.rows[size_t(r)] >= m.departures[i].until) e[i] = 0;
        m.z[at] += double(e[i]);
      }
      ++at;
    }
  multiply_gathered(*m.lane, loose_, to);
}

// Adds their sums to z.
template <class Real>
void SlidingSets<Real>::gather(const Lane<Real>& lane, const Tile<Real>& tile,
                               const std::vector<int32_t>& tokens, Part to) {
  const int32_t n = int32_t(tokens.size());
  coefficients_.resize(to.z.size() * size_t(n));
  size_t at = 0;
  for (int32_t h = 0; h < lane.cache().shape().heads; ++h)
    for (const int32_t r : scored_) {
      to.z[at] += kernels::gather(tile.strip_row(lane.first_head() + h, r), tokens.data(), n,
                                  coefficients_.data() + at * size_t(n));
      ++at;
    }
}

template <class Real>
void SlidingSets<Real>::multiply_gathered(const Lane<Real>& lane, const std::vector<int32_t>& tokens,
                                          Part to) {
  const HeadShape shape = lane.cache().shape();
  const int32_t n = int32_t(tokens.size()), width = stream_.shape.v_dim;
  const int32_t m = shape.heads / shape.blocks * int32_t(scored_.size());
  const int32_t first = stream_.shape.block_of(lane.first_head());
  values_.resize(size_t(n) * size_t(width));
  for (int64_t b = 0; b < shape.blocks; ++b) {
    for (size_t i = 0; i < tokens.size(); ++i)
      std::copy_n(stream_.block_values(first + int32_t(b)) + int64_t(tokens[i]) * width, width,
                  values_.data() + int64_t(i) * width);
    kernels::multiply(coefficients_.data() + b * m * n, n, m, values_.data(), n, width,
                      to.out.data() + b * m * width, width, true);
  }
}

// Tokens first..first+count-1: the strip as it lies.
template <class Real>
void SlidingSets<Real>::multiply_run(const Lane<Real>& lane, const Tile<Real>& tile, int32_t first,
                                     int32_t count, Part to) {
  const int32_t heads = lane.cache().shape().heads, rows = int32_t(scored_.size());
  const int32_t width = stream_.shape.v_dim;
  const bool all = scored_.size() == tile.rows.size();
  const int32_t blocks = lane.cache().shape().blocks, group = heads / blocks;
  for (int32_t b = 0; all && b < blocks; ++b) {  // the strips of a group stand below each other
    const int32_t head = lane.first_head() + b * group;
    kernels::multiply(tile.strip_row(head, 0) + first, tile.stride, group * rows,
                      stream_.block_values(stream_.shape.block_of(head)) + int64_t(first) * width, count,
                      width, to.out.data() + size_t(b) * size_t(group) * size_t(rows) * size_t(width), width,
                      true);
  }
  size_t at = 0;
  for (int32_t h = 0; h < heads; ++h) {
    const int32_t head = lane.first_head() + h;
    const Real* values = stream_.block_values(stream_.shape.block_of(head)) + int64_t(first) * width;
    for (const int32_t r : scored_) {
      const Real* strip = tile.strip_row(head, r) + first;
      if (!all)
        kernels::multiply(strip, tile.stride, 1, values, count, width, to.out.data() + at * size_t(width),
                          width, true);
      to.z[at++] += kernels::sum(strip, count);
    }
  }
}

// C_t: what was there when the tile began or came since, and has not left.
template <class Real>
template <class F>
void SlidingSets<Real>::visit(const Member& m, int32_t t, F f) const {
  const auto here = [&](int32_t token) {
    const auto same = [&](const Departure& d) { return d.token == token && d.until <= t; };
    return std::none_of(m.departures.begin(), m.departures.end(), same);
  };
  for (const int32_t token : m.start)
    if (here(token)) f(token, 1.0, 1.0);
  for (int32_t i = m.begin; i <= t; ++i)
    if (here(i)) f(i, 1.0, 1.0);
}

template <class Real>
void SlidingSets<Real>::fill(size_t id, const Tile<Real>& tile, const LaneWatch& watch,
                             LaneTile<Real>& result) {
  Member& m = members_[id];
  Family& family = families_[m.family];
  find_scored(tile, scored_);
  const bool all = m.lane->cache().evictions() == 0;
  sum_family(family, tile);
  open_side_outputs(watch, false, result);
  const size_t place =
      size_t(std::find(family.members.begin(), family.members.end(), id) - family.members.begin());
  const uint64_t bit = uint64_t{1} << place;
  const size_t width = size_t(stream_.shape.v_dim);
  size_t at = 0;
  for (int32_t h = 0; h < m.lane->cache().shape().heads; ++h)
    for (const int32_t r : scored_) {
      const PlainRow<Real> row{stream_, tile, watch, result, m.lane->first_head(), h, r};
      const size_t exact = row.in_tile();
      const double sink = row.sink();
      sum_.assign(width, Real(0));
      double z = 0;
      const auto add = [&](const std::vector<Real>& out, double part, size_t from) {
        z += part;
        kernels::add(sum_.data(), out.data() + from * width, Real(1), int64_t(width), sum_.data());
      };
      if (all && tile.divided) add(tile.of_prompt, tile.z_prompt[exact], exact);
      if (all) add(tile.of_later, tile.divided ? tile.z_later[exact] : tile.z[exact] - sink, exact);
      for (size_t b = 0; b < family.used && !all; ++b)
        if ((family.bands[b].members & bit) != 0) add(family.bands[b].out, family.bands[b].z[at], at);
      if (!all) add(m.out, m.z[at], at);
      const int32_t t = row.token();
      const auto each = [&](auto f) { visit(m, t, f); };
      const RowMass mass{z + sink, z, m.sizes[size_t(t - tile.begin)]};
      const RowRanking* ranking = tile.ranking_of(m.lane->heads_differ(), row.stream_head(), r);
      ++at;
      if (!mass.safe()) {
        row.evaluate_alone(mass, ranking, true, each);
        continue;
      }
      row.measure(mass, {mass.z, double(tile.shift[exact])}, ranking, true, each);
      row.put(sum_.data(), mass.z);
    }
}

template class SlidingSets<float>;
template class SlidingSets<double>;

}  // namespace kvreplay
