#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/calibration.hpp"
#include "trace/trace_info.hpp"

// Statistics of queries, as calibration files hold them (docs/formats.md).

namespace kvreplay {

// Statistics of all heads of one layer. Statistics that were not requested are empty.
struct CalibrationLayer {
  std::vector<double> q_mean, q_abs_mean, q_rest_mean;  // [Hq, F, 2], [Hq, F], [Hq, d - 2F]
  std::vector<double> q_dir;                            // [Hkv, d]
  std::vector<int32_t> channel_rank;                    // [Hq, d]
  std::vector<double> q_mean_full, q_cov;               // [Hq, d], [Hq, d, d]
};
// The trace and prompts whose queries were used.
struct CalibrationOrigin {
  std::string trace_id;
  std::vector<std::string> prompts;
  int64_t count = 0;                            // query rows used
  int32_t sinks = StatisticsNeeds::kNoMoments;  // first rows of each prompt that q_mean_full and q_cov leave out
};

// Both throw ConfigError, which names file, dataset, value and remedy.
CalibrationOrigin read_calibration_origin(const std::filesystem::path& file);
CalibrationLayer read_calibration_layer(const std::filesystem::path& file, const LayerInfo& layer,
                                        StatisticsNeeds needs);
void write_calibration_file(const std::filesystem::path& file, const CalibrationOrigin& origin,
                            const std::vector<std::pair<LayerInfo, CalibrationLayer>>& layers);

// Describes why a file's statistics for this layer cannot be read, or "". A damaged file cannot crash this process.
std::string calibration_file_problem(const std::filesystem::path& file, const LayerInfo& layer, StatisticsNeeds needs);

}  // namespace kvreplay
