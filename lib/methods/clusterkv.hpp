#pragma once
#include "methods/parts/key_clusters.hpp"
#include "methods/parts/read_sets.hpp"

namespace kvreplay {

// ClusterKV, Liu et al. 2024, sections III and IV: whole clusters of similar keys are read.
//  1. End of the prompt: the keys behind the first `sinks` form `clusters` clusters by cosine. Centroids start at keys
//     at equal distances; `iterations` times each key joins its nearest centroid, which becomes the mean of its keys.
//     Then the keys join once more.
//  2. Step: clusters by <q, centroid>, summed over the heads that read together, the largest first. Read their tokens,
//     ascending in each cluster, until B - sinks are taken (the last cluster is cut), and the sinks.
//  3. Tokens behind the prompt are read beside B until `update` of them precede the new one; these then form
//     `update_clusters` clusters of their own.
struct ClusterKv {
  static constexpr MethodInfo info{
      .name = "clusterkv",
      .title = "clusters of similar keys",
      .source = "ClusterKV, Liu et al. 2024, sections III and IV",
      .tier = 3,
      .memory = "the full cache, the centroids, and the cluster of each token; the budget bounds what is read",
      .deviation =
          "centroids start at keys at equal distances, not at random; numbers of clusters are those of the text "
          "(P/80, 4 for 320 later tokens), where the release's script has 400 and reads all later tokens.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{
      "read_prompt append choose token_score extra_bytes layout needs traits set_options state"};
  static constexpr double kLeastNorm = 1e-8;  // added to norms
  int32_t sinks = 16, clusters = kDerived, iterations = 20, update = 320, update_clusters = 4;
  LayerSet dense_layers{};
  int32_t budget = 0, tokens = 0, prompt = 0, dim = 0;
  int32_t formed = 0;                  // clusters so far
  int32_t first = 0, unclustered = 0;  // the first token with a cluster, and the first behind those
  bool dense = false;
  std::span<double> state;  // Work

  static void declare(auto& d) {
    d.integer("sinks", &ClusterKv::sinks, {0, kManyTokens}, "first tokens that are always read");
    d.integer("clusters", &ClusterKv::clusters, {1, kManyTokens}, "clusters of the prompt's tokens",
              "(P - sinks) / 80, at least 1");
    d.integer("iterations", &ClusterKv::iterations, {0, 1000}, "rounds of k-means");
    d.integer("update", &ClusterKv::update, {1, kManyTokens}, "tokens behind the prompt that form clusters together");
    d.integer("update_clusters", &ClusterKv::update_clusters, {1, kManyTokens}, "clusters that these tokens form");
    d.layers("dense_layers", &ClusterKv::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens;
    prompt = context.prompt_tokens, dim = context.shape.dim;
    dense = dense_layers.has(context.layer);
    if (sinks > budget) throw protection_error(sinks, 0, budget);
    const int32_t derived = (prompt - sinks) / kTokensPerCluster;
    if (clusters == kDerived) clusters = derived > 1 ? derived : 1;
  }
  static void set_options(const ClusterKv&, CommonOptions& options) { options.gqa_level = GqaLevel::query; }
  Layout layout(const MethodContext&) const {
    if (dense) return {};
    return {.state_doubles = int64_t(most_clusters()) * (dim + 4) + tokens};
  }
  PromptNeeds needs(const MethodContext&) const { return {.whole = !dense}; }
  void traits(Traits& t) const {
    const int64_t most = int64_t(budget) + update;
    t.max_rows_read = dense || most > tokens ? tokens : int32_t(most);
  }
  // A step reads the centroids.
  void extra_bytes(ExtraBytes& c, const auto& cache) const {
    if (dense || cache.size() == 0) return;
    const int32_t oldest = cache.token(0) > first ? cache.token(0) : first;  // a window evicts tokens
    c.sketch_floats = int64_t(formed) * dim;
    c.aux_bytes = unclustered > oldest ? int64_t(4) * (unclustered - oldest) : 0, c.aux_bytes_read = 0;
  }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>&, BasicCache<Real>& cache) {
    if (dense) return;
    const int32_t end = cache.token(0) + cache.size();
    first = unclustered = sinks > cache.token(0) ? sinks : cache.token(0);
    if (end > first) form(team, cache, clusters, end - first);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    while (!dense && token.index - unclustered >= update) form(team, cache, update_clusters, update);
    cache.push(token);
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    reads.put_run(team, 0, reads.rows, kRead);
    if (dense) return;
    const int32_t oldest = cache.token(0), begin = first > oldest ? first - oldest : 0;
    const int32_t n = unclustered - oldest - begin, count = budget - held_sinks(cache, sinks);
    const Work w = work();
    score_clusters(team, queries, w);
    if (n <= count) return;
    const std::span<const int32_t> labels = w.labels.subspan(size_t(oldest + begin));
    take_clusters(team, w, labels.first(size_t(n)), count);
    for (int32_t i = 0; i < n; ++i) {  // in order, because the last cluster is cut
      int32_t& left = w.taken[size_t(labels[size_t(i)])];
      reads.put(begin + i, left > 0 ? kRead : kUnread);
      if (left > 0) --left;
    }
  }
  double token_score(const auto& cache, int32_t row) const {
    const int32_t token = cache.token(row);
    if (dense || token < first || token >= unclustered) return INFINITY;
    const Work w = work();
    return w.scores[size_t(w.labels[size_t(token)])];
  }

 private:
  static constexpr int32_t kTokensPerCluster = 80;
  struct Work {
    std::span<double> centroids, scores;      // [most clusters, dim], [most clusters]
    std::span<double> waiting;                // [most clusters] scores of those that a step has not taken yet
    std::span<int32_t> sizes, taken, labels;  // [most clusters], likewise, [tokens] cluster of each token
  };
  int32_t most_clusters() const { return clusters + (tokens - prompt) / update * update_clusters; }
  Work work() const {
    Carver cut{state.data()};
    const int64_t most = most_clusters();
    const std::span<double> centroids = cut(most * dim), scores = cut(most), waiting = cut(most);
    return {centroids,
            scores,
            waiting,
            cut.numbers<int32_t>(most),
            cut.numbers<int32_t>(most),
            cut.numbers<int32_t>(tokens)};
  }
  // The next n tokens have no cluster. Those that a window has not evicted form `count` clusters.
  template <class Real>
  void form(const Team auto& team, const BasicCache<Real>& cache, int32_t count, int32_t n) {
    const Work w = work();
    const int32_t end = unclustered + n;
    unclustered = cache.token(0) > unclustered ? cache.token(0) : unclustered;
    if (end <= unclustered) return unclustered = end, void();
    n = end - unclustered;
    const int32_t row = unclustered - cache.token(0);
    const KeyClusters found{w.centroids.subspan(size_t(formed) * size_t(dim)), w.sizes.subspan(size_t(formed)), count,
                            dim};
    const std::span<int32_t> labels = w.labels.subspan(size_t(unclustered), size_t(n));
    const auto key = [&](int32_t i, int32_t c) { return double(cache.key(row + i)[size_t(c)]); };
    const auto assign = [&] {
      team.each(count, [&](int32_t c) { w.waiting[size_t(c)] = 1 / (norm(found.centroid(c)) + kLeastNorm); });
      found.assign(
          team, n, key, [&](int32_t c) { return w.waiting[size_t(c)]; }, labels);
    };
    found.start(team, key, [&](int32_t c) { return int32_t(int64_t(c) * n / count); });
    for (int32_t round = 0; round < iterations; ++round) assign(), found.update(team, n, key, labels);
    assign();
    team.each(n, [&](int32_t i) { labels[size_t(i)] += formed; });
    formed += count, unclustered = end;
  }
  template <class Real>
  void score_clusters(const Team auto& team, const StepQueries<Real>& queries, const Work& w) const {
    team.each(formed, [&](int32_t c) {
      const std::span<double> centroid = w.centroids.subspan(size_t(c) * size_t(dim), size_t(dim));
      double sum = 0;
      for (int32_t h = 0; h < queries.heads; ++h) sum += wide_dot(queries(h), centroid);
      w.scores[size_t(c)] = w.waiting[size_t(c)] = sum;
    });
  }
  // How many tokens of each cluster are taken, `count` in all. labels: the clusters of the tokens.
  void take_clusters(const Team auto& team, const Work& w, std::span<const int32_t> labels, int32_t count) const {
    team.each(formed, [&](int32_t c) { w.sizes[size_t(c)] = w.taken[size_t(c)] = 0; });
    for (const int32_t c : labels) ++w.sizes[size_t(c)];
    while (count > 0) {
      const int32_t c = team.largest(formed, [&](int32_t i) { return w.waiting[size_t(i)]; }).index;
      const int32_t size = w.sizes[size_t(c)], part = size < count ? size : count;
      w.taken[size_t(c)] = part, w.waiting[size_t(c)] = -INFINITY;
      count -= part;
    }
  }
};

}  // namespace kvreplay
