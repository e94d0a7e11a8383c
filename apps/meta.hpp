#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/run_config.hpp"

namespace kvreplay::app {

// What every published cell carries besides its measures. `precision`: single or double.
nlohmann::json cell_record(const std::string& precision, const std::string& device);
// The part of it that names this build of the program.
nlohmann::json build_record();

// What results.meta.json says of the making of a table: `config` is resolved, `traces` made by
// trace_records.
nlohmann::json run_record(const nlohmann::json& config, const nlohmann::json& traces,
                          const std::string& command_line);
// Of a list of what has path, trace_id and model.
template <class Traces>
nlohmann::json trace_records(const Traces& traces) {
  nlohmann::json records = nlohmann::json::array();
  for (const auto& t : traces)
    records.push_back({{"path", t.path.string()}, {"trace_id", t.trace_id}, {"model", t.model}});
  return records;
}

std::string version_text();  // "kvreplay 0.1.0 (commit ..., HDF5 ..., GCC ...)"

}  // namespace kvreplay::app
