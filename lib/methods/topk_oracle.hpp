#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// The best that an attention-mass ranking can do, H2O Table 8 "Top-K": at every step the tokens that
// this step's queries attend to most, from the full cache.
//  1. Exact probabilities of the step, summed over the group.  2. Read the B + extra largest; the newest
//  token has no privilege.  3. Renormalise over them.
// It maximises mass, not accuracy: in diffuse heads a plain window can have a smaller error.
struct TopkOracle {
  static constexpr MethodInfo info{
      .name = "topk_oracle",
      .title = "top-k of the full cache (oracle)",
      .source = "H2O, Zhang et al. 2023, Table 8",
      .tier = 1,
      .memory = "the full cache; the budget bounds what is read",
      .deviation = "",
      .oneshots = false,
      .any_positions = false,
      .implied_layout = true,
      .reads_full_cache = true,
  };
  int32_t extra = 1;
  bool per_head = false;
  int32_t budget = 0;

  static void declare(auto& d) {
    d.integer("extra", &TopkOracle::extra, {0, 1},
              "1: read B + 1 tokens, as many as a streaming method attends to");
    d.boolean("per_head", &TopkOracle::per_head, "every query head reads its own tokens");
  }
  void resolve(const Scene& scene) { budget = scene.budget; }
  int32_t read_bound() const { return budget + extra; }

  KVR_FN void choose(const Team auto& team, const Cache auto& cache, HeadProbabilities p, uint8_t* chosen) {
    const int32_t rows = cache.size(), count = budget + extra < rows ? budget + extra : rows;
    for (int32_t h = 0; h < p.heads; ++h) {
      if (!per_head && h > 0) {
        team.each(rows, [&](int32_t i) { chosen[int64_t(h) * rows + i] = chosen[i]; });
        continue;
      }
      choose_top(
          team, rows, count, [&](int32_t i) { return per_head ? p(h, i) : group(p, i); },
          [&](int32_t i, bool yes) { chosen[int64_t(h) * rows + i] = yes ? 1 : 0; });
    }
  }

 private:
  KVR_FN static double group(const HeadProbabilities& p, int32_t i) {
    double s = 0;
    for (int32_t h = 0; h < p.heads; ++h) s += p(h, i);
    return s;
  }
};

}  // namespace kvreplay
