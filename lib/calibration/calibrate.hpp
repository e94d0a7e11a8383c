#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "calibration/known_queries.hpp"
#include "core/calibration.hpp"
#include "core/place.hpp"
#include "trace/tensors.hpp"

// Statistics of other text than the prompt that is replayed: of other prompts of its trace, or of a file
// (trace/calibration_file.hpp).

namespace kvreplay {

// Every recorded row of a prompt, of the query heads first_head .. of a layer.
QueryRows rows_of(const Tensors& trace, const std::string& prompt, int32_t layer, int32_t first_head);

// What is known of the query heads of `place` (one kv head's, or a whole layer's). Throws TraceError or ConfigError;
// why_not_known() says all of it beforehand.
KnownQueries known_queries(const Tensors& trace, const Place& place, const Calibration& calibration,
                           StatisticsNeeds needs);

// What is wrong with a calibration of a prompt's layer, or "".
std::string why_not_known(const TraceInfo& trace, const PromptInfo& prompt, const LayerInfo& layer,
                          const Calibration& calibration, StatisticsNeeds needs);

// Writes what is known of these prompts' queries, all layers of the trace. Throws ConfigError, TraceError, OutputError.
void write_calibration(const Tensors& trace, const std::vector<std::string>& prompts,
                       const std::filesystem::path& file);

}  // namespace kvreplay
