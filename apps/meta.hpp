#pragma once
#include <string>
#include <vector>

#include "base/json_text.hpp"
#include "results/columns.hpp"

namespace kvreplay::app {

// Identifies this build of the program.
ProcessRecord build_record();
// Facts that every published cell carries besides its measures. `precision`: single or double.
ProcessRecord process_record(const std::string& precision, const std::string& device);

// The part of results.meta.json about how a table was made. `config`, resolved, and `traces`, from trace_records(), are
// JSON.
JsonObject run_record(const std::string& config, const std::string& traces, const std::string& command_line);
// JSON list of traces; each element needs path, trace_id and model.
template <class Traces>
std::string trace_records(const Traces& traces) {
  std::string records;
  for (const auto& t : traces)
    records += (records.empty() ? "" : ",") +
               JsonObject().add("path", t.path.string()).add("trace_id", t.trace_id).add("model", t.model).text();
  return "[" + records + "]";
}

std::string version_text();  // "kvreplay 0.1.0 (commit ..., HDF5 ..., GCC ...)"

}  // namespace kvreplay::app
