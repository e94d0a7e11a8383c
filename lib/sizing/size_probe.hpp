#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "replay/runner.hpp"

namespace kvreplay {

// Measures the bytes of caches at tried budgets: replays them for their account of bytes alone.
class SizeProbe {
 public:
  // A method instance at the place and budget whose size is asked for.
  struct Where {
    size_t layer = 0;  // index in LoadedRun::selection
    int32_t kv_head = 0;
    size_t instance = 0;
    std::optional<uint32_t> seed = {};
    int32_t tokens = 0;
    auto operator<=>(const Where&) const = default;
  };
  struct Bytes {  // the kind of bytes that the run's shares bound
    double used = 0, full = 0;
  };

  SizeProbe(const LoadedRun& run, RunOptions options);
  // Omits caches that cannot be replayed. by_budget: their sizes do not depend on any number of the trace.
  std::map<Where, Bytes> sizes(const std::vector<Where>& asked, bool by_budget);
  // Why a cache of this instance could not be replayed, the first that failed; "" if none did.
  std::string failure(size_t instance) const;

 private:
  using Found = std::map<Where, Bytes>;
  void replay(const std::vector<Where>& asked, bool by_budget, Found& found);
  std::vector<Cell> cells_of(const std::vector<Where>& asked) const;

  const LoadedRun& run_;
  RunOptions options_;
  std::map<size_t, std::string> failures_;  // by instance
  std::map<Place, size_t> layer_at_;        // index in the selection, by its place with kv head 0
};

}  // namespace kvreplay
