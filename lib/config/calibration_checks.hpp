#pragma once
#include <set>
#include <string>

#include "config/problems.hpp"
#include "config/run_config.hpp"
#include "core/query_statistics.hpp"

namespace kvreplay {

// What is wrong with the calibrations that methods name, told once for each method.
class CalibrationChecks {
 public:
  CalibrationChecks(const RunConfig& config, Problems& problems) : config_(config), problems_(problems) {}
  // On one layer of a prompt that is replayed; asks: what the method reads there.
  void check(size_t method, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
             StatisticsNeeds asks);

 private:
  const RunConfig& config_;
  Problems& problems_;
  std::set<std::pair<size_t, std::string>> told_;
};

}  // namespace kvreplay
