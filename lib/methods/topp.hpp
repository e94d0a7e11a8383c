#pragma once
#include "core/policy.hpp"

namespace kvreplay {

// Nucleus selection as a ceiling: reads as many tokens as needed for a share p of the step's attention.
//  1. Sort the exact probabilities of the step (group mean).  2. Read the shortest prefix whose mass reaches p.  3.
//     Renormalise over it.
// The mean number of tokens read is the run's mean_attended_tokens.
struct Topp {
  static constexpr MethodInfo info{
      .name = "topp",
      .title = "share p of the attention from the full cache (oracle)",
      .source = "nucleus selection; a ceiling",
      .tier = 2,
      .memory = "the full cache",
      .deviation = "",
      .oneshots = false,
      .any_positions = false,
      .takes_budget = false,
      .implied_layout = true,
      .reads_full_cache = true,
  };
  static constexpr Hooks hooks{"choose traits"};
  double p = 0.95;
  bool per_head = false;

  void traits(Traits& t) const { t.heads_differ = per_head; }

  static void declare(auto& d) {
    d.real("p", &Topp::p, {0, 1}, "mass of the step's attention that is read, above 0");
    d.boolean("per_head", &Topp::per_head, "every query head reads its own tokens");
  }
  void resolve(const MethodContext&) {
    if (!(p > 0)) throw ParameterError("p", "p 0 reads nothing; set a share above 0");
  }

  void choose(const Team auto& team, const Cache auto& cache, HeadProbabilities x, uint8_t* chosen) {
    const int32_t rows = cache.size();
    const double mass = p < 1 ? p : INFINITY;  // p = 1 reads all rows, whatever the rounding of the sum
    for (int32_t h = 0; h < (per_head ? x.heads : 1); ++h)
      choose_mass(
          team, rows, mass, [&](int32_t i) { return per_head ? x(h, i) : x.mean(i); },
          [&](int32_t i, bool yes) { chosen[int64_t(h) * rows + i] = yes ? kRead : kUnread; });
    for (int32_t h = 1; h < x.heads && !per_head; ++h)
      team.each(rows, [&](int32_t i) { chosen[int64_t(h) * rows + i] = chosen[i]; });
  }
};

}  // namespace kvreplay
