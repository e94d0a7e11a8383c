#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "console.hpp"
#include "trace/trace.hpp"

namespace kvreplay::app {

// What every command gets.
struct Context {
  Console console;
  std::string command_line;
};

struct Command {
  CLI::App* parser;
  std::function<int(Context&)> run;  // returns the exit code
};

// Options that several commands share. Each add_* declares one group on one command.
struct ConfigOptions {
  std::string file;               // positional, or -c
  std::vector<std::string> sets;  // KEY=VALUE
};
void add_config_options(CLI::App& command, ConfigOptions& options, const std::string& what);

// `key=value` for the configuration, with the value as a YAML text whatever it holds.
std::string text_override(const std::string& key, const std::string& value);
// "a,b" -> ["a", "b"] as a YAML list of texts, or of plain numbers.
std::string list_override(const std::string& key, const std::string& comma_list, bool texts);

// HDF5 by its first bytes, or by its name when it does not exist.
bool looks_like_trace(const std::string& file);
// Trace(file), but a missing file is told with what lies near it. Throws TraceError.
Trace open_trace(const std::string& file);

// One registration a file of commands. The option values live as long as the parser.
void add_run(CLI::App& app, std::vector<Command>& commands);
void add_sweep(CLI::App& app, std::vector<Command>& commands);
void add_list(CLI::App& app, std::vector<Command>& commands);
void add_inspect(CLI::App& app, std::vector<Command>& commands);
void add_synth(CLI::App& app, std::vector<Command>& commands);
void add_cluster(CLI::App& app, std::vector<Command>& commands);
void add_report(CLI::App& app, std::vector<Command>& commands);
void add_bounds(CLI::App& app, std::vector<Command>& commands);
void add_bench(CLI::App& app, std::vector<Command>& commands);

}  // namespace kvreplay::app
