#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/query_statistics.hpp"
#include "core/token.hpp"

// Statistics of queries, whoever's they are: one text for the prompt that is replayed, for others and for files.

namespace kvreplay {

struct KnownQueries {
  int32_t heads = 0, dim = 0, pairs = 0;
  int64_t rows = 0;                                             // whose queries they are of, over all prompts
  std::vector<double> means = {}, sizes = {}, directions = {};  // as QueryStatistics; empty unless asked for
  std::vector<int32_t> channels = {};
  // Of the query heads from `first` on.
  QueryStatistics from(int32_t first) const;
};

// Rows of one prompt: each(head, show) shows the queries of one query head in order, each with its own key and
// position.
struct QueryRows {
  using Show = std::function<void(std::span<const double> query, std::span<const double> key, int32_t position)>;
  int64_t count = 0;
  std::function<void(int32_t head, const Show& show)> each;
};
struct QueryShape {
  int32_t heads, dim;
  RopeView rope;
};

// Means are means over prompts of each prompt's mean. Directions are the first right singular vectors of all rows of
// all prompts, with the sign that more than half of the rows agree with.
KnownQueries learn(const std::vector<QueryRows>& prompts, const QueryShape& shape, StatisticsNeeds needs);

}  // namespace kvreplay
