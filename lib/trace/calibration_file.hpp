#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/query_statistics.hpp"
#include "trace/trace_info.hpp"

// Statistics of queries as a file holds them (docs/formats.md, calibration files).

namespace kvreplay {

// One layer, all heads. What was not asked for is empty.
struct CalibrationLayer {
  std::vector<double> q_mean, q_abs_mean, q_rest_mean;  // [Hq, F, 2], [Hq, F], [Hq, d - 2F]
  std::vector<double> q_dir;                            // [Hkv, d]
  std::vector<int32_t> channel_rank;                    // [Hq, d]
};
// Whose queries they are of.
struct CalibrationOrigin {
  std::string trace_id;
  std::vector<std::string> prompts;
  int64_t count = 0;  // rows
};

// Both throw ConfigError that names file, dataset, value and remedy.
CalibrationOrigin read_calibration_origin(const std::filesystem::path& file);
CalibrationLayer read_calibration_layer(const std::filesystem::path& file, const LayerInfo& layer,
                                        StatisticsNeeds needs);
void write_calibration_file(const std::filesystem::path& file, const CalibrationOrigin& origin,
                            const std::vector<std::pair<LayerInfo, CalibrationLayer>>& layers);

// What is wrong with how a file holds this layer, found without risk to this process; "" if nothing is.
std::string why_no_calibration(const std::filesystem::path& file, const LayerInfo& layer, StatisticsNeeds needs);

}  // namespace kvreplay
