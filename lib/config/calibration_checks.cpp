#include "config/calibration_checks.hpp"

#include <fmt/core.h>

#include "calibration/calibrate.hpp"

namespace kvreplay {

void CalibrationChecks::check(size_t m, const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                              StatisticsNeeds asks) {
  const MethodInstance& instance = config_.methods[m];
  if (!asks.any()) return;
  Refusal refusal = calibration_obstacle(trace, prompt, layer, instance.values.calibration(), asks, problems_.words());
  if (refusal.empty()) return;
  refusal.methods = {instance.named()};
  const std::string place = fmt::format("methods[{}]", m);
  problems_.error(config_.mark_of({place + ".calibration", place}), std::move(refusal));
}

}  // namespace kvreplay
