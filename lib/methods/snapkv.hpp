#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// SnapKV, Li et al. 2024, section 4: the last prompt rows (the observation window) vote for the prefix.
//  1. s[j] = sum over rows P-w..P-1 and the group of x_row(j), for prefix keys j < P-w.
//  2. Pool s along j with stride 1: `max` ignores what lies outside the prefix, `avg` counts it as 0.
//  3. Keep the top B-w of the pooled scores and the w window tokens; later tokens are kept.
// Max pooling makes exact ties at the boundary in most heads: the lower index stays (C8).
struct SnapKv {
  static constexpr MethodInfo info{
      .name = "snapkv",
      .title = "votes of an observation window",
      .source = "SnapKV, Li et al. 2024, section 4",
      .tier = 1,
      .memory = "B prompt tokens and every later one",
      .deviation =
          "grouped query heads are summed before pooling; the release selects per query head "
          "(gqa.level: query). At least five sets of published defaults exist.",
      .streams = false,
      .default_phase = Phase::oneshot,
  };
  enum class Pool { max, avg };
  int32_t window = 32, kernel = 7;
  Pool pool = Pool::max;
  int32_t budget = 0;
  std::span<double> state;  // votes [P]

  static void declare(auto& d) {
    d.integer("window", &SnapKv::window, {1, kManyTokens}, "observation window, prompt rows that vote");
    d.integer("kernel", &SnapKv::kernel, {1, kManyTokens}, "pooling width in tokens, odd; 1 = no pooling");
    d.choice("pool", &SnapKv::pool, {"max", "avg"}, "how neighbours share their votes");
  }
  void resolve(const Scene& scene) {
    budget = scene.budget;
    if (kernel % 2 == 0)
      throw ParameterError("kernel",
                           "kernel " + std::to_string(kernel) + " must be odd, so that pooling has a centre");
  }
  Layout layout(const Scene& scene) const { return {.state_doubles = scene.prompt, .scores = true}; }
  PromptNeeds needs(const Scene& scene) const {
    return {.column_sums_from = scene.prompt > window ? scene.prompt - window : 0};
  }

  Protect protection() const { return {.recent = window}; }

  template <class Real>
  KVR_FN void read_prompt(const Team auto& team, const Prompt<Real>& prompt, BasicCache<Real>& cache) {
    const int32_t prefix = cache.size() - window;
    team.each(prefix, [&](int32_t j) { state[size_t(j)] = prompt.column_sum(cache.token(j)); });
    team.each(prefix, [&](int32_t j) { cache.score(j) = pooled(j, prefix); });
  }
  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    if (cache.size() <= budget) return;
    if (budget <= window) keep_ends(team, cache, 0, budget);
    else
      keep_best(team, cache, {.recent = window}, budget - window, [&](int32_t i) { return cache.score(i); });
  }

 private:
  KVR_FN double pooled(int32_t j, int32_t prefix) const {
    const int32_t first = j - kernel / 2 < 0 ? 0 : j - kernel / 2;
    const int32_t last = j + kernel / 2 >= prefix ? prefix - 1 : j + kernel / 2;
    double most = state[size_t(first)], sum = 0;
    for (int32_t i = first; i <= last; ++i) {
      const double s = state[size_t(i)];
      most = s > most ? s : most;
      sum += s;
    }
    return pool == Pool::max ? most : sum / kernel;
  }
};

}  // namespace kvreplay
