#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exact/head_stream.hpp"
#include "survey/spectrum.hpp"

// The shape of the exact attention of one kv head's group: sparsity, sink, accumulated scores (docs/measures.md).
// Includes soft cap, sliding window and sink logits. If the trace holds only some query rows, "rows" means those.

namespace kvreplay {

constexpr double kSparsityThreshold = 0.01;  // fraction of a row's largest probability
constexpr int32_t kLocalRows = 32;           // last prompt rows, used for the local statistic

struct AttentionShape {
  int32_t heads = 0, rows = 0;  // query heads of the group, query rows
  // [heads], over rows i >= 1 (sparsity_masked: all rows); empty if there are none.
  std::vector<double> sparsity;            // share of the visible tokens whose probability is below the threshold
  std::vector<double> sparsity_no_sink;    // without token 0
  std::vector<double> sparsity_masked;     // share of all T tokens; invisible tokens count as sparse
  std::vector<double> sink_mass;           // mean probability of token 0
  std::vector<double> top1_is_sink;        // share of rows in which token 0 has the largest probability
  std::vector<double> attended_effective;  // mean of exp(entropy) of a row's probabilities
  // Sums of each token's probability over all rows.
  std::vector<double> accumulated;        // [T] summed over the heads, like H2O's score
  std::vector<double> accumulated_heads;  // [heads, T]
  // Shares of `accumulated`; [3] for kTopShares, or empty if its sum is 0.
  std::vector<double> top_share, top_share_null, top_share_ratio;
  std::vector<double> top_share_heads;  // [heads, 3] from each head's sums and top tokens; empty if a sum is 0
  std::optional<double> gini;
  std::optional<TailFits> tail;
  // Jaccard overlap [3] of the prompt's top tokens by two sums of probabilities. The sums are over the last kLocalRows
  // rows of the prompt (local), the prompt's rows (full), the rows after it (future), or all rows (global). Empty if
  // one of them has no rows; with `global` also if it equals full or future.
  struct Overlap {
    std::string name;  // local_full, ...
    std::vector<double> jaccard;
  };
  std::vector<Overlap> overlaps;
};
AttentionShape survey_attention(const HeadStream<double>& stream);

// Column sums [tokens] if each recorded query row attended uniformly to the tokens it may see.
std::vector<double> uniform_column_sums(const HeadStream<double>& stream);

}  // namespace kvreplay
