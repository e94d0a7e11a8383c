#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/calibration.hpp"
#include "core/token.hpp"

// Computes statistics of queries. The replayed prompt, other prompts and files share this code.

namespace kvreplay {

struct KnownQueries {
  int32_t heads = 0, dim = 0, pairs = 0;
  int64_t rows = 0;                                             // query rows used, over all prompts
  std::vector<double> means = {}, sizes = {}, directions = {};  // as QueryStatistics; empty unless requested
  std::vector<int32_t> channels = {};
  std::vector<double> full_means = {}, covariances = {};
  // The statistics of the query heads from `first` on.
  QueryStatistics from(int32_t first) const;
};

// Rows of one prompt. each(head, show) calls show for the queries of one query head in order, each with the key and the
// position of its token.
struct QueryRows {
  using Show = std::function<void(std::span<const double> query, std::span<const double> key, int32_t position)>;
  int64_t count = 0;
  std::function<void(int32_t head, const Show& show)> each;
};
struct QueryShape {
  int32_t heads, dim;
  RopeView rope;
};

// A mean is the mean over prompts of each prompt's mean. A direction is the first right singular vector of all rows of
// all prompts, with the sign on which more than half of the rows have a positive product.
KnownQueries learn(const std::vector<QueryRows>& prompts, const QueryShape& shape, StatisticsNeeds needs);

}  // namespace kvreplay
