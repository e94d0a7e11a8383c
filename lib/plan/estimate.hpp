#pragma once
#include <cstdint>
#include <vector>

#include "catalog/cell.hpp"
#include "config/run_config.hpp"

namespace kvreplay {

// Rough bytes in memory and relative cost of a plan, for --dry-run and the ETA. cost[i] belongs to cell i.
struct PlanEstimate {
  int64_t bytes_peak = 0;
  std::vector<double> cost;
};
// Rough seconds for a cost on one core with AVX2.
double core_seconds(double cost);
PlanEstimate estimate(const RunConfig& config, const std::vector<Cell>& plan, const std::vector<TraceInfo>& traces);

}  // namespace kvreplay
