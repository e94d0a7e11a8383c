#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "apps/config_options.hpp"
#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "sizing/shares.hpp"

namespace kvreplay::app {

// The command line of `run`. Everything that a configuration can say becomes an override of it, so a
// TRACE on the command line is a configuration without a file.
constexpr const char* kPrefillHelp =
    "tokens that arrive in the one prompt call, or a share of them: 768 or 75% (default: as recorded)";

struct RunChoices {
  ConfigOptions config;
  std::string out, jobs, device;
  std::string methods, budget, layers, prompts, kv_heads, prefill, tokens, seeds, save, precision, only;
  bool dry_run = false, force = false, plan_only = false, fail_fast = false, keep_going = false;
  std::string progress = "auto";
  bool prints_table = true;
  bool predicts = false;  // save projections where all prompts have a gradient, so that nats can be predicted
};

void add_run_options(Command& command, RunChoices& choices);
// Those of them that say what is to be replayed.
void add_plan_options(Command& command, RunChoices& choices);
void add_progress_option(Command& command, std::string& progress);

// Whether a trace was named instead of a configuration.
bool names_a_trace(const RunChoices& choices);
// Empty when a trace was named instead of a configuration. Throws ConfigError when nothing was named.
std::filesystem::path config_file(const RunChoices& choices);
std::vector<std::string> overrides_of(const RunChoices& choices);
// The configuration with its traces, and what they select. Warnings are told.
LoadedRun load_run(const RunChoices& choices, Console& console);
// Solves budgets that are shares of the cache, by replaying, and tells what there is to say. Nothing happens where none
// was asked for.
SolvedShares solve_shares(LoadedRun& loaded, Console& console);
// Its cells, or those that --only names.
std::vector<Cell> planned(const RunChoices& choices, const LoadedRun& loaded);
// output.dir, else out/NAME.
std::filesystem::path output_of(const RunConfig& config);

// "64,256" -> tokens, "5%,10%" -> share_of_cache; as an override. Throws ConfigError on anything else.
std::string budget_override(const std::string& text);

}  // namespace kvreplay::app
