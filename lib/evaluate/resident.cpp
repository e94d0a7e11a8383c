#include "evaluate/resident.hpp"

#include <algorithm>
#include <iterator>

namespace kvreplay {
namespace {

constexpr int32_t kBandCost = 8;  // fixed cost of a band, in tokens
constexpr int32_t kRun = 16;      // a run of at least so many tokens is multiplied in place in the strip

}  // namespace

template <class Real>
size_t ResidentFamily<Real>::add(CacheReplay<Real>& cache) {
  Member member;
  member.cache = &cache;
  members_.push_back(std::move(member));
  return members_.size() - 1;
}

template <class Real>
void ResidentFamily<Real>::decide(size_t member, const Tile<Real>& tile) {
  members_[member].held = &members_[member].cache->steps.decide(tile.begin, tile.end);
}

template <class Real>
void ResidentFamily<Real>::sum_tile(const Tile<Real>& tile) {
  if (tile_ == tile.begin) return;
  tile_ = tile.begin;
  tile.list_scored(scored_);
  if (scored_.empty()) return;
  zeros_.resize(cells() * size_t(stream_.shape.v_dim), Real(0));
  if (!listed_) list_bands();
  gather(tile);
  for (BandSums& band : bands_) sum_band(tile, band);
  for (const size_t m : by_parts_) sum_member(members_[m]);
}

template <class Real>
void ResidentFamily<Real>::list_bands() {
  std::vector<const Residency*> held;
  listed_ = true;
  for (Member& m : members_) {
    m.everything = m.alive && m.held->everything(stream_.prompt);
    m.plain = !m.alive || !m.held->weighted();
    m.parts.clear();
    held.push_back(m.alive && !m.everything ? m.held : nullptr);
    listed_ = listed_ && m.cache->steps.fast_path().kind == FastPath::Kind::fixed;
  }
  std::vector<Band> found = find_bands(held, kBandCost);
  bands_.resize(found.size());
  for (size_t b = 0; b < found.size(); ++b) {
    bands_[b].band = std::move(found[b]);
    split(bands_[b]);
    gather_values(bands_[b]);
    for (size_t m = 0; m < members_.size(); ++m)
      if ((bands_[b].band.members >> m & 1u) != 0) {
        const Band::Weights w = bands_[b].band.of(m);
        members_[m].parts.push_back({b, w.num, w.den});
      }
  }
  find_bases();
}

template <class Real>
void ResidentFamily<Real>::split(BandSums& b) const {
  b.loose.clear(), b.runs.clear(), b.num.clear(), b.den.clear(), b.until.clear();
  const bool all_loose = !b.band.weights_of.empty() || !b.band.until.empty();
  for (size_t i = 0; i < b.band.tokens.size(); ++i) {
    const Band::Tokens run = b.band.tokens[i];
    if (!all_loose && run.last - run.first >= kRun) {
      b.runs.push_back(run);
      continue;
    }
    for (int32_t token = run.first; token < run.last; ++token) {
      b.loose.push_back(token);
      if (!b.band.until.empty()) b.until.push_back(b.band.until[i]);
      if (b.band.weights_of.empty()) continue;
      b.num.push_back(Real(b.band.weights_of[i].num)), b.den.push_back(Real(b.band.weights_of[i].den));
    }
  }
}

template <class Real>
void ResidentFamily<Real>::gather_values(BandSums& b) const {
  const int64_t width = stream_.shape.v_dim;
  b.values.resize(size_t(shape().blocks) * b.loose.size() * size_t(width));
  Real* to = b.values.data();
  for (int32_t block = first_block(); block < first_block() + shape().blocks; ++block)
    for (const int32_t token : b.loose) to = std::copy_n(stream_.block_values(block) + token * width, width, to);
}

// Parts are in the order of their bands.
template <class Real>
void ResidentFamily<Real>::find_bases() {
  by_parts_.clear();
  for (size_t m = 0; m < members_.size(); ++m)
    if (members_[m].alive && !members_[m].everything) by_parts_.push_back(m);
  const auto fewer = [&](size_t a, size_t b) { return members_[a].parts.size() < members_[b].parts.size(); };
  std::stable_sort(by_parts_.begin(), by_parts_.end(), fewer);
  for (size_t i = 0; i < by_parts_.size(); ++i) {
    Member& m = members_[by_parts_[i]];
    m.base = kNone, m.beyond = m.parts;
    for (size_t j = i; j-- > 0 && m.base == kNone;) {
      const std::vector<Part>& some = members_[by_parts_[j]].parts;
      if (some.empty() || !std::includes(m.parts.begin(), m.parts.end(), some.begin(), some.end())) continue;
      m.base = by_parts_[j];
      m.beyond.clear();
      std::set_difference(m.parts.begin(), m.parts.end(), some.begin(), some.end(), std::back_inserter(m.beyond));
    }
  }
}

// Goes row by row, so that all bands read a strip while it is in the second-level cache.
template <class Real>
void ResidentFamily<Real>::gather(const Tile<Real>& tile) {
  size_t tokens = 0;
  for (BandSums& band : bands_) {
    band.first = cells() * tokens, tokens += band.loose.size();
    band.z.assign(cells(), 0.0);
  }
  coefficients_.resize(cells() * tokens);
  size_t at = 0;
  for (int32_t h = 0; h < shape().heads; ++h)
    for (const int32_t r : scored_) {
      const Real* const strip = tile.strip_row(first_head() + h, r);
      for (BandSums& band : bands_) {
        const size_t n = band.loose.size();
        Real* const e = coefficients_.data() + band.first + at * n;
        band.z[at] = kernels::gather(strip, band.loose.data(), int32_t(n), e);
        for (const Band::Tokens run : band.runs) band.z[at] += kernels::sum(strip + run.first, run.last - run.first);
      }
      ++at;
    }
}

// Removes evicted tokens from the rows after their eviction, then applies weights.
template <class Real>
void ResidentFamily<Real>::weigh(const Tile<Real>& tile, BandSums& b) {
  const size_t n = b.loose.size();
  for (size_t at = 0; at < cells() && !b.until.empty(); ++at) {
    Real* const e = coefficients_.data() + b.first + at * n;
    const int32_t t = tile.rows[size_t(scored_[at % scored_.size()])];
    double z = 0;
    for (size_t i = 0; i < n; ++i) {
      if (t >= b.until[i]) e[i] = 0;
      z += double(e[i]);
    }
    b.z[at] = z;
  }
  b.z_den.clear();
  if (b.num.empty()) return;
  b.z_den.resize(cells());
  for (size_t at = 0; at < cells(); ++at) {
    Real* const e = coefficients_.data() + b.first + at * n;
    double z = 0;
    for (size_t i = 0; i < n; ++i) {
      z += double(b.den[i]) * double(e[i]);
      e[i] *= b.num[i];
    }
    b.z_den[at] = z;
  }
}

template <class Real>
void ResidentFamily<Real>::sum_band(const Tile<Real>& tile, BandSums& b) {
  const int32_t n = int32_t(b.loose.size()), width = stream_.shape.v_dim;
  const int32_t m = shape().heads / shape().blocks * int32_t(scored_.size());
  const auto multiply = [&](std::vector<Real>& to) {
    to.resize(cells() * size_t(width));
    for (int64_t block = 0; block < shape().blocks; ++block)
      kernels::multiply(coefficients_.data() + b.first + size_t(block * m * n), n, m,
                        b.values.data() + block * n * width, n, width, to.data() + block * m * width, width);
  };
  if (!b.num.empty() && asked_.set) multiply(b.set_out);
  weigh(tile, b);
  multiply(b.out);
  for (const Band::Tokens run : b.runs) multiply_run(tile, run, b);
}

template <class Real>
void ResidentFamily<Real>::multiply_run(const Tile<Real>& tile, Band::Tokens run, BandSums& b) {
  const int32_t rows = int32_t(scored_.size()), width = stream_.shape.v_dim, count = run.last - run.first;
  const int32_t group = shape().heads / shape().blocks;
  const bool all = scored_.size() == tile.rows.size();  // then the strips of a group are stacked
  for (int32_t block = 0; block < shape().blocks; ++block) {
    const int32_t head = first_head() + block * group;
    const Real* const values = stream_.block_values(first_block() + block) + int64_t(run.first) * width;
    Real* out = b.out.data() + int64_t(block) * group * rows * width;
    if (all)
      kernels::multiply(tile.strip_row(head, 0) + run.first, tile.stride, group * rows, values, count, width, out,
                        width, true);
    for (int32_t h = head; h < head + group && !all; ++h)
      for (const int32_t r : scored_) {
        kernels::multiply(tile.strip_row(h, r) + run.first, tile.stride, 1, values, count, width, out, width, true);
        out += width;
      }
  }
}

// base: initial sums, or null.
template <class Real>
void ResidentFamily<Real>::add_parts(const std::vector<Part>& parts, const std::vector<Real>* base, bool unit,
                                     std::vector<Real>& to) const {
  const int64_t numbers = int64_t(cells()) * stream_.shape.v_dim;
  to.resize(size_t(numbers));
  const Real* from = base != nullptr ? base->data() : zeros_.data();
  for (const Part& part : parts) {
    const BandSums& band = bands_[part.band];
    const std::vector<Real>& sums = unit && !band.num.empty() ? band.set_out : band.out;
    kernels::add(from, sums.data(), unit ? Real(1) : Real(part.num), numbers, to.data());
    from = to.data();
  }
  if (parts.empty()) std::copy_n(from, numbers, to.begin());
}

template <class Real>
void ResidentFamily<Real>::sum_member(Member& m) {
  const Member* const base = m.base == kNone ? nullptr : &members_[m.base];
  add_parts(m.beyond, base != nullptr ? &base->out : nullptr, false, m.out);
  if (!m.plain && asked_.set) add_parts(m.parts, nullptr, true, m.set_out);
  if (base != nullptr) m.z = base->z, m.z_den = base->z_den;
  else m.z.assign(cells(), 0.0), m.z_den.assign(cells(), 0.0);
  for (const Part& part : m.beyond) {
    const BandSums& band = bands_[part.band];
    for (size_t at = 0; at < cells(); ++at) {
      m.z[at] += band.z[at];
      m.z_den[at] += band.z_den.empty() ? part.den * band.z[at] : band.z_den[at];
    }
  }
}

template <class Real>
void ResidentFamily<Real>::rows(size_t member, const Tile<Real>& tile, RowResults<Real>& results) {
  Member& m = members_[member];
  sum_tile(tile);
  const bool cut_once = m.cache->steps.fast_path().kind == FastPath::Kind::fixed;
  open_side_outputs(asked_, cut_once, results);
  if (asked_.set && !m.plain) results.set.resize(results.cells(), results.v_dim);
  const double spread = m.cache->method().error_bound().spread;
  size_t at = 0;
  for (int32_t h = 0; h < shape().heads; ++h)
    for (const int32_t r : scored_) {
      const VerbatimRow<Real> row{stream_, tile, asked_, results, first_head(), h, r};
      put_row(m, row, at++, tile.ranking_of(m.cache->heads_differ(), row.stream_head(), r));
      results.of[row.in_results()].spread = spread;
    }
}

// at: index into the member's sums.
template <class Real>
void ResidentFamily<Real>::put_row(const Member& m, const VerbatimRow<Real>& row, size_t at,
                                   const RowRanking* ranking) const {
  const Tile<Real>& tile = row.tile;
  const int32_t t = row.token();
  const size_t width = size_t(stream_.shape.v_dim), exact = row.in_tile();
  const auto each = [&](auto f) { m.held->each_run(t, stream_.prompt, f); };
  const double sink = row.sink();
  const double rest =
      tile.divided ? tile.z_later[exact] : tile.z[exact] - sink;  // the exact row's sum without a sink logit
  const double later = m.held->later ? rest : 0;
  const double own = !m.everything ? m.z[at] : tile.divided ? tile.z_prompt[exact] : 0;
  const double own_den = m.everything ? own : m.z_den[at];
  const RowMass mass{own_den + later + sink, own + later, m.held->attended(t)};
  if (!in_range(mass.z)) return row.put_own_softmax(mass, ranking, m.plain, each);
  row.measure(mass, {mass.z, row.shift()}, ranking, m.plain, each);

  const Real* const sums = !m.everything  ? m.out.data() + at * width
                           : tile.divided ? tile.of_prompt.data() + exact * width
                                          : zeros_.data();
  const Real* const tail = m.held->later ? tile.of_later.data() + exact * width : nullptr;
  if (tail != nullptr) row.put(sums, tail, mass.z);
  else row.put(sums, mass.z);
  const size_t to = row.in_results();
  if (!row.results.prefix.out.empty()) {
    std::copy_n(sums, width, row.results.prefix.out.begin() + int64_t(to * width));
    row.results.prefix.weight[to] = own_den + sink;
  }
  if (m.plain || !asked_.set) return;
  Real* const set = row.results.set.out.data() + to * width;
  const Real* const of_set = m.set_out.data() + at * width;
  if (tail != nullptr) kernels::finish(of_set, tail, Real(1), int64_t(width), set);
  else std::copy_n(of_set, width, set);
  row.results.set.weight[to] = own + later + sink;
}

template class ResidentFamily<float>;
template class ResidentFamily<double>;

}  // namespace kvreplay
