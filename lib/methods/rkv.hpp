#pragma once
#include "core/vectors.hpp"
#include "methods/parts/buffered.hpp"
#include "methods/parts/query_ring.hpp"

namespace kvreplay {

// Which of the keys similar to a key is not counted towards its redundancy.
enum class Retain { last, first, none };

// Steps 2 to 4 of R-KV (methods/rkv.hpp), with room for n rows.
struct Redundancy {
  std::span<double> all;                       // [dim] sum of directions
  std::span<double> length, repeats, removed;  // [n]

  // found [n]: softmax over the columns of S of their means. The sum over a column is one product with `all`.
  void find(const Team auto& team, const auto& cache, double threshold, Retain retain, std::span<double> found) const {
    const int32_t n = cache.size(), dim = cache.shape().dim;
    team.each(n, [&](int32_t i) { length[size_t(i)] = 1 / (norm(cache.key(i)) + 1e-8); });
    team.each(dim, [&](int32_t c) {
      double sum = 0;
      for (int32_t i = 0; i < n; ++i) sum += length[size_t(i)] * double(cache.key(i)[size_t(c)]);
      all[size_t(c)] = sum;
    });
    const auto cosine = [&](int32_t i, int32_t j) {
      return i == j ? 0.0 : wide_dot(cache.key(i), cache.key(j)) * length[size_t(i)] * length[size_t(j)];
    };
    // The entry of row i that is set to 0. `first` is the smallest index when keys that are not similar count as index
    // 0, as in the release: it is always token 0.
    const auto repeated = [&](int32_t i) {
      for (int32_t j = n - 1; j > 0 && retain == Retain::last; --j)
        if (cosine(i, j) > threshold) return j;
      return retain == Retain::none ? i : 0;
    };
    team.each(n, [&](int32_t i) {
      const int32_t j = repeated(i);
      repeats[size_t(i)] = j, removed[size_t(i)] = cosine(i, j);
    });
    team.each(n, [&](int32_t j) {
      const double of_itself = wide_dot(cache.key(j), cache.key(j)) * length[size_t(j)];
      double sum = (wide_dot(all, cache.key(j)) - of_itself) * length[size_t(j)];
      for (int32_t i = 0; i < n; ++i) sum -= repeats[size_t(i)] == j ? removed[size_t(i)] : 0;
      found[size_t(j)] = sum / n;
    });
    softmax(team, found);
  }
};

// R-KV, Cai et al. 2025 (redundancy-aware compression for reasoning): keeps tokens that the newest queries attend to
// and that no later token repeats. m of L live keys stay:
//  1. I = attention of the last w queries to the L-w older keys: the largest logit of the group, softmax over these
//     keys alone, mean over the w rows, max pool.  (agg sum: a softmax per query head, mean over the heads.)
//  2. S = cosines of all pairs of the L keys, with a zero diagonal.
//  3. In row i the entry of the newest key with S_ij > threshold is set to 0 (the entry of token 0 if there is none).
//     The newest of several similar tokens therefore does not count as redundant.
//  4. R = softmax over all L of the column means of S.
//  5. Keep the top m-w by lambda I - (1-lambda) R, and the w newest.
// R is a softmax over numbers in [-1, 1], hence nearly 1/L everywhere: I decides almost everything.
struct Rkv : Buffered {
  static constexpr MethodInfo info{
      .name = "rkv",
      .title = "importance minus redundancy, cut once per buffer",
      .source = "R-KV, Cai et al. 2025, section 3 (as r1_kv.py of the release runs it)",
      .tier = 2,
      .memory = "B tokens and up to `buffer` more, and the last `window` queries of the group",
      .deviation =
          "cuts when the buffer is full, as on the project page (the release: when the length is a multiple of 128, "
          "one step late); lambda is that of later comparisons (0.07 in the release's class).",
      .any_positions = false,
      .layer_level = false,
      .selects = true,
  };
  static constexpr Hooks hooks{"read_prompt evict observe_queries extra_bytes layout needs traits state"};
  enum class Votes { max, sum };
  int32_t window = 8, kernel = 7;
  double lambda = 0.1, threshold = 0.5;
  Retain retain = Retain::last;
  Votes agg = Votes::max;
  int32_t room = 0;  // length of each column below
  QueryRing ring;
  std::span<double> state;  // the ring, [dim] sum of directions, columns of [room] numbers

  static void declare(auto& d) {
    d.integer("window", &Rkv::window, {1, kManyTokens}, "newest tokens, whose queries vote and which stay");
    declare_buffer<Rkv>(d);
    d.real("lambda", &Rkv::lambda, {0, 1}, "weight of the importance; the redundancy gets the rest");
    d.integer("kernel", &Rkv::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
    d.real("threshold", &Rkv::threshold, {-1, 1}, "cosine above which a key repeats another");
    d.choice("retain", &Rkv::retain, {"last", "first", "none"}, "which of the keys similar to a key is not counted");
    d.choice("agg", &Rkv::agg, {"max", "sum"}, "the group's largest logit, or the mean of its probabilities");
  }
  void resolve(const MethodContext& context) {
    Buffered::resolve(context, {.recent = window});
    room = int32_t(most_rows(context));
    ring.window = window, ring.heads = context.shape.heads, ring.dim = context.shape.dim;
    if (kernel % 2 == 0) throw even_kernel_error(kernel);
  }
  Layout layout(const MethodContext& context) const {
    const int64_t columns = int64_t(kColumns) * room;
    return {.state_doubles = QueryRing::doubles(window, context.shape) + context.shape.dim + columns, .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.queries = true}; }
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    c.sketch_floats = QueryRing::doubles(window, cache.shape());
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
    const int32_t rows = cache.size();
    if (rows <= window || !is_due(plan, cache)) return;
    find_importance(team, cache);
    const int32_t older = cache.size() - window;
    const std::span<double> importance = column(kImportance), redundancy = column(kRedundancy);
    const size_t all_at = state.size() - size_t(kColumns) * size_t(room) - size_t(cache.shape().dim);
    Redundancy{state.subspan(all_at, size_t(cache.shape().dim)), column(kLength), column(kRepeats), column(kRow)}.find(
        team, cache, threshold, retain, redundancy.first(size_t(cache.size())));
    team.each(older, [&](int32_t j) {
      cache.score(j) =
          lambda * largest_near(importance.data(), j, older, kernel) - (1 - lambda) * redundancy[size_t(j)];
    });
    cut(
        team, cache, plan, [&](int32_t) { return Protect{.recent = window}; },
        [&](int32_t i) { return cache.score(i); });
  }

 private:
  enum Column { kImportance, kRow, kLength, kRedundancy, kRepeats, kColumns };

  std::span<double> column(int32_t which) const {
    return state.last(size_t(kColumns) * size_t(room)).subspan(size_t(which) * size_t(room), size_t(room));
  }
  // Step 1 without the pooling.
  void find_importance(const Team auto& team, const auto& cache) const {
    const HeadShape shape = cache.shape();
    const int32_t older = cache.size() - window, rows = ring.rows();
    const std::span<double> importance = column(kImportance), x = column(kRow).first(size_t(older));
    team.each(older, [&](int32_t j) { importance[size_t(j)] = 0; });
    const auto vote = [&](double share) {
      softmax(team, x);
      team.each(older, [&](int32_t j) { importance[size_t(j)] += share * x[size_t(j)]; });
    };
    const auto logit = [&](int32_t row, int32_t h, int32_t j) { return ring.logit(row, h, cache.key(j)); };
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t h = 0; h < shape.heads && agg == Votes::sum; ++h) {
        team.each(older, [&](int32_t j) { x[size_t(j)] = logit(row, h, j); });
        vote(1.0 / (rows * shape.heads));
      }
      if (agg == Votes::sum) continue;
      team.each(older, [&](int32_t j) {
        double most = logit(row, 0, j);
        for (int32_t h = 1; h < shape.heads; ++h) {
          const double l = logit(row, h, j);
          most = l > most ? l : most;
        }
        x[size_t(j)] = most;
      });
      vote(1.0 / rows);
    }
  }
};

}  // namespace kvreplay
