#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/method_context.hpp"
#include "core/place.hpp"
#include "survey/attention_shape.hpp"
#include "survey/point_view.hpp"
#include "trace/trace.hpp"

// What a trace is like, whatever the method.

namespace kvreplay {

struct SurveyUnit {
  Place place;
  uint32_t prompt_rank = 0;  // of the prompt id among the trace's sorted ids
  Extent extent;             // both at least 1
};

struct UnitSurvey {
  SurveyUnit unit;
  std::vector<Clusterability> views;
  AttentionShape attention;
};

struct SurveyOptions {
  uint32_t seed = 0;  // of the pairs behind the median distance
  int jobs = 1;
  // Called from any thread, one at a time; `unit` is an index into the units.
  std::function<void(size_t unit)> on_start, on_done;
  std::function<bool()> stop;  // asked before each unit
};

// Surveys in the order of the units, the same for any number of jobs; those after a stop are missing from the
// result, whatever their place. Throws TraceError.
std::vector<UnitSurvey> survey_trace(const Trace& trace, const std::vector<SurveyUnit>& units,
                                     const SurveyOptions& options);

}  // namespace kvreplay
