#pragma once
#include "config/problems.hpp"
#include "config/run_config.hpp"
#include "core/query_statistics.hpp"

namespace kvreplay {

// Problems of the calibrations that methods name, reported once for each method.
class CalibrationChecks {
 public:
  CalibrationChecks(const RunConfig& config, Problems& problems) : config_(config), problems_(problems) {}
  // Checks one layer of a replayed prompt. asks: the statistics that the method reads there.
  void check(size_t method, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
             StatisticsNeeds asks);

 private:
  const RunConfig& config_;
  Problems& problems_;
};

}  // namespace kvreplay
