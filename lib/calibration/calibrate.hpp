#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/refusal.hpp"
#include "calibration/known_queries.hpp"
#include "core/calibration.hpp"
#include "core/place.hpp"
#include "trace/tensors.hpp"

// Statistics of queries from other text than the replayed prompt: from other prompts of its trace, or from a file
// (trace/calibration_file.hpp).

namespace kvreplay {

// Every recorded row of a prompt, for the query heads of a layer from first_head on.
QueryRows rows_of(const Tensors& trace, const std::string& prompt, int32_t layer, int32_t first_head);

// Statistics of the query heads of `place` (one kv head's, or a whole layer's). Throws TraceError or ConfigError;
// calibration_obstacle() reports the same problems beforehand.
KnownQueries known_queries(const Tensors& trace, const Place& place, const Calibration& calibration,
                           StatisticsNeeds needs);

// Describes why this calibration cannot serve a layer of a prompt; empty if it can.
Refusal calibration_obstacle(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                             const Calibration& calibration, StatisticsNeeds needs, const Wording& words);

// Writes the statistics of these prompts' queries for all layers of the trace; mean and covariance leave out the first
// `sinks` rows of each prompt. Throws ConfigError, TraceError, OutputError.
constexpr int32_t kCalibrationSinks = 4;
void write_calibration(const Tensors& trace, const std::vector<std::string>& prompts, const std::filesystem::path& file,
                       int32_t sinks = kCalibrationSinks);

}  // namespace kvreplay
