#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "replay/runner.hpp"

// Budgets that are asked for as shares of the full cache's bytes. A replay finds how many bytes a number of tokens
// takes; there is no second account of a cache's bytes.

namespace kvreplay {

// A share that an instance does not reach: even its smallest cache is larger.
struct Unreachable {
  size_t instance = 0;  // index in RunConfig::methods
  double share = 0;
  double floor_low = 0, floor_high = 0;  // the smallest shares that its heads can reach; 0: no budget can be replayed
  std::string failure;                   // why none can
  bool fails_in_run = false;             // its cells are replayed all the same, and fail
  size_t heads = 0, of_heads = 0;        // heads that do not reach it, and all heads; each seed counts
};

struct SolvedShares {
  std::vector<Unreachable> unreachable;
  std::vector<std::pair<size_t, double>> whole;  // (instance, share): everything fits, nothing is evicted
};

// Replaces the run's shares (SelectedLayer::by_share) by the largest budgets that fit. Each kv head has its own budget,
// and with random methods each seed. Budgets that heads share are solved for the layer or the selected layers as a
// whole. options: how the run will be replayed; the solver sets what is measured and reported. Throws ConfigError if no
// method reaches any share.
SolvedShares solve_shares(LoadedRun& run, RunOptions options);

// "needs 34.1 % of the full cache", "in 3 of 15 caches needs 34.1 to 36.2 % of the full cache". Names the prompt's full
// cache if shares bound the prompt's bytes.
std::string floor_text(const Unreachable& one, BudgetList::Of of);
// Names the cache whose share was asked for: "the cache", "the prompt's cache".
std::string cache_text(BudgetList::Of of);
// Formats a share as "5%".
std::string percent_text(double share);

}  // namespace kvreplay
