#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// How unevenly a non-negative score is distributed over tokens (H2O, Figure 2b).

namespace kvreplay {

constexpr double kTopShares[] = {0.01, 0.05, 0.2};  // shares of the tokens

// Number of tokens in a share of n: rounded down, at least 1.
int32_t top_count(double share, int32_t n);
// The `count` tokens with the largest scores (C8), ascending by index.
std::vector<int32_t> top_tokens(std::span<const double> score, int32_t count);
// Jaccard index |A and B| / |A or B| of two ascending lists, not both empty.
double jaccard(std::span<const int32_t> a, std::span<const int32_t> b);
// The top tokens' share of the whole sum, for each of kTopShares; empty if the sum is 0.
std::vector<double> top_shares(std::span<const double> score);
// Gini coefficient. 0: all scores are equal; (n - 1) / n: one token has everything. nullopt if the sum is 0.
std::optional<double> gini(std::span<const double> score);

// Straight lines fitted to the scores in descending order, by rank 1, 2, ...; scores of 0 are left out because they
// have no logarithm. nullopt if fewer than two remain. A high R^2 alone does not prove a power law: compare both fits.
struct TailFits {
  double log_log_slope = 0, log_log_r2 = 0;          // ln score over ln rank: a power law
  double exponential_slope = 0, exponential_r2 = 0;  // ln score over rank: an exponential
};
std::optional<TailFits> fit_tail(std::span<const double> score);

}  // namespace kvreplay
