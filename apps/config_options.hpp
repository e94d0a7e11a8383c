#pragma once
#include <string>
#include <vector>

#include "apps/command_line.hpp"
#include "trace/trace.hpp"

namespace kvreplay::app {

// Options that several commands share. Each add_* declares one group on one command.
struct ConfigOptions {
  std::string file;               // positional, or -c
  std::vector<std::string> sets;  // KEY=VALUE
};
void add_config_options(Command& command, ConfigOptions& options, const std::string& what);

// `key=value` for the configuration, with the value as a YAML text whatever it holds.
std::string text_override(const std::string& key, const std::string& value);
// "a,b" -> ["a", "b"] as a YAML list of texts, or of plain numbers.
std::string list_override(const std::string& key, const std::string& comma_list, bool texts);

// HDF5 by its first bytes, or by its name when it does not exist.
bool looks_like_trace(const std::string& file);
// Trace(file), but a missing file is told with what lies near it. Throws TraceError.
Trace open_trace(const std::string& file);

}  // namespace kvreplay::app
