#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "apps/config_options.hpp"
#include "base/refusal.hpp"
#include "catalog/cell.hpp"
#include "config/run_config.hpp"
#include "sizing/shares.hpp"

namespace kvreplay::app {

// The command line of `run`. Each option becomes an override of the configuration, so a TRACE on the command line is a
// configuration without a file.
constexpr const char* kPrefillHelp =
    "tokens that arrive in the one prompt call, or a share of them: 768 or 75% (default: as recorded)";

struct RunChoices {
  ConfigOptions config;
  std::string out, jobs, device;
  std::string methods, budget, of, layers, prompts, kv_heads, prefill, tokens, seeds, save, precision, only;
  bool dry_run = false, force = false, plan_only = false, fail_fast = false, keep_going = false;
  std::string progress = "auto";
  bool predicts = false;  // save projections if all prompts have a gradient, so that losses in nats can be predicted
};

void add_run_options(Command& command, RunChoices& choices);
// Adds the options that select what is replayed.
void add_plan_options(Command& command, RunChoices& choices);
void add_progress_option(Command& command, std::string& progress);

// Whether a trace was named instead of a configuration.
bool names_a_trace(const RunChoices& choices);
// Empty if a trace was named instead of a configuration. Throws ConfigError if nothing was named.
std::filesystem::path config_file(const RunChoices& choices);
std::vector<std::string> overrides_of(const RunChoices& choices);
// Loads the configuration, its traces and their selected parts. Prints warnings.
LoadedRun load_run(const RunChoices& choices, Console& console);
// Solves budgets that are shares of the cache, by replaying, and prints remarks. Does nothing if no shares were asked
// for.
SolvedShares solve_shares(LoadedRun& loaded, Console& console);
// The run's cells, or those that --only names.
std::vector<Cell> planned(const RunChoices& choices, const LoadedRun& loaded);
// output.dir, else out/NAME.
std::filesystem::path output_of(const RunConfig& config);

// Override for "64,256" (tokens) or "5%,10%" (share_of_cache). Throws ConfigError on anything else.
std::string budget_override(const std::string& text);

// The words of a run that the command line configures alone: options, and --set for keys without an option.
const Wording& option_wording();

}  // namespace kvreplay::app
