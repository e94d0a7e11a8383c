#pragma once
#include "core/linear.hpp"
#include "methods/parts/read_sets.hpp"
#include "methods/shadowkv/low_rank_keys.hpp"

namespace kvreplay {

// ShadowKV, Sun et al. 2024, section 4 and Algorithms 1 and 2: chunks of the prompt are found by their mean keys, and
// read with keys of low rank.
//  1. End of the prompt: its full chunks of `chunk` tokens but the last `local` are far; its other tokens are always
//     read.
//  2. Landmark of a far chunk = its mean key. The `outliers` chunks with the smallest cosine of landmark and any of
//     their keys are always read, too.
//  3. The layer's keys before rotation, all kv heads side by side, as their best approximation of rank `rank`: a far
//     key is read as this row, rotated by its position.
//  4. Step: softmax of scale <q, landmark> over the other far chunks per head, the maximum over the group; the top
//     floor(B / chunk) are read.
//  5. Attention over them, with keys of low rank and exact values, over what is always read, and over all later tokens.
// A key of low rank is a weight exp(its logit - the recorded key's logit) on the token.
struct ShadowKv {
  static constexpr MethodInfo info{
      .name = "shadowkv",
      .title = "chunks by their mean keys, read with keys of low rank",
      .source = "ShadowKV, Sun et al. 2024, section 4",
      .tier = 3,
      .memory = "the full cache, landmarks, and keys of low rank; the budget bounds the tokens of selected chunks",
      .deviation =
          "logits of landmarks have the layer's scale, where the release has that of 128 channels. The keys of low "
          "rank are those of the recorded keys, whatever the row format.",
      .oneshots = false,
      .any_positions = false,
      .layer_level = false,
      .only_level = GqaLevel::kv,
      .implied_layout = true,
      .reads_full_cache = true,
      .needs_linear_logits = true,
  };
  static constexpr Hooks hooks{"read_prompt choose token_score extra_bytes report layout needs traits state"};
  int32_t chunk = 8, local = 4, outliers = kDerived, rank = kDerived;
  LayerSet dense_layers{};
  int32_t budget = 0, tokens = 0, prompt = 0, dim = 0, kv_heads = 1;
  int32_t landmarks = 0;  // far chunks that are not always read
  bool dense = false;
  std::span<double> state;  // Work

  static void declare(auto& d) {
    d.integer("chunk", &ShadowKv::chunk, {1, kManyTokens}, "tokens per chunk");
    d.integer("local", &ShadowKv::local, {0, kManyTokens}, "last full chunks of the prompt, always read");
    d.integer("outliers", &ShadowKv::outliers, {0, kManyTokens}, "chunks with unlike keys, always read", "24 B / 1024");
    d.integer("rank", &ShadowKv::rank, {0, kManyTokens}, "rank of the keys that are read; 0: exact keys",
              "5/32 of the channels of all kv heads");
    d.layers("dense_layers", &ShadowKv::dense_layers, "layers that read everything");
  }
  void resolve(const MethodContext& context) {
    budget = context.budget.tokens, tokens = context.tokens, prompt = context.prompt_tokens;
    dim = context.shape.dim, kv_heads = context.kv_heads;
    if (outliers == kDerived) outliers = int32_t(int64_t(24) * budget / 1024);
    const int32_t channels = kv_heads * dim;
    if (rank == kDerived) rank = 5 * channels / 32;
    if (channels > 0 && rank > channels)
      throw ParameterError("rank", "rank " + std::to_string(rank) + " exceeds the " + std::to_string(channels) +
                                       " channels of all kv heads' keys; lower it, or take 0 for exact keys");
    dense = dense_layers.has(context.layer) || far() == 0;
  }
  Layout layout(const MethodContext&) const {
    if (dense) return {};
    return {.state_doubles = int64_t(far()) * (dim + 4) + (rank > 0 ? int64_t(far()) * chunk * dim : 0)};
  }
  PromptNeeds needs(const MethodContext&) const {
    const bool low_rank = !dense && rank > 0;
    return {.whole = !dense, .rotary = low_rank, .layer_keys = low_rank};
  }
  void traits(Traits& t) const {
    const int64_t always = tokens - int64_t(far()) * chunk + int64_t(outliers) * chunk;
    t.max_rows_read = dense || always + budget > tokens ? tokens : int32_t(always + budget);
  }
  // A step reads the landmarks, and rank / kv heads numbers in place of a selected token's key.
  void extra_bytes(ExtraBytes& c, const auto&) const {
    if (dense) return;
    const int64_t of_landmarks = int64_t(landmarks) * dim, read = int64_t(selected()) * chunk;
    c.sketch_floats = of_landmarks + int64_t(rank) * dim;
    c.sketch_floats_read = of_landmarks - (rank > 0 ? read * dim : 0);
    c.layer_floats = int64_t(prompt) * rank, c.layer_floats_read = read * rank, c.layer_heads = kv_heads;
  }
  void report(auto& extras, const auto&) const { extras["landmarks"] = landmarks; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& p, BasicCache<Real>& cache) {
    if (dense) return;
    const Work w = work();
    const int32_t oldest = cache.token(0);
    team.each(far(), [&](int32_t f) { w.scores[size_t(f)] = -find_landmark(cache, f, oldest); });
    choose_top(
        team, far(), outliers, [&](int32_t f) { return w.scores[size_t(f)]; },
        [&](int32_t f, bool yes) { w.is_open[size_t(f)] = yes ? 0 : 1; });
    landmarks = team.count(far(), [&](int32_t f) { return w.is_open[size_t(f)] != 0; });
    if (rank == 0) return;
    LowRankKeys<Real> keys(team, p, rank);
    for (int32_t i = 0; i < far() * chunk; ++i)
      if (w.is_open[size_t(i / chunk)] != 0) keys.write(team, i, w.key(i, dim));
  }
  template <class Real>
  void choose(const Team auto& team, const BasicCache<Real>& cache, const StepQueries<Real>& queries, uint8_t* chosen,
              double* weights) {
    const GroupReads reads{chosen, queries.heads, cache.size()};
    reads.put_run(team, 0, reads.rows, kRead);
    team.each(reads.rows * reads.heads, [&](int32_t i) { weights[i] = 1; });
    if (dense || landmarks == 0) return;
    const Work w = work();
    score_chunks(team, queries, w);
    choose_top(
        team, far(), selected(), [&](int32_t f) { return w.scores[size_t(f)]; },
        [&](int32_t f, bool yes) { w.taken[size_t(f)] = yes ? 1 : 0; });
    const int32_t oldest = cache.token(0), held = far() * chunk - oldest;  // a window evicts tokens
    if (held <= 0) return;
    team.each(held, [&](int32_t row) {
      const size_t f = size_t((oldest + row) / chunk);
      if (w.is_open[f] == 0) return;
      reads.put(row, w.taken[f] != 0 ? kRead : kUnread);
      for (int32_t h = 0; h < queries.heads && rank > 0 && w.taken[f] != 0; ++h)
        weights[int64_t(h) * reads.rows + row] = finite_exp(
            queries.scale * (wide_dot(queries(h), w.key(oldest + row, dim)) - wide_dot(queries(h), cache.key(row))));
    });
  }
  double token_score(const auto& cache, int32_t row) const {
    const int32_t chunk_of = cache.token(row) / chunk;
    if (dense || chunk_of >= far() || work().is_open[size_t(chunk_of)] == 0) return INFINITY;
    return work().scores[size_t(chunk_of)];
  }

 private:
  struct Work {
    // [far, dim]; [far] scores of chunks, those of one head, 1 for chunks that a step may leave out, and for those that
    // it takes; [far * chunk, dim]
    std::span<double> landmarks, scores, own, is_open, taken, keys;
    std::span<double> key(int32_t token, int32_t width) const {
      return keys.subspan(size_t(token) * size_t(width), size_t(width));
    }
  };
  Work work() const {
    Carver cut{state.data()};
    const int64_t n = far();
    return {cut(n * dim), cut(n), cut(n), cut(n), cut(n), cut(rank > 0 ? n * chunk * dim : 0)};
  }
  int32_t far() const { return prompt / chunk > local ? prompt / chunk - local : 0; }
  int32_t selected() const { return budget / chunk < landmarks ? budget / chunk : landmarks; }
  // Writes the landmark of a far chunk; returns its smallest cosine with a key of the chunk.
  double find_landmark(const auto& cache, int32_t f, int32_t oldest) const {
    const std::span<double> mean = work().landmarks.subspan(size_t(f) * size_t(dim), size_t(dim));
    const int32_t begin = f * chunk - oldest, first = begin > 0 ? begin : 0, count = begin + chunk - first;
    if (count <= 0) return -INFINITY;  // the window has passed the chunk
    weighted_sum(
        count, [&](int32_t) { return 1.0 / count; }, [&](int32_t i) { return cache.key(first + i); }, mean);
    double least = count == 1 ? 1 : INFINITY;  // a mean of one key is that key
    for (int32_t i = first; i < first + count && count > 1; ++i) {
      const double lengths = norm(mean) * norm(cache.key(i));
      const double cosine = lengths > 0 ? wide_dot(mean, cache.key(i)) / lengths : 0;
      least = cosine < least ? cosine : least;
    }
    return least;
  }
  // Step 4: the scores of the far chunks; -infinity for those that are always read.
  template <class Real>
  void score_chunks(const Team auto& team, const StepQueries<Real>& queries, const Work& w) const {
    const int32_t n = far();
    for (int32_t h = 0; h < queries.heads; ++h) {
      team.each(n, [&](int32_t f) {
        const std::span<double> landmark = w.landmarks.subspan(size_t(f) * size_t(dim), size_t(dim));
        w.own[size_t(f)] = w.is_open[size_t(f)] != 0 ? queries.scale * wide_dot(queries(h), landmark) : -INFINITY;
      });
      softmax(team, w.own);
      team.each(n, [&](int32_t f) {
        const double p = w.is_open[size_t(f)] != 0 ? w.own[size_t(f)] : -INFINITY;
        w.scores[size_t(f)] = h == 0 || p > w.scores[size_t(f)] ? p : w.scores[size_t(f)];
      });
    }
  }
};

}  // namespace kvreplay
