#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "options.hpp"

namespace kvreplay::app {

// The command line of `run`. Everything that a configuration can say becomes an override of it, so a
// TRACE on the command line is a configuration without a file.
struct RunChoices {
  ConfigOptions config;
  std::string out, jobs, device;
  std::string methods, budget, layers, prompts, kv_heads, prefill, tokens, seeds, save, precision;
  bool dry_run = false, force = false, fail_fast = false, keep_going = false;
  std::string progress = "auto";
};

void add_run_options(CLI::App& command, RunChoices& choices);

// Empty when a trace was named instead of a configuration. Throws ConfigError when nothing was named.
std::filesystem::path config_file(const RunChoices& choices);
std::vector<std::string> overrides_of(const RunChoices& choices);

// "64,256" -> tokens, "5%,10%" or "0.05,0.1" -> fraction_kept; as an override. Throws ConfigError on a
// mixture.
std::string budget_override(const std::string& text);

}  // namespace kvreplay::app
