#pragma once
#include "methods/parts/key_clusters.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// RetroInfer, Chen et al. 2025, section 4: the nearest clusters of keys are read, the next ones are estimated.
//  1. End of the prompt, on the M tokens between `sinks` and its last `recent`: keys minus their mean form C = max(1,
//     floor(M / cluster_size)) clusters by inner product, from the keys floor((i + 1/2) M / C). In each of `iterations`
//     rounds every key joins its nearest centroid, which becomes the mean of its keys, scaled to length 1 but in the
//     last round.
//  2. Per cluster: centroid plus mean key, sum of its values, size.
//  3. Step: softmax of l_c = scale <q, centroid> over the clusters per head, summed over the group; empty clusters go
//     last. The first max(1, round(C retrieval)) are read exactly. Each of the next round(C estimation) counts as
//     exp(l_c) (sum of values) in the numerator and size exp(l_c) in the denominator.
//  4. Sinks, the last `recent` of the prompt and all later tokens are read exactly; all other clusters are left out.
// A cluster is estimated by its tokens, unread, each with the logit l_c.
struct RetroInfer {
  static constexpr MethodInfo info{
      .name = "retroinfer",
      .title = "clusters of keys, the nearest read and the next estimated",
      .source = "RetroInfer, Chen et al. 2025, section 4",
      .tier = 3,
      .memory = "the full cache, and centroid, sum of values and tokens of each cluster; the rows read are an output",
      .deviation =
          "one segment and any number of clusters, where the release cuts into segments of 8192 tokens and multiples "
          "of 8 clusters; later tokens form no clusters.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .only_level = GqaLevel::kv,
      .takes_budget = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt choose token_score extra_bytes report layout needs state"};
  int32_t sinks = 4, recent = 64, cluster_size = 16, iterations = 10;
  double retrieval = 0.018, estimation = 0.232;
  LayerSet dense_layers{};
  int32_t tokens = 0, dim = 0;
  int32_t first = 0, middle = 0;  // first token and number of tokens with a cluster
  int32_t clusters = 0;
  bool dense = false;
  std::span<double> state;  // Work

  static void declare(auto& d) {
    d.integer("sinks", &RetroInfer::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("recent", &RetroInfer::recent, {1, kManyTokens}, "last tokens of the prompt that are always read");
    d.integer("cluster_size", &RetroInfer::cluster_size, {1, kManyTokens}, "tokens per cluster, on average");
    d.real("retrieval", &RetroInfer::retrieval, {0, 1}, "share of the clusters that is read");
    d.real("estimation", &RetroInfer::estimation, {0, 1}, "share of the clusters that is estimated");
    d.integer("iterations", &RetroInfer::iterations, {1, 1000}, "rounds of k-means");
    d.layers("dense_layers", &RetroInfer::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    tokens = context.tokens, dim = context.shape.dim;
    const int32_t between = context.prompt_tokens - sinks - recent;
    dense = dense_layers.has(context.layer) || between <= 0;
    clusters = dense ? 0 : between / cluster_size > 1 ? between / cluster_size : 1;
  }
  Layout layout(const MethodContext& context) const {
    if (dense) return {};
    return {.state_doubles = int64_t(clusters) * (dim + 3 + context.shape.heads) + dim + tokens};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = !dense}; }
  // A step reads the centroids, and sum and size of each estimated cluster.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    const int64_t C = clusters, values = cache.shape().v_dim;
    c.sketch_floats = C * (dim + values), c.sketch_floats_read = C * dim + estimated() * values;
    c.aux_bytes = 4 * (C + middle), c.aux_bytes_read = int64_t(4) * estimated();
  }
  void report(auto& extras, const auto&) const { extras["clusters"] = clusters; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    if (dense) return;
    const int32_t row = held_sinks(cache, sinks), n = cache.size() - row - recent;
    first = cache.token(row), middle = n > 0 ? n : 0;
    if (middle == 0) return clusters = 0, void();
    const Work w = work(1);
    weighted_sum(
        n, [&](int32_t) { return 1.0 / n; }, [&](int32_t i) { return cache.key(row + i); }, w.mean);
    const auto key = [&](int32_t i, int32_t c) { return double(cache.key(row + i)[size_t(c)]) - w.mean[size_t(c)]; };
    w.found.start(team, key, [&](int32_t c) { return int32_t((2 * int64_t(c) + 1) * n / (2 * int64_t(clusters))); });
    for (int32_t round = 0; round < iterations; ++round) {
      w.found.assign(
          team, n, key, [](int32_t) { return 1.0; }, w.labels);
      w.found.update(team, n, key, w.labels);
      if (round + 1 < iterations) normalise(team, w.found);
    }
    team.each(clusters * dim, [&](int32_t i) { w.found.centroids[size_t(i)] += w.mean[size_t(i % dim)]; });
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen,
              double* weights) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    reads.put_run(team, 0, reads.rows, kRead);
    team.each(reads.rows * reads.heads, [&](int32_t i) { weights[i] = 1; });
    if (clusters == 0) return;
    const Work w = work(queries.heads);
    rank_clusters(team, queries, w);
    const int32_t oldest = cache.token(0), gone = oldest > first ? oldest - first : 0;  // a window evicts tokens
    if (gone >= middle) return;
    team.each(middle - gone, [&](int32_t i) {
      const int32_t c = w.labels[size_t(gone + i)], row = first + gone + i - oldest;
      const uint8_t how = uint8_t(w.uses[size_t(c)]);
      reads.put(row, how);
      for (int32_t h = 0; h < queries.heads && how == kEstimated; ++h)
        weights[int64_t(h) * reads.rows + row] = w.logits[size_t(h) * size_t(clusters) + size_t(c)];
    });
  }
  double token_score(const auto& cache, int32_t row) const {
    const int32_t i = cache.token(row) - first;
    if (clusters == 0 || i < 0 || i >= middle) return INFINITY;
    const Work w = work(1);
    return w.scores[size_t(w.labels[size_t(i)])];
  }

 private:
  struct Work {
    KeyClusters found;
    std::span<double> mean, logits, scores;  // [dim], [heads, clusters], [clusters]
    std::span<int32_t> uses, labels;         // [clusters] how a cluster is used, [middle] cluster of each token
  };
  Work work(int32_t heads) const {
    Carver cut{state.data()};
    const int64_t C = clusters;
    const std::span<double> centroids = cut(C * dim), mean = cut(dim), scores = cut(C);
    const std::span<int32_t> sizes = cut.numbers<int32_t>(C), uses = cut.numbers<int32_t>(C),
                             labels = cut.numbers<int32_t>(tokens);
    return {{centroids, sizes, clusters, dim}, mean, cut(C * heads), scores, uses, labels.first(size_t(middle))};
  }
  int32_t exact() const {
    const int32_t count = int32_t(std::nearbyint(clusters * retrieval));
    return count > 1 ? count : clusters < 1 ? clusters : 1;
  }
  int32_t estimated() const {
    const int32_t count = int32_t(std::nearbyint(clusters * estimation)), left = clusters - exact();
    return count < left ? count : left;
  }
  void normalise(const Team auto& team, const KeyClusters& found) const {
    team.each(found.count, [&](int32_t c) {
      const double length = found.sizes[size_t(c)] > 0 ? norm(found.centroid(c)) : 0;
      for (double& x : found.centroid(c)) x /= length > 0 ? length : 1;
    });
  }
  // Step 3: which clusters are read, and which are estimated.
  template <class Real>
  void rank_clusters(const Team auto& team, const StepQueries<Real>& queries, const Work& w) const {
    team.each(clusters, [&](int32_t c) { w.scores[size_t(c)] = w.found.sizes[size_t(c)] > 0 ? 0 : -1; });
    for (int32_t h = 0; h < queries.heads; ++h) {
      const std::span<double> own = w.logits.subspan(size_t(h) * size_t(clusters), size_t(clusters));
      team.each(clusters,
                [&](int32_t c) { own[size_t(c)] = queries.scale * wide_dot(queries(h), w.found.centroid(c)); });
      const double top = team.largest(clusters, [&](int32_t c) { return own[size_t(c)]; }).score;
      const double total = team.sum(clusters, [&](int32_t c) { return std::exp(own[size_t(c)] - top); });
      team.each(clusters, [&](int32_t c) {
        if (w.found.sizes[size_t(c)] > 0) w.scores[size_t(c)] += std::exp(own[size_t(c)] - top) / total;
      });
    }
    const auto score = [&](int32_t c) { return w.scores[size_t(c)]; };
    choose_top(team, clusters, exact() + estimated(), score,
               [&](int32_t c, bool yes) { w.uses[size_t(c)] = yes ? kEstimated : kUnread; });
    choose_top(team, clusters, exact(), score, [&](int32_t c, bool yes) {
      if (yes) w.uses[size_t(c)] = kRead;
    });
  }
};

}  // namespace kvreplay
