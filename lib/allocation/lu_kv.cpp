#include "allocation/lu_kv.hpp"

#include <algorithm>
#include <numeric>

#include "exact/row_scores.hpp"

namespace kvreplay {
namespace {

// Tokens in the order in which the scorer would keep them: protected ones first, then by score (convention C8).
std::vector<size_t> kept_order(const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

}  // namespace

template <class Real>
void add_lu_kv_slopes(const LuKv& rule, const HeadStream<Real>& stream, const std::vector<double>& future_sums,
                      HeadScores& head) {
  // With a sliding window, scores exist only for the last tokens of the prompt.
  const size_t held = head.scores.size(), gone = size_t(stream.prompt) - held;
  std::vector<double> norms(size_t(stream.prompt), 1);
  if (rule.weight == LuKv::Weight::contrib) norms = mean_output_norms(stream, 0, stream.shape.heads);
  std::vector<double> gains;
  for (const size_t i : kept_order(head.scores)) {
    double sum = 0;
    for (int32_t h = 0; h < stream.shape.heads; ++h) sum += future_sums[size_t(h) * size_t(stream.tokens) + gone + i];
    gains.push_back(sum * norms[gone + i]);
  }
  const int32_t least = rule.lo > 0 ? rule.lo : std::max(1, protected_tokens(head));
  head.extras = hull_slopes(gains);
  head.extras.insert(head.extras.begin(), double(least));
}

std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget) {
  return lu_kv_tokens(heads, budget, 1, 1);
}

std::vector<int32_t> lu_kv_tokens(const std::vector<HeadScores>& heads, int32_t budget, int32_t prompt,
                                  int32_t replayed) {
  const int64_t total = int64_t(budget) * int64_t(heads.size()) * prompt / replayed;
  const int64_t most = total / std::max<int64_t>(1, int64_t(heads.size()));
  std::vector<std::vector<double>> slopes;
  std::vector<int32_t> least;
  for (const HeadScores& head : heads) {
    const int64_t share = (int64_t(head.extras.front()) * prompt + replayed - 1) / replayed;
    least.push_back(int32_t(std::min(share, most)));
    slopes.emplace_back(head.extras.begin() + 1, head.extras.end());
  }
  return tokens_by_slopes(slopes, least, total);
}

template void add_lu_kv_slopes(const LuKv&, const HeadStream<float>&, const std::vector<double>&, HeadScores&);
template void add_lu_kv_slopes(const LuKv&, const HeadStream<double>&, const std::vector<double>&, HeadScores&);

}  // namespace kvreplay
