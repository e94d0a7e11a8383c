#include "replay/fixed_sets.hpp"

#include <algorithm>

#include "kernels/kernels.hpp"

namespace kvreplay {
namespace {

// Sharing pays while a band's own cost, in tokens, stays below what the sets have in common.
constexpr size_t kBandCost = 8;

}  // namespace

template <class Real>
size_t FixedSets<Real>::add(const BasicCache<Real>& cache, int32_t first_head, size_t family) {
  if (families_.size() <= family) families_.resize(family + 1);
  families_[family].first_head = first_head;
  families_[family].shape = cache.shape();
  families_[family].sets.push_back(sets_.size());
  Set set;
  set.family = family;
  for (int32_t i = 0; i < cache.size(); ++i) {
    set.tokens.push_back(cache.token(i));
    set.weights.emplace_back(cache.num(i), cache.den(i));
    set.plain = set.plain && cache.num(i) == 1 && cache.den(i) == 1;
  }
  set.whole = set.plain && cache.size() == stream_.prompt;
  sets_.push_back(std::move(set));
  return sets_.size() - 1;
}

template <class Real>
void FixedSets<Real>::build() {
  for (Family& family : families_) {
    size_t apart = 0, together = 0;
    for (const size_t s : family.sets) apart += sets_[s].whole ? 0 : sets_[s].tokens.size() + kBandCost;
    const auto bands = signatures(family);
    for (const auto& [signature, tokens] : bands) together += tokens.size() + kBandCost;
    if (together <= apart) share_bands(family, bands);
    else own_bands(family);
  }
}

template <class Real>
auto FixedSets<Real>::signatures(const Family& family) const -> Bands {
  std::vector<Signature> of_token(size_t(stream_.prompt));
  for (const size_t s : family.sets)
    for (size_t i = 0; i < sets_[s].tokens.size() && !sets_[s].whole; ++i)
      of_token[size_t(sets_[s].tokens[i])].emplace_back(s, sets_[s].weights[i]);
  Bands bands;
  for (size_t token = 0; token < of_token.size(); ++token)
    if (!of_token[token].empty()) bands[of_token[token]].push_back(int32_t(token));
  return bands;
}

template <class Real>
void FixedSets<Real>::share_bands(Family& family, const Bands& bands) {
  for (const auto& [signature, tokens] : bands) {
    const size_t band = add_band(family, tokens);
    for (const auto& [s, weights] : signature)
      sets_[s].parts.push_back({band, weights.first, weights.second});
  }
}

template <class Real>
void FixedSets<Real>::own_bands(Family& family) {
  for (const size_t s : family.sets) {
    Set& set = sets_[s];
    if (set.whole || set.tokens.empty()) continue;
    set.parts.push_back({add_band(family, set.tokens), 1, 1});
    if (set.plain) continue;
    Band& band = family.bands.back();
    for (const auto& [num, den] : set.weights) band.num.push_back(num), band.den.push_back(den);
  }
}

template <class Real>
size_t FixedSets<Real>::add_band(Family& family, std::vector<int32_t> tokens) {
  Band band;
  band.tokens = std::move(tokens);
  const int32_t first = stream_.shape.block_of(family.first_head);
  const int64_t width = stream_.shape.v_dim;
  for (int32_t b = first; b < first + family.shape.blocks; ++b)
    for (const int32_t token : band.tokens) {
      const Real* value = stream_.block_values(b) + token * width;
      band.values.insert(band.values.end(), value, value + width);
    }
  family.bands.push_back(std::move(band));
  return family.bands.size() - 1;
}

template <class Real>
void FixedSets<Real>::sum_bands(Family& family, const Tile<Real>& tile, const LaneWatch& watch) {
  if (family.tile == tile.begin) return;
  family.tile = tile.begin;
  for (Band& band : family.bands) sum_band(family, band, tile, watch.set_error);
}

template <class Real>
void FixedSets<Real>::sum_band(const Family& family, Band& band, const Tile<Real>& tile, bool wants_set) {
  const int32_t n = int32_t(band.tokens.size());
  const size_t cells = size_t(family.shape.heads) * scored_.size();
  band.z.resize(cells), band.z_den.resize(cells);
  coefficients_.resize(cells * size_t(n));
  size_t at = 0;
  for (int32_t h = 0; h < family.shape.heads; ++h)
    for (const int32_t r : scored_) {
      band.z[at] = kernels::gather(tile.strip_row(family.first_head + h, r), band.tokens.data(), n,
                                   coefficients_.data() + at * size_t(n));
      ++at;
    }
  if (!band.num.empty() && wants_set) multiply(family, band, band.set_out);
  for (at = 0; at < cells && !band.num.empty(); ++at) {
    Real* const e = coefficients_.data() + at * size_t(n);
    double z = 0;
    for (size_t i = 0; i < size_t(n); ++i) {
      z += double(band.den[i]) * double(e[i]);
      e[i] *= band.num[i];
    }
    band.z_den[at] = z;
  }
  multiply(family, band, band.out);
}

template <class Real>
void FixedSets<Real>::multiply(const Family& family, const Band& band, std::vector<Real>& out) const {
  const int32_t n = int32_t(band.tokens.size()), width = stream_.shape.v_dim;
  const int32_t m = family.shape.heads / family.shape.blocks * int32_t(scored_.size());
  out.resize(size_t(family.shape.blocks) * size_t(m) * size_t(width));
  for (int64_t b = 0; b < family.shape.blocks; ++b)
    kernels::multiply(coefficients_.data() + b * m * n, n, m, band.values.data() + b * n * width, n, width,
                      out.data() + b * m * width, width);
}

template <class Real>
void FixedSets<Real>::fill(size_t id, const Tile<Real>& tile, const LaneWatch& watch, bool heads_differ,
                           double spread, LaneTile<Real>& result) {
  const Set& set = sets_[id];
  Family& family = families_[set.family];
  find_scored(tile, scored_);
  sum_bands(family, tile, watch);
  open_side_outputs(watch, watch.prefix_error, result);
  if (watch.set_error && !set.plain) result.set.resize(result.cells(), result.v_dim);
  size_t at = 0;
  for (int32_t h = 0; h < family.shape.heads; ++h)
    for (const int32_t r : scored_) {
      const PlainRow<Real> row{stream_, tile, watch, result, family.first_head, h, r};
      fill_row(set, family, row, at++, tile.ranking_of(heads_differ, row.stream_head(), r));
      result.measures[row.in_result()].spread = spread;
    }
}

// Tokens of the set, then the later ones up to t.
template <class Real>
template <class F>
void FixedSets<Real>::visit(const Set& set, int32_t t, F f) const {
  for (size_t i = 0; i < set.tokens.size(); ++i)
    f(set.tokens[i], double(set.weights[i].first), double(set.weights[i].second));
  for (int32_t i = stream_.prompt; i <= t; ++i) f(i, 1.0, 1.0);
}

template <class Real>
void FixedSets<Real>::fill_row(const Set& set, const Family& family, const PlainRow<Real>& row, size_t at,
                               const RowRanking* ranking) {
  const Tile<Real>& tile = row.tile;
  const int32_t t = row.token();
  const auto each = [&](auto f) { visit(set, t, f); };
  const size_t width = size_t(stream_.shape.v_dim);
  const double sink = row.sink(), later = tile.z_later[row.in_tile()];
  double prompt_z = set.whole ? tile.z_prompt[row.in_tile()] : 0, prompt_den = prompt_z;
  for (const Part& part : set.parts) {
    const Band& band = family.bands[part.band];
    prompt_z += band.z[at];
    prompt_den += band.num.empty() ? double(part.den) * band.z[at] : band.z_den[at];
  }
  const RowMass mass{prompt_den + later + sink, prompt_z + later,
                     int32_t(set.tokens.size()) + t + 1 - stream_.prompt};
  if (!mass.safe()) return row.evaluate_alone(mass, ranking, set.plain, each);
  row.measure(mass, {mass.z, double(tile.shift[row.in_tile()])}, ranking, set.plain, each);

  const auto add_parts = [&](Real* to, bool unit) {
    if (set.whole) std::copy_n(tile.of_prompt.data() + row.in_tile() * width, width, to);
    else std::fill_n(to, width, Real(0));
    for (const Part& part : set.parts) {
      const Band& band = family.bands[part.band];
      const Real* x = (unit && !band.num.empty() ? band.set_out : band.out).data() + at * width;
      const Real weight = unit ? 1 : part.num;
      for (size_t c = 0; c < width; ++c) to[c] += weight * x[c];
    }
  };
  sum_.resize(width);
  add_parts(sum_.data(), false);
  if (!row.result.prefix.out.empty()) {
    std::copy(sum_.begin(), sum_.end(), row.result.prefix.out.begin() + int64_t(row.in_result() * width));
    row.result.prefix.weight[row.in_result()] = prompt_den + sink;
  }
  const Real* tail = tile.of_later.data() + row.in_tile() * width;
  for (size_t c = 0; c < width; ++c) sum_[c] += tail[c];
  row.put(sum_.data(), mass.z);
  if (set.plain || !row.result.has_set) return;
  Real* const to = row.result.set.out.data() + row.in_result() * width;
  add_parts(to, true);
  for (size_t c = 0; c < width; ++c) to[c] += tail[c];
  row.result.set.weight[row.in_result()] = prompt_z + later + sink;
}

template class FixedSets<float>;
template class FixedSets<double>;

}  // namespace kvreplay
