#include "measures/metrics.hpp"

#include <algorithm>

namespace kvreplay {

const char* word(Better better) {
  constexpr const char* kWords[] = {"", "less", "more"};
  return kWords[size_t(better)];
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const MetricInfo& metric : kMetrics) names.emplace_back(metric.name);
  return names;
}

Wanted wanted_by(const std::vector<std::string>& metrics) {
  Work work = Work::none;
  for (const MetricInfo& metric : kMetrics)
    if (metrics.empty() || std::find(metrics.begin(), metrics.end(), metric.name) != metrics.end())
      work = work | metric.work;
  return {work};
}

}  // namespace kvreplay
