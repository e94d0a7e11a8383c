#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/policy.hpp"
#include "core/rotary.hpp"
#include "core/share.hpp"
#include "core/vectors.hpp"

namespace kvreplay {

// DuoAttention, Xiao et al. 2024, section 3: retrieval heads keep everything, the others stream.
//  1. How far each kv head looks. `mass`: attention of prompt rows t >= sinks + recent to tokens sinks..t-recent, mean
//     over rows and group. `area` (as kvpress runs it): take the mean query and the mean key of the prompt before
//     rotation, the key at `length` positions and the query at the last; then the mean over positions of the
//     attention's running sum, mean over the group.
//  2. The round(stream_frac heads) heads of the model that look least far hold sinks and recents at every step.
//  With `gates` the engine separates the heads (allocation/gates_file.hpp), and nothing of 1 is computed.
struct DuoAttention {
  static constexpr MethodInfo info{
      .name = "duo_attention",
      .title = "heads that look near stream, the others keep all tokens",
      .source = "DuoAttention, Xiao et al. 2024, section 3 (rule area: as kvpress runs it)",
      .tier = 3,
      .memory = "sinks + recent tokens in streaming heads, everything in the others",
      .deviation =
          "gates are trained on synthetic passkeys and cannot come from a trace: without `gates`, heads are ranked by "
          "their attention in the prompt, among the layers that the trace holds. Equal gates stream in the order of "
          "layers and heads; the published code breaks such ties by random numbers.",
      .oneshots = false,
      .takes_budget = false,
      .shared_over = SharedOver::model,
  };
  static constexpr Hooks hooks{
      "observe_prompt read_prompt evict report layout needs protection share head_scores state"};
  enum class Rule { mass, area };
  Rule rule = Rule::mass;
  double stream_frac = 0.5;
  int32_t sinks = 128, recent = 256, length = 500;
  int32_t tokens = 0, budget = 0;  // budget: most tokens of this head; 0: not known yet
  double attention_reach = 0;
  std::span<double> state;  // for rule area: [dim] mean key, [dim] mean query, [dim] rotated key, [length] logits

  static void declare(auto& d) {
    d.choice("rule", &DuoAttention::rule, {"mass", "area"}, "how the distance that a head looks is measured");
    d.real("stream_frac", &DuoAttention::stream_frac, {0, 1}, "share of the heads that stream");
    d.integer("sinks", &DuoAttention::sinks, {0, kManyTokens}, "first tokens of a streaming head");
    d.integer("recent", &DuoAttention::recent, {1, kManyTokens},
              "last tokens of a streaming head, the newest included");
    d.integer("length", &DuoAttention::length, {1, 1 << 20}, "positions of the mean key (rule area)");
    d.file("gates", "file of trained gates as DuoAttention publishes them; it replaces rule and length", "none");
  }
  void resolve(const MethodContext& context) { tokens = context.tokens, budget = context.budget.tokens; }
  Layout layout(const MethodContext& context) const {
    const int64_t of_area = rule == Rule::area ? int64_t(3) * context.shape.dim + length : 0;
    return {.state_doubles = of_area, .scores = true};
  }
  PromptNeeds needs(const MethodContext& context) const {
    if (budget > 0) return {};
    if (rule == Rule::area) return {.queries = true, .rotary = true};
    return context.prompt_tokens > sinks + recent ? PromptNeeds{.rows_from = sinks + recent} : PromptNeeds{};
  }
  Protect protection() const { return {sinks, recent}; }
  void report(auto& extras, const auto&) const { extras["streams"] = streams() ? 1 : 0; }

  void head_scores(std::vector<double>& says) const { says = {attention_reach}; }
  std::vector<int32_t> share(const MethodContext& context, const std::vector<HeadScores>& heads) const {
    std::vector<size_t> order(heads.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return heads[a].extras.at(0) < heads[b].extras.at(0); });
    std::vector<int32_t> held(heads.size(), context.tokens);
    const size_t streaming = size_t(std::nearbyint(stream_frac * double(heads.size())));
    for (size_t i = 0; i < streaming; ++i) held[order[i]] = std::min(sinks + recent, context.tokens);
    return held;
  }

  void observe_prompt(const Team auto& team, int32_t t, HeadProbabilities x) {
    const int32_t far = t - recent - sinks + 1;
    if (far > 0) attention_reach += team.sum(far, [&](int32_t i) { return x.mean(sinks + i); });
  }
  template <class Real>
  void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>&) {
    if (budget > 0) return;
    if (rule == Rule::mass) {
      const int32_t rows = prompt.size() - sinks - recent;
      attention_reach /= rows > 0 ? rows : 1;
      return;
    }
    const auto find_mean = [&](std::span<double> mean, auto vector) {
      mean_before_rotation(team, prompt, prompt.rope(), vector, part(2), mean);
    };
    find_mean(mean_key(), [&](int32_t row) { return prompt.key(row); });
    for (int32_t h = 0; h < prompt.shape().heads; ++h) {
      find_mean(mean_query(), [&](int32_t row) { return prompt.query(h, row); });
      attention_reach += area(team, prompt) / prompt.shape().heads;
    }
  }
  void evict(const Team auto& team, Cache auto& cache) {
    if (streams()) keep_ends(team, cache, sinks, sinks + recent);
  }

 private:
  bool streams() const { return budget > 0 && budget < tokens; }
  std::span<double> mean_key() const { return part(0); }
  std::span<double> mean_query() const { return part(1); }
  std::span<double> part(size_t which) const {
    const size_t dim = (state.size() - size_t(length)) / 3;
    return state.subspan(which * dim, dim);
  }
  // An attention factor is left in both vectors, as if they had been rotated again.
  template <class Real>
  double area(const Team auto& team, const Prompt<Real>& prompt) const {
    const std::span<double> query = mean_query(), key = part(2), logits = state.last(size_t(length));
    rotate(team, prompt.rope(), length - 1, query.data());
    for (int32_t j = 0; j < length; ++j) {
      team.each(int32_t(key.size()), [&](int32_t c) { key[size_t(c)] = mean_key()[size_t(c)]; });
      rotate(team, prompt.rope(), j, key.data());
      const double l = prompt.scale() * wide_dot(query, key);
      logits[size_t(j)] = l;
    }
    softmax(team, logits);
    return team.sum(length, [&](int32_t j) { return logits[size_t(j)] * (length - j); }) / length;
  }
};

}  // namespace kvreplay
