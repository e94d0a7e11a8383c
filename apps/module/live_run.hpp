#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace kvreplay::python {

// Serves apps/kvreplay/live_run.py. config, methods: as of replay().
// What the run reads besides queries, keys and values: JSON, named as in config/run_needs.hpp. Throws ConfigError.
std::string needs_json(const std::string& config, nanobind::list methods);
// Notes on rows of several replays that make one table: JSON, as in results.meta.json.
std::string notes_on(const std::vector<std::string>& rows, nanobind::list methods);

}  // namespace kvreplay::python
