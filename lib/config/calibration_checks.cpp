#include "config/calibration_checks.hpp"

#include <fmt/core.h>

#include "calibration/calibrate.hpp"

namespace kvreplay {

void CalibrationChecks::check(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                              StatisticsNeeds asks) {
  const MethodInstance& instance = config_.methods[m];
  if (!asks.any()) return;
  const std::string why = why_not_known(trace, prompt, layer, instance.values.calibration(), asks);
  if (why.empty() || !told_.emplace(m, why).second) return;
  const std::string place = fmt::format("methods[{}]", m);
  problems_.error(config_.mark_of({place + ".calibration", place}),
                  fmt::format("{}: {}", instance.method().info.name, why));
}

}  // namespace kvreplay
