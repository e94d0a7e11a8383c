#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exact/head_stream.hpp"
#include "survey/heavy_tail.hpp"

// What the exact attention of one kv head's group looks like: sparsity, sink, accumulated scores
// (docs/measures.md). Soft cap, sliding window and sink logits are part of it; where the trace holds only
// some query rows, "rows" are those.

namespace kvreplay {

constexpr double kSparsityThreshold = 0.01;  // of a row's largest probability
constexpr int32_t kLocalRows = 32;           // prompt rows behind the local statistic

struct AttentionShape {
  int32_t heads = 0, rows = 0;  // query heads of the group, query rows
  // [heads], over rows i >= 1 (sparsity_masked: all rows); empty where there is none.
  std::vector<double> sparsity;            // share of the tokens a row may see that get less than the threshold
  std::vector<double> sparsity_no_sink;    // without token 0
  std::vector<double> sparsity_masked;     // share of all T tokens, those that it may not see counted as sparse
  std::vector<double> sink_mass;           // mean probability of token 0
  std::vector<double> top1_is_sink;        // share of rows whose largest probability is token 0's
  std::vector<double> attended_effective;  // mean of exp(entropy) of a row's probabilities
  // Sums of each token's probability over all rows.
  std::vector<double> accumulated;        // [T] summed over the heads, as H2O's score
  std::vector<double> accumulated_heads;  // [heads, T]
  // Of `accumulated`; [3] for kTopShares, or empty where it is 0.
  std::vector<double> top_share, top_share_null, top_share_ratio;
  std::vector<double> top_share_heads;  // [heads, 3] of each head's own sums and top tokens; empty where one is 0
  std::optional<double> gini;
  std::optional<TailFits> tail;
  // Jaccard overlap of the top tokens of the prompt [3] by two sums of probabilities, over: the last
  // kLocalRows rows of the prompt (local), the prompt's rows (full), those after it (future), all (global).
  // Empty where one of them has no rows, and with `global` where it is nothing but full or future.
  struct Overlap {
    std::string name;  // local_full, ...
    std::vector<double> jaccard;
  };
  std::vector<Overlap> overlaps;
};
AttentionShape survey_attention(const HeadStream<double>& stream);

// Column sums [tokens] of uniform attention over what each of the stream's query rows may see.
std::vector<double> uniform_column_sums(const HeadStream<double>& stream);

}  // namespace kvreplay
