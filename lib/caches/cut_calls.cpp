#include "caches/cut_calls.hpp"

#include <algorithm>

#include "core/page_cut.hpp"

namespace kvreplay {

template <class Real>
TiedHeads<Real>::TiedHeads(std::vector<BoundMethod> methods, const HeadStream<Real>& stream, Aggregate how)
    : methods_(std::move(methods)) {
  if (!any()) return;
  const int32_t heads = methods_.front().context().shape.heads;
  for (int32_t b = 0; b < count(); ++b) readings_.emplace_back(stream, methods_[size_t(b)], b * heads, how);
  sums_.resize(size_t(stream.tokens / methods_.front().context().serving.pages.size) + 1);
}

template <class Real>
int64_t TiedHeads<Real>::state_doubles() const {
  int64_t all = 0;
  for (const BoundMethod& m : methods_) all += m.layout().state_doubles;
  return all;
}

template <class Real>
void TiedHeads<Real>::bind(std::span<double> state, const Rng& rng, const std::vector<Rng>& rngs) {
  for (size_t b = 0; b < methods_.size(); ++b) {
    const size_t own = size_t(methods_[b].layout().state_doubles);
    methods_[b].bind_state(state.first(own));
    state = state.subspan(own);
    Rng of_head = rngs.empty() ? rng : rngs[b];
    of_head.kv_head = uint32_t(b);
    methods_[b].bind_rng(of_head);
  }
}

// Each head adds the scores of its pages; then the sums decide for all.
template <class Real>
void TiedHeads<Real>::evict(const CacheStorage<Real>& held, BasicCache<Real>& cache) {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  PageCut cut;
  for (size_t b = 0; b < methods_.size(); ++b) {
    BasicCache<Real> own = cache.block(int32_t(b)).with_board({sums_.data(), &cut});
    readings_[b].read(calls(b), held.block(int32_t(b)), own);
    calls(b).evict(SerialTeam{}, own);
  }
  if (!cut.due) return;
  HeldPages pages(cache, methods_.front().context().serving.pages.size, {cut.sinks, cut.recent}, cut.kept_prompt);
  pages.choose(SerialTeam{}, cut.left, [&](const HeldPage& g) { return sums_[size_t(g.number)]; });
  pages.retain(SerialTeam{}, cache);
}

template class TiedHeads<float>;
template class TiedHeads<double>;

}  // namespace kvreplay
