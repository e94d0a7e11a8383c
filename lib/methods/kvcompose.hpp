#pragma once
#include "methods/parts/joint_cut.hpp"
#include "methods/parts/repeat_votes.hpp"

namespace kvreplay {

// KVCompose, 2025, section 3: heads of a layer keep equally many tokens, each its own best.
//  1. The context is repeated (`kvreplay record --repeat`). Row t of chunk c: softmax over all P context keys and the
//     chunk's own rows up to t. s_j = largest probability over all rows of all chunks (`rows: mean`: their mean), mean
//     over the group.
//  2. `vnorm`: s_j times ||v_j||.
//  3. `mean_heads`: s_j plus the mean of s_j over the kv heads of the layer.
//  4. `structured`: each head sorts its s. composite_l[r] = mean over the heads of layer l of the r-th largest; in the
//     first recorded layer, the largest of all layers at rank r. The top B * layers of all composites (ties: layer,
//     rank) give a number of tokens per layer, and every head of it keeps so many.
//     Otherwise: the top B * heads of all s (ties: layer, head, token).
struct KvCompose : JointCut {
  static constexpr MethodInfo info{
      .name = "kvcompose",
      .title = "as many tokens for each head of a layer, each head its own",
      .source = "KVCompose, arXiv 2509.05165, section 3 (as kvpress runs it)",
      .tier = 2,
      .memory =
          "the layer's share of B * layers prompt tokens per kv head, and every later one; uneven over heads "
          "unless structured",
      .deviation =
          "kvpress repeats the whole context in one piece and without an instruction; here the recorded rows repeat it "
          "chunk by chunk. Only the layers that the trace holds share the budget.",
      .streams = false,
      .default_phase = Phase::oneshot,
      .layer_level = false,
      .shared_over = SharedOver::model,
  };
  static constexpr Hooks hooks = Hooks{"read_prompt layout needs state"} + joint_hooks;
  enum class Votes { max, mean };
  bool structured = true, mean_heads = true, vnorm = false;
  Votes rows = Votes::max;
  std::span<double> state;  // [P] votes of one query head, [P] one row's probabilities

  static void declare(auto& d) {
    d.boolean("structured", &KvCompose::structured, "whether the heads of a layer keep equally many tokens");
    d.boolean("mean_heads", &KvCompose::mean_heads, "whether a score gains the mean over the layer's kv heads");
    d.boolean("vnorm", &KvCompose::vnorm, "whether scores are multiplied by the norm of the value");
    d.choice("rows", &KvCompose::rows, {"max", "mean"}, "how the votes of rows are combined");
    protect<KvCompose>(d);
  }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = 2 * int64_t(context.prompt_tokens), .scores = true};
  }
  PromptNeeds needs(const MethodContext&) const { return {.repeat = true}; }
  void head_scores(std::vector<double>& says) const { says = {double(budget)}; }

  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& context, BasicCache<Real>& cache) {
    if (has_cut()) return;
    const int32_t heads = context.shape().heads;
    for (int32_t h = 0; h < heads; ++h) {
      collect_votes(team, context, h);
      team.each(cache.size(), [&](int32_t i) { cache.score(i) += state[size_t(cache.token(i))] / heads; });
    }
    if (vnorm) team.each(cache.size(), [&](int32_t i) { cache.score(i) *= norm(context.value(cache.token(i))); });
  }

  std::vector<Rows> cut_together(const std::vector<HeadScores>& heads) const {
    const int64_t tokens = int64_t(heads.front().extras.at(0));
    const std::vector<std::vector<size_t>> layers = by_layer(heads);
    std::vector<std::vector<double>> scores;
    for (const HeadScores& head : heads) scores.push_back(head.scores);
    if (mean_heads)
      for (const auto& layer : layers) add_mean(layer, scores);
    protect_rows(heads, scores);
    if (!structured) return best_of_all(scores, tokens * int64_t(heads.size()));
    const Rows counts = winners(composites(layers, scores), tokens * int64_t(layers.size()));
    std::vector<Rows> kept;
    for (size_t l = 0; l < layers.size(); ++l)
      for (const size_t head : layers[l]) kept.push_back(best_rows(scores[head], counts[l]));
    return kept;
  }

 private:
  // Step 1 of one query head.
  template <class Real>
  void collect_votes(const Team auto& team, const Prompt<Real>& context, int32_t head) const {
    const RepeatView<Real> r = context.repeat();
    const int32_t size = context.size();
    const std::span<double> votes = state.first(size_t(size)), p = state.last(size_t(size));
    team.each(size, [&](int32_t j) { votes[size_t(j)] = 0; });
    for (int32_t c = 0; c < r.chunks; ++c)
      for (int64_t row = r.first_row[c]; row < r.first_row[c + 1]; ++row) {
        repeat_votes(team, context, head, row, r.first_row[c], p, [](int32_t j) { return j; });
        team.each(size, [&](int32_t j) {
          double& vote = votes[size_t(j)];
          if (rows == Votes::mean) vote += p[size_t(j)] / double(r.rows);
          else vote = p[size_t(j)] > vote ? p[size_t(j)] : vote;
        });
      }
  }
  // Step 3 for the heads of a layer.
  static void add_mean(const std::vector<size_t>& layer, std::vector<std::vector<double>>& scores) {
    for (size_t j = 0; j < scores[layer.front()].size(); ++j) {
      double sum = 0;
      for (const size_t head : layer) sum += scores[head][j];
      for (const size_t head : layer) scores[head][j] += sum / double(layer.size());
    }
  }
  // Step 4: a composite for each layer, descending.
  static std::vector<std::vector<double>> composites(const std::vector<std::vector<size_t>>& layers,
                                                     const std::vector<std::vector<double>>& scores) {
    std::vector<std::vector<double>> all;
    for (const auto& layer : layers) {
      std::vector<double> composite(scores[layer.front()].size(), 0);
      for (const size_t head : layer) {
        std::vector<double> sorted = scores[head];
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        for (size_t r = 0; r < sorted.size(); ++r) composite[r] += sorted[r] / double(layer.size());
      }
      all.push_back(std::move(composite));
    }
    for (const auto& composite : all)
      for (size_t r = 0; r < std::min(composite.size(), all.front().size()); ++r)
        all.front()[r] = std::max(all.front()[r], composite[r]);
    return all;
  }
};

}  // namespace kvreplay
