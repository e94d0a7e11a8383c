#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/run_config.hpp"

namespace kvreplay::app {

// What every published cell carries besides its measures.
nlohmann::json cell_record(const RunConfig& config);

// What results.meta.json says of a run.
nlohmann::json run_record(const RunConfig& config, const std::vector<TraceInfo>& traces, int jobs,
                          const std::string& command_line);

std::string version_text();  // "kvreplay 0.1.0 (commit ..., HDF5 ..., GCC ...)"

}  // namespace kvreplay::app
