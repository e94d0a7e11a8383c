#include "survey/survey.hpp"

#include <mutex>
#include <optional>

#include "base/threads.hpp"

namespace kvreplay {
namespace {

UnitSurvey survey_head(const SurveyUnit& unit, const HeadStream<double>& stream, bool rope_recorded, uint32_t seed) {
  UnitSurvey result{unit, {}, survey_attention(stream)};
  const Rng rng{seed, unit.prompt_rank, uint32_t(unit.place.layer), uint32_t(unit.place.kv_head), {}};
  for (const PointView& view : views_of(stream, rope_recorded)) result.views.push_back(survey_points(view, rng));
  return result;
}

}  // namespace

std::vector<UnitSurvey> survey_trace(const Trace& trace, const std::vector<SurveyUnit>& units,
                                     const SurveyOptions& options) {
  std::vector<std::optional<UnitSurvey>> found(units.size());
  FirstError error;
  std::mutex reading, reporting;  // HDF5 has one lock
  const auto survey = [&](const SurveyUnit& unit) {
    std::unique_lock lock(reading);
    const bool rope_recorded = trace.layer(unit.place.prompt, unit.place.layer).rope_recorded;
    const HeadStream<double> stream = load_head<double>(trace, {unit.place, unit.extent});
    lock.unlock();
    return survey_head(unit, stream, rope_recorded, options.seed);
  };
  const auto report = [&](const std::function<void(size_t)>& to, size_t unit) {
    const std::lock_guard lock(reporting);
    if (to) to(unit);
  };
  for_each_on_threads(options.jobs, units.size(), error, [&](size_t i) {
    if (options.stop && options.stop()) return;
    report(options.on_start, i);
    found[i] = survey(units[i]);
    report(options.on_done, i);
  });
  std::vector<UnitSurvey> surveys;
  for (std::optional<UnitSurvey>& one : found)
    if (one) surveys.push_back(std::move(*one));
  return surveys;
}

}  // namespace kvreplay
