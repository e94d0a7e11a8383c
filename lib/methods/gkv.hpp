#pragma once
#include "methods/parts/query_ring.hpp"
#include "methods/rkv.hpp"

namespace kvreplay {

// G-KV, 2025: the votes of the newest queries, joined at each cut with those of earlier cuts. m of L live keys stay:
//  1. Attention of the last w queries over all L tokens: largest of the group, mean over the rows. f = that of the L-w
//     older tokens, divided by its maximum.
//  2. With the score s that a token carries: f <- max(alpha s, f)  (mean: alpha s + (1-alpha) f;  sum: alpha s + f).
//  3. z = f, max pool of `kernel`.  4. redundancy x: z <- x z - (1-x) R / max R, with R of R-KV over all L keys.
//  5. Keep the window and the top m-w by z. Kept tokens outside the window carry f, not pooled. A cut point at which
//     nothing leaves changes no score.
struct Gkv : Buffered {
  static constexpr MethodInfo info{
      .name = "gkv",
      .title = "votes that outlast a cut, cut once per buffer",
      .source = "G-KV, arXiv 2512.00504 (score_based.py of the release)",
      .tier = 2,
      .memory = "B tokens and up to `buffer` more, one score each, and the last `window` queries of the group",
      .deviation =
          "redundancy is R-KV's (the release's kernel works in blocks and spares the last similar key of each). Cuts "
          "come at the end of the prompt and `buffer` steps apart.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict observe_queries extra_bytes layout needs traits protection state"};
  enum class Smooth { max, mean, sum };
  int32_t window = 8, kernel = 1;
  double alpha = 0.8, redundancy = kUnset;
  Smooth smooth = Smooth::max;
  int32_t room = 0;
  int32_t carried = 0;  // tokens before this one carry a score
  QueryRing ring;
  std::span<double> state;  // the ring, [dim], columns of [room] numbers

  static void declare(auto& d) {
    d.integer("window", &Gkv::window, {1, kManyTokens}, "newest tokens, whose queries vote and which stay");
    declare_buffer<Gkv>(d);
    d.real("alpha", &Gkv::alpha, {0, 1}, "weight of the score that a token carries");
    d.choice("smooth", &Gkv::smooth, {"max", "mean", "sum"}, "how it is joined with the new votes");
    d.integer("kernel", &Gkv::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
    d.real("redundancy", &Gkv::redundancy, {1e-12, 1}, "weight of the votes; redundancy gets the rest", "off");
  }
  void resolve(const MethodContext& context) {
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
    Buffered::resolve(context, {.recent = window});
    room = int32_t(most_rows(context));
    ring.window = window, ring.heads = context.shape.heads, ring.dim = context.shape.dim;
  }
  Protect protection() const { return {.recent = window}; }
  Layout layout(const MethodContext& context) const {
    const int64_t columns = int64_t(kColumns) * room;
    return {.state_doubles = QueryRing::doubles(window, context.shape) + context.shape.dim + columns, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    c.sketch_floats = QueryRing::doubles(window, cache.shape()), c.mark_bytes = 8 * int64_t(cache.size());
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
    const int32_t rows = cache.size(), older = rows - window;
    if (older <= 0 || !is_due(plan, cache) || !exceeds(plan, cache)) return;
    const std::span<double> f = column(kVotes).first(size_t(older)), z = column(kRank).first(size_t(older));
    find_votes(team, cache, f);
    team.each(older, [&](int32_t i) {
      const double old = alpha * cache.score(i);
      double& x = f[size_t(i)];
      if (cache.token(i) < carried)
        x = smooth == Smooth::sum ? old + x : smooth == Smooth::mean ? old + (1 - alpha) * x : old > x ? old : x;
    });
    team.each(older, [&](int32_t i) { z[size_t(i)] = largest_near(f.data(), i, older, kernel); });
    if (redundancy != kUnset) subtract_redundancy(team, cache, z);
    team.each(older, [&](int32_t i) { cache.score(i) = f[size_t(i)]; });
    carried = cache.token(older);
    cut(
        team, cache, plan, [&](int32_t) { return protection(); },
        [&](int32_t i) { return i < older ? z[size_t(i)] : double(INFINITY); });
  }

 private:
  enum Column { kVotes, kRank, kRow, kLargest, kFound, kRepeats, kColumns };
  std::span<double> column(int32_t which) const {
    return state.last(size_t(kColumns) * size_t(room)).subspan(size_t(which) * size_t(room), size_t(room));
  }
  // Step 1.
  void find_votes(const Team auto& team, const auto& cache, std::span<double> f) const {
    const int32_t rows = cache.size(), voters = ring.rows(), older = int32_t(f.size());
    const std::span<double> largest = column(kLargest);
    team.each(older, [&](int32_t i) { f[size_t(i)] = 0; });
    for (int32_t v = 0; v < voters; ++v) {
      // Rows up to the voter's own token, which another method may have left out.
      const int32_t seen = rows_until(cache, ring.token(v, cache.token(rows - 1)));
      if (seen == 0) continue;
      const std::span<double> p = column(kRow).first(size_t(seen));
      for (int32_t h = 0; h < ring.heads; ++h) {
        team.each(seen, [&](int32_t i) { p[size_t(i)] = ring.logit(v, h, cache.key(i)); });
        softmax(team, p);
        team.each(older, [&](int32_t i) {
          const double x = i < seen ? p[size_t(i)] : 0;
          double& most = largest[size_t(i)];
          most = h == 0 || x > most ? x : most;
        });
      }
      team.each(older, [&](int32_t i) { f[size_t(i)] += largest[size_t(i)] / voters; });
    }
    const double top = team.largest(older, [&](int32_t i) { return f[size_t(i)]; }).score;
    if (top > 0) team.each(older, [&](int32_t i) { f[size_t(i)] /= top; });
  }
  // Step 4.
  void subtract_redundancy(const Team auto& team, const auto& cache, std::span<double> z) const {
    const size_t rows = size_t(cache.size()), dim = size_t(ring.dim);
    const std::span<double> found = column(kFound).first(rows);
    const std::span<double> all = state.subspan(state.size() - size_t(kColumns) * size_t(room) - dim, dim);
    Redundancy{all, column(kRow), column(kRepeats), column(kLargest)}.find(team, cache, 0.5, Retain::last, found);
    const double top = team.largest(int32_t(z.size()), [&](int32_t i) { return found[size_t(i)]; }).score;
    team.each(int32_t(z.size()),
              [&](int32_t i) { z[size_t(i)] = redundancy * z[size_t(i)] - (1 - redundancy) * found[size_t(i)] / top; });
  }
};

}  // namespace kvreplay
