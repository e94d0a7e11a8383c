#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// How unevenly a non-negative score is spread over tokens (H2O, Figure 2b).

namespace kvreplay {

constexpr double kTopShares[] = {0.01, 0.05, 0.2};  // of the tokens

// Tokens in a share of n: rounded down, at least 1.
int32_t top_count(double share, int32_t n);
// The first `count` tokens by score (C8), ascending.
std::vector<int32_t> top_tokens(std::span<const double> score, int32_t count);
// |A and B| / |A or B| of two ascending lists, not both empty.
double jaccard(std::span<const int32_t> a, std::span<const int32_t> b);
// What the top tokens of each of kTopShares hold of the whole sum; empty where that is 0.
std::vector<double> top_shares(std::span<const double> score);
// 0: all equal; (n - 1) / n: one token has it all. Nothing where the sum is 0.
std::optional<double> gini(std::span<const double> score);

// Lines through the scores sorted in descending order, by rank 1, 2, ...; scores of 0 have no logarithm and
// are left out. Nothing where fewer than two are left. A high R^2 does not make a power law: compare the two.
struct TailFits {
  double log_log_slope = 0, log_log_r2 = 0;          // ln score against ln rank: a power law
  double exponential_slope = 0, exponential_r2 = 0;  // ln score against rank: an exponential
};
std::optional<TailFits> fit_tail(std::span<const double> score);

}  // namespace kvreplay
