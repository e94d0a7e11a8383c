#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/method_context.hpp"
#include "core/place.hpp"
#include "survey/attention_shape.hpp"
#include "survey/point_view.hpp"
#include "trace/trace.hpp"

// Properties of a trace that do not depend on a method.

namespace kvreplay {

struct SurveyUnit {
  Place place;
  uint32_t prompt_rank = 0;  // rank of the prompt id among the trace's sorted ids
  Extent extent;             // both at least 1
};

struct UnitSurvey {
  SurveyUnit unit;
  std::vector<Clusterability> views;
  AttentionShape attention;
};

struct SurveyOptions {
  uint32_t seed = 0;  // seed of the pairs for the median distance
  int jobs = 1;
  // Called from any thread, but never concurrently; `unit` is an index into the units.
  std::function<void(size_t unit)> on_start, on_done;
  std::function<bool()> stop;  // checked before each unit
};

// Surveys the units and returns the results in their order, equal for any number of jobs. Units that a stop skipped are
// missing from the result. Throws TraceError.
std::vector<UnitSurvey> survey_trace(const Trace& trace, const std::vector<SurveyUnit>& units,
                                     const SurveyOptions& options);

}  // namespace kvreplay
