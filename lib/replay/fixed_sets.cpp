#include "replay/fixed_sets.hpp"

#include <algorithm>
#include <iterator>

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
    find_bases(family);
  }
}

// Parts stand in the order of their bands.
template <class Real>
void FixedSets<Real>::find_bases(Family& family) {
  const auto fewer = [&](size_t a, size_t b) { return sets_[a].parts.size() < sets_[b].parts.size(); };
  std::stable_sort(family.sets.begin(), family.sets.end(), fewer);
  for (size_t i = 0; i < family.sets.size(); ++i) {
    Set& set = sets_[family.sets[i]];
    const std::vector<Part>& all = set.parts;
    set.beyond = all;
    for (size_t j = i; j-- > 0 && set.base == kNone;) {
      const std::vector<Part>& some = sets_[family.sets[j]].parts;
      if (some.empty() || !std::includes(all.begin(), all.end(), some.begin(), some.end())) continue;
      set.base = family.sets[j];
      set.beyond.clear();
      std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(set.beyond));
    }
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
void FixedSets<Real>::sum_family(Family& family, const Tile<Real>& tile, const LaneWatch& watch) {
  if (family.tile == tile.begin) return;
  family.tile = tile.begin;
  gather_bands(family, tile);
  for (Band& band : family.bands) sum_band(family, band, watch.set_error);
  for (const size_t s : family.sets) sum_set(family, sets_[s], watch.set_error);
}

template <class Real>
void FixedSets<Real>::sum_set(const Family& family, Set& set, bool wants_set) {
  if (set.whole) return;
  const size_t cells = size_t(family.shape.heads) * scored_.size();
  const int64_t numbers = int64_t(cells) * stream_.shape.v_dim;
  const Set* const base = set.base == kNone ? nullptr : &sets_[set.base];
  zeros_.resize(size_t(numbers), Real(0));
  const auto add_parts = [&](const std::vector<Part>& parts, const Real* from, bool unit,
                             std::vector<Real>& to) {
    to.resize(size_t(numbers));
    for (const Part& part : parts) {
      const Band& band = family.bands[part.band];
      const std::vector<Real>& sums = unit && !band.num.empty() ? band.set_out : band.out;
      kernels::add(from, sums.data(), unit ? Real(1) : part.num, numbers, to.data());
      from = to.data();
    }
    if (parts.empty()) std::copy_n(from, numbers, to.begin());
  };
  add_parts(set.beyond, base != nullptr ? base->out.data() : zeros_.data(), false, set.out);
  if (!set.plain && wants_set) add_parts(set.parts, zeros_.data(), true, set.set_out);
  if (base != nullptr) set.z = base->z, set.z_den = base->z_den;
  else set.z.assign(cells, 0.0), set.z_den.assign(cells, 0.0);
  for (const Part& part : set.beyond) {
    const Band& band = family.bands[part.band];
    for (size_t at = 0; at < cells; ++at) {
      set.z[at] += band.z[at];
      set.z_den[at] += band.num.empty() ? double(part.den) * band.z[at] : band.z_den[at];
    }
  }
}

// Row by row, so that a strip comes from the second-level cache once for all bands.
template <class Real>
void FixedSets<Real>::gather_bands(Family& family, const Tile<Real>& tile) {
  const size_t cells = size_t(family.shape.heads) * scored_.size();
  size_t tokens = 0;
  for (Band& band : family.bands) {
    band.z.resize(cells), band.z_den.resize(cells);
    band.first = tokens;
    tokens += band.tokens.size();
  }
  coefficients_.resize(cells * tokens);
  size_t at = 0;
  for (int32_t h = 0; h < family.shape.heads; ++h)
    for (const int32_t r : scored_) {
      const Real* const strip = tile.strip_row(family.first_head + h, r);
      for (Band& band : family.bands) {
        const size_t n = band.tokens.size();
        Real* const e = coefficients_.data() + cells * band.first + at * n;
        band.z[at] = kernels::gather(strip, band.tokens.data(), int32_t(n), e);
      }
      ++at;
    }
}

template <class Real>
void FixedSets<Real>::sum_band(const Family& family, Band& band, bool wants_set) {
  const size_t cells = band.z.size(), n = band.tokens.size();
  Real* const coefficients = coefficients_.data() + cells * band.first;
  if (!band.num.empty() && wants_set) multiply(family, band, coefficients, band.set_out);
  for (size_t at = 0; at < cells && !band.num.empty(); ++at) {
    Real* const e = coefficients + at * n;
    double z = 0;
    for (size_t i = 0; i < n; ++i) {
      z += double(band.den[i]) * double(e[i]);
      e[i] *= band.num[i];
    }
    band.z_den[at] = z;
  }
  multiply(family, band, coefficients, band.out);
}

template <class Real>
void FixedSets<Real>::multiply(const Family& family, const Band& band, const Real* coefficients,
                               std::vector<Real>& out) const {
  const int32_t n = int32_t(band.tokens.size()), width = stream_.shape.v_dim;
  const int32_t m = family.shape.heads / family.shape.blocks * int32_t(scored_.size());
  out.resize(size_t(family.shape.blocks) * size_t(m) * size_t(width));
  for (int64_t b = 0; b < family.shape.blocks; ++b)
    kernels::multiply(coefficients + b * m * n, n, m, band.values.data() + b * n * width, n, width,
                      out.data() + b * m * width, width);
}

template <class Real>
void FixedSets<Real>::fill(size_t id, const Tile<Real>& tile, const LaneWatch& watch, bool heads_differ,
                           double spread, LaneTile<Real>& result) {
  const Set& set = sets_[id];
  Family& family = families_[set.family];
  find_scored(tile, scored_);
  sum_family(family, tile, watch);
  open_side_outputs(watch, watch.prefix_error, result);
  if (watch.set_error && !set.plain) result.set.resize(result.cells(), result.v_dim);
  size_t at = 0;
  for (int32_t h = 0; h < family.shape.heads; ++h)
    for (const int32_t r : scored_) {
      const PlainRow<Real> row{stream_, tile, watch, result, family.first_head, h, r};
      fill_row(set, row, at++, tile.ranking_of(heads_differ, row.stream_head(), r));
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
void FixedSets<Real>::fill_row(const Set& set, const PlainRow<Real>& row, size_t at,
                               const RowRanking* ranking) {
  const Tile<Real>& tile = row.tile;
  const int32_t t = row.token();
  const auto each = [&](auto f) { visit(set, t, f); };
  const size_t width = size_t(stream_.shape.v_dim), exact = row.in_tile();
  const double sink = row.sink(), later = tile.z_later[exact];
  const double prompt_z = set.whole ? tile.z_prompt[exact] : set.z[at],
               prompt_den = set.whole ? prompt_z : set.z_den[at];
  const RowMass mass{prompt_den + later + sink, prompt_z + later,
                     int32_t(set.tokens.size()) + t + 1 - stream_.prompt};
  if (!mass.safe()) return row.evaluate_alone(mass, ranking, set.plain, each);
  row.measure(mass, {mass.z, double(tile.shift[exact])}, ranking, set.plain, each);

  const Real* const prompt = set.whole ? tile.of_prompt.data() + exact * width : set.out.data() + at * width;
  const Real* const tail = tile.of_later.data() + exact * width;
  row.put(prompt, tail, mass.z);
  if (!row.result.prefix.out.empty()) {
    std::copy_n(prompt, width, row.result.prefix.out.begin() + int64_t(row.in_result() * width));
    row.result.prefix.weight[row.in_result()] = prompt_den + sink;
  }
  if (set.plain || !row.result.has_set) return;
  kernels::finish(set.set_out.data() + at * width, tail, Real(1), int64_t(width),
                  row.result.set.out.data() + row.in_result() * width);
  row.result.set.weight[row.in_result()] = prompt_z + later + sink;
}

template class FixedSets<float>;
template class FixedSets<double>;

}  // namespace kvreplay
