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

// `key=value` for the configuration. The value is quoted as a YAML text, so it may contain any characters.
std::string text_override(const std::string& key, const std::string& value);
// "a,b" -> ["a", "b"] as a YAML list of texts, or of plain numbers.
std::string list_override(const std::string& key, const std::string& comma_list, bool texts);

// "0,7,15-29" or "every:4" as a list of numbers; "" and "all" as they are. With a trace a range takes the layers inside
// it that the trace has, and every:4 the layers 0, 4, 8, ... that it has; without one a range is all of its numbers.
// Throws ConfigError if nothing is selected, TraceError for an unreadable trace.
std::string layer_list(const std::string& text, const std::string& trace);
constexpr const char* kLayersHelp = "layers: all (default), 0,7,15-29 or every:4";

// Recognises HDF5 by its first bytes, or by the file's name if it does not exist.
bool looks_like_trace(const std::string& file);
// Trace(file); a missing file is reported with similar names. Throws TraceError.
Trace open_trace(const std::string& file);

}  // namespace kvreplay::app
