#include "caches/key_channels.hpp"

#include <algorithm>

#include "core/select.hpp"

namespace kvreplay {
namespace {

// Mean of x_c^2 over some vectors x(i), for each channel.
template <class X>
std::vector<double> mean_squares(int32_t count, int32_t dim, X x) {
  std::vector<double> sums(size_t(dim), 0.0);
  for (int32_t i = 0; i < count; ++i) {
    const auto numbers = x(i);
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += double(numbers[c]) * double(numbers[c]) / count;
  }
  return sums;
}

// Energies of channels in the last queries of the prompt, over the query heads of one kv head of the cache.
template <class Real>
std::vector<double> query_energy(const HeadStream<Real>& s, int32_t first_head, int32_t heads, int32_t window) {
  const int32_t rows = std::min(window, s.prompt), first = s.prompt - rows;
  s.hold_queries(first, s.prompt - 1);
  return mean_squares(rows * heads, s.shape.dim, [&](int32_t i) {
    return std::span<const Real>(s.query(first_head + i / rows, first + i % rows), size_t(s.shape.dim));
  });
}

}  // namespace

template <class Real>
LackingKeys drop_channels(const Think& think, const HeadStream<Real>& stream, int32_t first_head,
                          BasicCache<Real>& cache) {
  const HeadShape shape = cache.shape();
  const int32_t dim = shape.dim, group = shape.heads / shape.blocks, count = think.dropped(dim);
  if (count == 0 || cache.size() == 0) return {};
  LackingKeys keys{stream.prompt, count, std::vector<uint8_t>(size_t(shape.blocks) * size_t(dim), 0)};
  const auto lacks = [&](int32_t b, int32_t c) -> uint8_t& { return keys.dropped[size_t(b * dim + c)]; };
  for (int32_t b = 0; b < shape.blocks; ++b) {
    const std::vector<double> q = query_energy(stream, first_head + b * group, group, think.window);
    const std::vector<double> k = mean_squares(cache.size(), dim, [&](int32_t i) { return cache.key(i, b); });
    choose_top(
        SerialTeam{}, dim, dim - count, [&](int32_t c) { return q[size_t(c)] * k[size_t(c)]; },
        [&](int32_t c, bool stays) { lacks(b, c) = stays ? 0 : 1; });
  }
  for (int32_t row = 0; row < cache.size(); ++row)
    cache.rewrite(
        SerialTeam{}, row,
        [&](int32_t b, int32_t c) { return lacks(b, c) != 0 ? Real(0) : cache.key(row, b)[size_t(c)]; },
        [&](int32_t b, int32_t c) { return cache.value(row, b)[size_t(c)]; });
  return keys;
}

int64_t mask_bytes(const Think& think, const HeadShape& shape) {
  return think.dropped(shape.dim) == 0 ? 0 : int64_t(shape.blocks) * ((shape.dim + 7) / 8);
}

template LackingKeys drop_channels(const Think&, const HeadStream<float>&, int32_t, BasicCache<float>&);
template LackingKeys drop_channels(const Think&, const HeadStream<double>&, int32_t, BasicCache<double>&);

}  // namespace kvreplay
