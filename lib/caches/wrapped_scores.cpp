#include "caches/wrapped_scores.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/step.hpp"

namespace kvreplay {
namespace {

// Adds to `change`, for each row, the change of the attention output if that row alone were removed. Scores stand in
// for probabilities: alpha / (1 - alpha) times the distance of the row's value from the output.
template <class Real>
void add_changes(const BasicCache<Real>& cache, bool fast, std::vector<double>& change) {
  const int32_t n = cache.size();
  const size_t width = size_t(cache.shape().v_dim);
  double total = 0;
  for (int32_t i = 0; i < n; ++i) total += cache.score(i);
  if (!(total > 0)) return;
  std::vector<double> output(width, 0);
  for (int32_t i = 0; i < n; ++i) {
    const double share = fast ? 1.0 / n : cache.score(i) / total;
    const auto value = cache.value(i);
    for (size_t c = 0; c < width; ++c) output[c] += share * double(value[c]);
  }
  for (int32_t i = 0; i < n; ++i) {
    const double alpha = cache.score(i) / total;
    const auto value = cache.value(i);
    double square = 0;
    for (size_t c = 0; c < width; ++c) square += (output[c] - double(value[c])) * (output[c] - double(value[c]));
    change[size_t(i)] += alpha < 1 ? alpha / (1 - alpha) * std::sqrt(square) : INFINITY;
  }
}

}  // namespace

template <class Real>
void WrappedCalls<Real>::read_prompt(const SerialTeam& team, const Prompt<Real>& prompt,
                                     BasicCache<Real>& cache) const {
  CutCalls<Real>::read_prompt(team, prompt, cache);
  if (wrapped == nullptr || (cache.size() <= wrapped->budget && !wrapped->steps())) return;
  if (wrapped->wrapper.kind == Wrapper::Kind::critical) by_output(prompt, cache);
  else by_removal(prompt, cache);
}

template <class Real>
void WrappedCalls<Real>::by_output(const Prompt<Real>& prompt, BasicCache<Real>& cache) const {
  std::vector<int32_t> open;
  for (int32_t i = 0; i < cache.size(); ++i)
    if (!is_protected(this->protection(), cache, i, prompt.size())) open.push_back(i);
  const int32_t safe = cache.size() - int32_t(open.size());
  const int32_t by_score = std::max(0, int32_t(std::floor(wrapped->wrapper.alpha * wrapped->budget)) - safe);
  std::vector<uint8_t> first(open.size(), 0);
  choose_top(
      SerialTeam{}, int32_t(open.size()), by_score, [&](int32_t i) { return cache.score(open[size_t(i)]); },
      [&](int32_t i, bool yes) { first[size_t(i)] = yes ? 1 : 0; });
  for (size_t i = 0; i < open.size(); ++i) {
    double& score = cache.score(open[i]);
    const double norm = wrapped->output_norms[size_t(cache.token(open[i]))];
    score = first[i] != 0 ? INFINITY : (score / wrapped->voters + wrapped->wrapper.eps) * norm;
  }
}

template <class Real>
void WrappedCalls<Real>::by_removal(const Prompt<Real>& prompt, BasicCache<Real>& cache) const {
  std::vector<double> change(size_t(cache.size()), 0);
  for (int32_t h = 0; h < (by_head() ? prompt.shape().heads : 1); ++h) {
    if (by_head()) CutCalls<Real>::read_prompt(SerialTeam{}, prompt.head(h), cache);
    add_changes(cache, wrapped->wrapper.fast, change);
    for (int32_t i = 0; i < cache.size() && wrapped->steps(); ++i)
      wrapped->scores[size_t(h) * size_t(wrapped->tokens) + size_t(cache.token(i))] = cache.score(i);
  }
  for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = change[size_t(i)];
}

template <class Real>
void WrappedCalls<Real>::observe(const SerialTeam& team, BasicCache<Real>& cache, const HeadProbabilities& p) const {
  if (!wraps_steps()) return CutCalls<Real>::observe(team, cache, p);
  std::vector<double> change(size_t(cache.size()), 0);
  for (int32_t h = 0; h < (by_head() ? p.heads : 1); ++h) {
    for (int32_t i = 0; i < cache.size(); ++i) {
      double& score = wrapped->scores[size_t(h) * size_t(wrapped->tokens) + size_t(cache.token(i))];
      score = wrapped->carry * score + (by_head() ? p(h, i) : p.group(i));
      cache.score(i) = score;
    }
    add_changes(cache, wrapped->wrapper.fast, change);
  }
  for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = change[size_t(i)];
}

template struct WrappedCalls<float>;
template struct WrappedCalls<double>;

}  // namespace kvreplay
