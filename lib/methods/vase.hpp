#pragma once
#include <cmath>

#include "core/linear.hpp"
#include "methods/parts/buffered.hpp"
#include "methods/parts/query_ring.hpp"

namespace kvreplay {

// VaSE, 2026: keeps values of wide range, and draws the rest by the attention of the newest queries.
//  1. The `recent` newest tokens stay; the others are candidates. K = m - recent of them stay.
//  2. width_i = largest minus smallest channel of v_i, infinite for the first `sinks` tokens; the floor(large_frac K)
//     widest candidates stay.
//  3. a = softmax of the last `recent` queries over the candidates alone; mean over rows, average pool of `kernel` (0
//     outside, divisor kernel), mean over the group.
//  4. The other candidates with the smallest -ln(u_i) / a_i stay: a weighted draw without replacement.
struct VaSe : Buffered {
  static constexpr MethodInfo info{
      .name = "vase",
      .title = "wide values, and a draw by attention, cut once per buffer",
      .source = "VaSE, arXiv 2606.03928 (range_sink_sample_attn of the release)",
      .tier = 2,
      .memory = "B tokens and up to `buffer` more, and the last `recent` queries of the group",
      .deviation =
          "the number of wide values is a share of what is chosen (the release: 200). The prompt is cut too. The draw "
          "has the release's law (torch.multinomial) in another form.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks{
      "read_prompt evict observe_queries extra_bytes layout needs traits protection rng_arrays state rng"};
  int32_t recent = 64, sinks = 4, kernel = 1;
  double large_frac = 0.25;
  int32_t room = 0;
  QueryRing ring;
  std::span<double> state;  // the ring, then [3, room]: widths, attention, one row
  Rng rng;

  VaSe() { buffer = 64; }
  static void declare(auto& d) {
    declare_buffer<VaSe>(d);
    d.integer("recent", &VaSe::recent, {1, kManyTokens}, "newest tokens, which stay and whose queries vote");
    d.real("large_frac", &VaSe::large_frac, {0, 1}, "share of the chosen tokens that have the widest values");
    d.integer("sinks", &VaSe::sinks, {0, kManyTokens}, "first tokens, which count as infinitely wide");
    d.integer("kernel", &VaSe::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
  }
  void resolve(const MethodContext& context) {
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
    Buffered::resolve(context, {.recent = recent});
    room = int32_t(most_rows(context));
    ring.window = recent, ring.heads = context.shape.heads, ring.dim = context.shape.dim;
  }
  void traits(Traits& t) const {
    Buffered::traits(t);
    t.random = true;
  }
  Protect protection() const { return {.recent = recent}; }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = QueryRing::doubles(recent, context.shape) + 3 * int64_t(room)};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    c.sketch_floats = QueryRing::doubles(recent, cache.shape());
  }
  std::vector<RngArray> rng_arrays(const MethodContext& context) const {
    return {{"u uniforms", RngStream::weighted_cuts, plan.count(context.tokens), context.tokens}};
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>&) {
    ring.read(team, prompt, state);
  }
  template <class Real>
  void observe_queries(const Team auto& team, const StepQueries<Real>& queries) {
    ring.observe(team, queries, state);
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t rows = cache.size(), first = plan.options.keep_prompt ? held_sinks(cache, plan.prompt) : 0;
    const int32_t n = rows - first - recent;
    if (n <= 0 || !is_due(plan, cache)) return;
    const int32_t chosen = plan.target(cache.token(rows - 1) + 1) - recent;
    if (n <= chosen && !plan.options.pages.whole()) return;
    const std::span<double> width = column(0).first(size_t(n)), draw = column(1).first(size_t(n));
    team.each(n, [&](int32_t i) { width[size_t(i)] = width_of(cache, first + i); });
    find_attention(team, cache, first, draw);
    const int32_t number = plan.number(cache.token(rows - 1));
    team.each(n, [&](int32_t i) {
      const double u = rng.uniform(RngStream::weighted_cuts, cache.token(first + i), 0, number);
      draw[size_t(i)] = std::log(u > 0x1p-53 ? u : 0x1p-53) / draw[size_t(i)];  // higher stays
    });
    choose_top(
        team, n, int32_t(large_frac * chosen + 1e-9), [&](int32_t i) { return width[size_t(i)]; },
        [&](int32_t i, bool yes) {
          if (yes) draw[size_t(i)] = double(INFINITY);
        });
    cut(
        team, cache, plan, [&](int32_t) { return protection(); },
        [&](int32_t i) { return i < first || i >= first + n ? double(INFINITY) : draw[size_t(i - first)]; });
  }

 private:
  std::span<double> column(int32_t which) const {
    return state.last(3 * size_t(room)).subspan(size_t(which) * size_t(room), size_t(room));
  }
  double width_of(const auto& cache, int32_t row) const {
    if (cache.token(row) < sinks) return double(INFINITY);
    const auto v = cache.value(row);
    double low = double(v[0]), high = low;
    for (const auto x : v) low = double(x) < low ? double(x) : low, high = double(x) > high ? double(x) : high;
    return high - low;
  }
  // Step 3, of the candidates first .. first + a.size() - 1.
  void find_attention(const Team auto& team, const auto& cache, int32_t first, std::span<double> a) const {
    const int32_t n = int32_t(a.size()), rows = ring.rows();
    const std::span<double> sum = column(2).first(a.size());
    team.each(n, [&](int32_t i) { sum[size_t(i)] = 0; });
    for (int32_t row = 0; row < rows; ++row)
      for (int32_t h = 0; h < ring.heads; ++h) {
        team.each(n, [&](int32_t i) { a[size_t(i)] = ring.logit(row, h, cache.key(first + i)); });
        softmax(team, a);
        team.each(n, [&](int32_t i) { sum[size_t(i)] += a[size_t(i)] / (double(rows) * ring.heads); });
      }
    team.each(n, [&](int32_t i) {
      double near = 0;
      for (int32_t j = i - kernel / 2; j <= i + kernel / 2; ++j) near += j >= 0 && j < n ? sum[size_t(j)] : 0;
      a[size_t(i)] = near / kernel;
    });
  }
};

}  // namespace kvreplay
