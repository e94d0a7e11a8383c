#pragma once
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "replay/runner.hpp"

// Budgets that were asked for as shares of the full cache's bytes. Which number of tokens takes how many bytes is
// found by replaying: the account that is kept of a cache is the only one there is.

namespace kvreplay {

// A share that an instance does not reach: all that it can do takes more.
struct Unreachable {
  size_t instance = 0;  // of RunConfig::methods
  double share = 0;
  double floor_low = 0, floor_high = 0;  // the smallest shares that its heads can reach; 0: none can be replayed
  size_t heads = 0, of_heads = 0;        // those that do not reach it, counted for each seed
};

struct SolvedShares {
  std::vector<Unreachable> unreachable;
  std::vector<std::pair<size_t, double>> whole;  // (instance, share): everything fits, nothing is evicted
};

// Puts the largest budgets that fit in the place of the run's shares (SelectedLayer::by_share): each kv head its own,
// and with random methods each seed; budgets that heads share, for the layer or the selected layers as a whole.
// `options`: how the run will be replayed; what is measured and reported is set here. Throws ConfigError where no
// method reaches any share.
SolvedShares solve_shares(LoadedRun& run, RunOptions options);

// "needs 34.1 % of the full cache", "in 3 of 15 heads needs 34.1 to 36.2 % of the full cache"; of the prompt's, where
// shares bound its bytes.
std::string floor_text(const Unreachable& one, BudgetList::Of of);
// Names the cache whose share was asked for: "the cache", "the prompt's cache".
std::string cache_text(BudgetList::Of of);
// "5%": a share as people write it.
std::string percent_text(double share);

}  // namespace kvreplay
