#include "replay/branch_results.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvreplay {
namespace {

struct Mean {
  Metric metric;
  int64_t BranchResult::*over;
};
constexpr Mean kMeans[] = {
    {"mean_kept_tokens", &BranchResult::points},    {"mean_attended_tokens", &BranchResult::rows},
    {"mean_bytes", &BranchResult::points},          {"mean_full_bytes", &BranchResult::points},
    {"read_bytes_per_step", &BranchResult::points}, {"resident_pages", &BranchResult::points},
    {"reclaimed_bytes", &BranchResult::points},     {"fragmentation", &BranchResult::points},
};

bool is_mean(size_t metric) {
  return std::any_of(std::begin(kMeans), std::end(kMeans), [&](const Mean& m) { return m.metric.index == metric; });
}

double mean_over(const std::vector<BranchResult>& branches, const Mean& mean) {
  double sum = 0, weight = 0;
  for (const BranchResult& branch : branches) {
    sum += branch.result.measures[mean.metric].value_or(0) * double(branch.*mean.over);
    weight += double(branch.*mean.over);
  }
  return weight > 0 ? sum / weight : 0;
}

void add_largest(const Measured& of, Measured& to) {
  const auto values = of.all();
  for (size_t i = 0; i < values.size(); ++i) {
    std::optional<double>& most = to.at(i);
    if (values[i] && !is_mean(i)) most = std::max(most.value_or(*values[i]), *values[i]);
  }
  for (const auto& [name, value] : of.extras) {
    const auto [held, is_new] = to.extras.emplace(name, value);
    held->second = std::max(held->second, value);
  }
  to.select_s += of.select_s, to.attend_s += of.attend_s;
}

}  // namespace

BranchResult branch_result(int32_t branch, CellResult result, int64_t points, int64_t rows) {
  TokensHeld& lists = result;
  result.branches.emplace_back(branch, std::exchange(lists, {}));
  return {std::move(result), points, rows};
}

CellResult joined(std::vector<BranchResult> branches) {
  CellResult all = branches.front().result;
  all.branches.clear();
  all.measures = {};
  for (BranchResult& branch : branches) {
    add_largest(branch.result.measures, all.measures);
    all.attends = all.attends || branch.result.attends, all.partial = all.partial || branch.result.partial;
    std::move(branch.result.branches.begin(), branch.result.branches.end(), std::back_inserter(all.branches));
  }
  for (const Mean& mean : kMeans)
    if (branches.front().result.measures[mean.metric]) all.measures[mean.metric] = mean_over(branches, mean);
  if (branches.size() > 1) all.measures["median_evicted_age_tokens"].reset();
  return all;
}

}  // namespace kvreplay
