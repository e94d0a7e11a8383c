#include "caches/merging.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <span>

#include "core/vectors.hpp"

namespace kvreplay {

namespace {

constexpr SerialTeam kTeam;

constexpr double kLeastNorm = 1e-6;  // used by value_blend

double cosine(double product, double norm_a, double norm_b) {
  return norm_a > 0 && norm_b > 0 ? product / (norm_a * norm_b) : 0;
}

template <class Real>
class Merger {
 public:
  Merger(const std::vector<EvictedRow>& evicted, Merging& state, BasicCache<Real>& cache)
      : evicted_(evicted), state_(state), merge_(state.merge), cache_(cache), kept_(cache.size()) {
    assert(std::is_sorted(cache.tokens().begin(), cache.tokens().end()));
  }

  void cam() {
    for (const EvictedRow& row : evicted_) {
      const int32_t first = right_of(row.token), count = std::min(merge_.next, kept_ - first);
      const double u = state_.rng.uniform(RngStream::merge_draws, row.token);
      if (count == 0 || !(u < probability(row.token, first, count))) continue;
      const double part = 1 / double(count);
      for (int32_t i = first; i < first + count; ++i) hand_out(row, part, i);
      ++state_.merged;
    }
  }

  void weighted_v() {
    for (const EvictedRow& row : evicted_) {
      if (kept_ == 0) break;
      const int32_t target = std::min(right_of(row.token), kept_ - 1);
      if (keeps_mass()) {
        merge_part(row, 1, target);
      } else {
        const double own = state_.mean_attention(row.token), others = state_.mean_attention(cache_.token(target));
        if (own + others > 0) rewrite_value(target, others / (own + others), own / (own + others), row);
      }
      ++state_.merged;
    }
  }

  // d2o and pivot: each evicted row joins the kept row whose key has the largest cosine with its key.
  void by_cosine() {
    if (kept_ == 0) return;
    std::vector<double> cosines;
    const std::vector<int32_t> targets = nearest(cosines);
    if (merge_.rule == Merge::Rule::d2o) follow_threshold(cosines);
    for (int32_t target = 0; target < kept_; ++target) {
      std::vector<size_t> joins;
      for (size_t i = 0; i < evicted_.size(); ++i)
        if (targets[i] == target && joins_at(cosines[i])) joins.push_back(i);
      if (!joins.empty()) join(target, joins, cosines);
      state_.merged += int64_t(joins.size());
    }
  }

  // Keys stay. The numbers of a row before the cut decide its weights.
  void value_blend() {
    if (kept_ == 0) return;
    std::vector<double> cosines;
    const std::vector<int32_t> targets = nearest(cosines);
    const double least = least_blended(cosines);
    for (int32_t target = 0; target < kept_; ++target) {
      std::vector<size_t> joins;
      for (size_t i = 0; i < evicted_.size(); ++i)
        if (targets[i] == target && cosines[i] >= least) joins.push_back(i);
      if (!joins.empty()) blend(target, joins, cosines);
      state_.merged += int64_t(joins.size());
    }
  }

  void gaussian() {
    size_t first = 0;
    for (size_t i = 1; i <= evicted_.size(); ++i) {
      if (i < evicted_.size() && are_alike(evicted_[i - 1], evicted_[i])) continue;
      push_run(std::span(evicted_).subspan(first, i - first));
      state_.merged += int64_t(i - first);
      first = i;
    }
  }

 private:
  bool keeps_mass() const { return state_.keeps_mass(); }
  // Index of the first row with a later token; kept_ if there is none.
  int32_t right_of(int32_t token) const {
    const auto tokens = cache_.tokens();
    return int32_t(std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin());
  }

  // For cam: the attention that the token received divided by the mean over `count` kept tokens.
  double probability(int32_t token, int32_t first, int32_t count) const {
    double sum = 0;
    for (int32_t i = first; i < first + count; ++i) sum += state_.attention[size_t(cache_.token(i))];
    const double own = state_.attention[size_t(token)], mean = sum / double(count);
    if (mean > 0) return std::min(1.0, own / mean);
    return own > 0 ? 1 : 0;
  }
  void hand_out(const EvictedRow& row, double part, int32_t target) {
    if (keeps_mass()) merge_part(row, part, target);
    else rewrite_value(target, 1, part, row);
  }
  // Adds a part of a row to the target; the new value is the mean of both values, weighted by the mass they represent.
  void merge_part(const EvictedRow& row, double part, int32_t target) {
    const double own = double(cache_.num(target)), taken = row.num * part;
    rewrite_value(target, own / (own + taken), taken / (own + taken), row);
    weigh(target, taken, row.den * part);
  }
  // Changes only the value; the key stays.
  void rewrite_value(int32_t target, double own, double other, const EvictedRow& row) {
    const auto key = cache_.key(target), value = cache_.value(target);
    cache_.rewrite(
        kTeam, target, [&](int32_t, int32_t c) { return key[size_t(c)]; },
        [&](int32_t, int32_t c) { return Real(own * double(value[size_t(c)]) + other * row.value[size_t(c)]); });
  }
  void weigh(int32_t target, double num, double den) {
    cache_.weigh(target, double(cache_.num(target)) + num, double(cache_.den(target)) + den);
  }

  // For each evicted row, the kept row with the largest cosine; ties: the lower token.
  std::vector<int32_t> nearest(std::vector<double>& cosines) const {
    const double least = merge_.rule == Merge::Rule::value_blend ? kLeastNorm : 0;
    std::vector<double> norms;
    for (int32_t row = 0; row < kept_; ++row) norms.push_back(std::max(least, norm(cache_.key(row))));
    std::vector<int32_t> targets;
    for (const EvictedRow& row : evicted_) {
      const double own = std::max(least, norm(std::span(row.key)));
      const Scored best = kTeam.largest(
          kept_, [&](int32_t i) { return cosine(wide_dot(cache_.key(i), std::span(row.key)), own, norms[size_t(i)]); });
      targets.push_back(best.index), cosines.push_back(best.score);
    }
    return targets;
  }
  void follow_threshold(const std::vector<double>& cosines) {
    const double mean = std::accumulate(cosines.begin(), cosines.end(), 0.0) / double(cosines.size());
    state_.threshold = std::isnan(state_.threshold) ? mean : (state_.threshold + mean) / 2;
  }
  bool joins_at(double cosine) const { return merge_.rule != Merge::Rule::d2o || cosine >= state_.threshold; }

  // For d2o and pivot: the weights of the kept row and of a joining row with this cosine.
  struct Weights {
    double own, other;
  };
  Weights weights(double cosine) const {
    if (merge_.rule == Merge::Rule::pivot) return {0.5, 0.5};
    return merge_.release ? Weights{0, cosine} : Weights{0, std::exp(cosine)};
  }
  void join(int32_t target, const std::vector<size_t>& joins, const std::vector<double>& cosines) {
    double own = merge_.rule == Merge::Rule::d2o && !merge_.release ? std::exp(1.0) : 1.0, total = own;
    std::vector<double> others;
    for (const size_t i : joins) {
      const Weights w = weights(cosines[i]);
      own += w.own, others.push_back(w.other);
      total += w.own + w.other;
    }
    if (merge_.release) total = 1 + double(joins.size());
    const auto mixed = [&](std::span<const Real> held, auto part, int32_t c) {
      double sum = own * double(held[size_t(c)]);
      for (size_t i = 0; i < joins.size(); ++i) sum += others[i] * (evicted_[joins[i]].*part)[size_t(c)];
      return Real(sum / total);
    };
    const auto key = cache_.key(target), value = cache_.value(target);
    rewrite_joined(
        target, joins, [&](int32_t c) { return mixed(key, &EvictedRow::key, c); },
        [&](int32_t c) { return mixed(value, &EvictedRow::value, c); });
  }
  // A kept row takes a key, and a value or the mean of all by their mass.
  void rewrite_joined(int32_t target, const std::vector<size_t>& joins, auto key, auto value) {
    const auto held = cache_.value(target);
    const double num = double(cache_.num(target));
    cache_.rewrite(
        kTeam, target, [&](int32_t, int32_t c) { return key(c); },
        [&](int32_t, int32_t c) { return keeps_mass() ? by_mass(held, num, joins, c) : value(c); });
    if (!keeps_mass()) return;
    for (const size_t i : joins) weigh(target, evicted_[i].num, evicted_[i].den);
  }
  // The cosine from which on a row is blended: the threshold, or the quantile 1 - fraction of this cut's cosines, with
  // linear interpolation and those below the threshold as -infinity.
  double least_blended(std::vector<double> cosines) const {
    if (merge_.fraction == 1) return merge_.threshold;
    for (double& x : cosines)
      if (x < merge_.threshold) x = -INFINITY;
    std::sort(cosines.begin(), cosines.end());
    const double at = (1 - merge_.fraction) * double(cosines.size() - 1);
    const auto below = size_t(at);
    const double low = cosines[below], part = at - double(below);
    const double quantile = part == 0 || std::isinf(low) ? low : low + part * (cosines[below + 1] - low);
    return std::max(merge_.threshold, quantile);
  }
  void blend(int32_t target, const std::vector<size_t>& joins, const std::vector<double>& cosines) {
    const auto key = cache_.key(target), value = cache_.value(target);
    const double own = norm(value);
    std::vector<double> weights;
    for (const size_t i : joins) {
      const double other = norm(std::span(evicted_[i].value));
      weights.push_back(std::max(cosines[i], 0.0) * other / (other + own + kLeastNorm));
    }
    const double total = 1 + std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto blended = [&](int32_t c) {
      double sum = double(value[size_t(c)]);
      for (size_t i = 0; i < joins.size(); ++i) sum += weights[i] * evicted_[joins[i]].value[size_t(c)];
      return Real(sum / total);
    };
    rewrite_joined(
        target, joins, [&](int32_t c) { return key[size_t(c)]; }, blended);
  }
  Real by_mass(std::span<const Real> value, double num, const std::vector<size_t>& joins, int32_t c) const {
    double sum = num * double(value[size_t(c)]), all = num;
    for (const size_t i : joins) sum += evicted_[i].num * evicted_[i].value[size_t(c)], all += evicted_[i].num;
    return Real(sum / all);
  }

  bool are_alike(const EvictedRow& a, const EvictedRow& b) const {
    const std::span left(a.key), right(b.key);
    return b.token == a.token + 1 && cosine(wide_dot(left, right), norm(left), norm(right)) > merge_.threshold;
  }
  // Gaussian weights of a run around its key with the largest attention; their sum is 1.
  std::vector<double> run_weights(std::span<const EvictedRow> run) const {
    const auto gets_less = [&](const EvictedRow& a, const EvictedRow& b) {
      return state_.attention[size_t(a.token)] < state_.attention[size_t(b.token)];
    };
    const EvictedRow& pivot = *std::max_element(run.begin(), run.end(), gets_less);
    std::vector<double> weights;
    double mean = 0;
    for (const EvictedRow& row : run) {
      double square = 0;
      for (size_t c = 0; c < row.key.size(); ++c) square += (row.key[c] - pivot.key[c]) * (row.key[c] - pivot.key[c]);
      weights.push_back(square);
      mean += std::sqrt(square) / double(std::max<size_t>(1, run.size() - 1));
    }
    for (double& w : weights) w = mean > 0 ? std::exp(-w / (2 * mean * mean)) : 1;
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& w : weights) w /= total;
    return weights;
  }
  void push_run(std::span<const EvictedRow> run) {
    const std::vector<double> weights = run_weights(run);
    double num = 0, den = 0;
    for (const EvictedRow& row : run) num += row.num, den += row.den;
    const auto sum = [&](auto part, int32_t c, bool mass) {
      double x = 0;
      for (size_t i = 0; i < run.size(); ++i) x += (mass ? run[i].num / num : weights[i]) * (run[i].*part)[size_t(c)];
      return Real(x);
    };
    const bool mass = keeps_mass();
    cache_.push_own(
        kTeam, [&](int32_t c) { return sum(&EvictedRow::key, c, false); },
        [&](int32_t c) { return sum(&EvictedRow::value, c, mass); }, Real(mass ? num : 1), Real(mass ? den : 1));
  }

  const std::vector<EvictedRow>& evicted_;
  Merging& state_;
  const Merge& merge_;
  BasicCache<Real>& cache_;
  int32_t kept_;  // number of kept rows, ordered by token
};

}  // namespace

template <class Real>
void merge_evicted(const std::vector<EvictedRow>& evicted, Merging& state, BasicCache<Real>& cache) {
  const int64_t before = state.merged;
  Merger<Real> merger(evicted, state, cache);
  switch (state.merge.rule) {
    case Merge::Rule::none:
      return;
    case Merge::Rule::cam:
      merger.cam();
      break;
    case Merge::Rule::weighted_v:
      merger.weighted_v();
      break;
    case Merge::Rule::d2o:
    case Merge::Rule::pivot:
      merger.by_cosine();
      break;
    case Merge::Rule::gaussian:
      merger.gaussian();
      break;
    case Merge::Rule::value_blend:
      merger.value_blend();
      break;
  }
  state.lost += int64_t(evicted.size()) - (state.merged - before);
}

template void merge_evicted(const std::vector<EvictedRow>&, Merging&, BasicCache<float>&);
template void merge_evicted(const std::vector<EvictedRow>&, Merging&, BasicCache<double>&);

namespace {

// A row before a cut that may evict it. Its spans stay valid until another row is written.
template <class Real>
struct HeldRow {
  int32_t token;
  double num, den;
  std::span<const Real> key, value;
};

template <class Real>
std::vector<HeldRow<Real>> rows_of(const BasicCache<Real>& cache) {
  std::vector<HeldRow<Real>> rows;
  rows.reserve(size_t(cache.size()));
  for (int32_t i = 0; i < cache.size(); ++i)
    rows.push_back({cache.token(i), double(cache.num(i)), double(cache.den(i)), cache.key(i), cache.value(i)});
  return rows;
}

// The rows of these tokens, in their order in the cache.
template <class Real>
std::vector<EvictedRow> evicted_of(const std::vector<HeldRow<Real>>& before, std::span<const int32_t> tokens) {
  std::vector<int32_t> gone(tokens.begin(), tokens.end());
  std::sort(gone.begin(), gone.end());
  std::vector<EvictedRow> evicted;
  for (const HeldRow<Real>& row : before)
    if (std::binary_search(gone.begin(), gone.end(), row.token))
      evicted.push_back(
          {row.token, row.num, row.den, {row.key.begin(), row.key.end()}, {row.value.begin(), row.value.end()}});
  return evicted;
}

}  // namespace

template <class Real>
void MergedCalls<Real>::evict(const SerialTeam& team, BasicCache<Real>& cache) const {
  if (merging == nullptr) return Base::evict(team, cache);
  const int32_t so_far = cache.evictions();
  const std::vector<HeldRow<Real>> before = rows_of(cache);
  Base::evict(team, cache);
  if (cache.evictions() > so_far) merge_evicted(evicted_of(before, cache.evicted_since(so_far)), *merging, cache);
}

template <class Real>
template <class P>
void MergedCalls<Real>::receive(const BasicCache<Real>& cache, P probability) const {
  const bool adds_up = merging->merge.attention == Merge::Attention::accumulated;
  for (int32_t i = 0; i < cache.size(); ++i) {
    double& received = merging->attention[size_t(cache.token(i))];
    received = (adds_up ? received : 0) + probability(i);
  }
  merging->last_row = cache.token(cache.size() - 1);
}

template <class Real>
void MergedCalls<Real>::observe(const SerialTeam& team, BasicCache<Real>& cache, std::span<const double> p) const {
  if (merging != nullptr && merging->observes()) receive(cache, [&](int32_t i) { return p[size_t(i)]; });
  if (Base::observes()) Base::observe(team, cache, p);
}

template <class Real>
void MergedCalls<Real>::observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const {
  if (merging != nullptr && merging->observes()) receive(cache, [&](int32_t i) { return p.group(i); });
  if (Base::observes()) Base::observe(team, cache, p);
}

template struct MergedCalls<float>;
template struct MergedCalls<double>;

}  // namespace kvreplay
