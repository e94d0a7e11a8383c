#pragma once
#include <string>
#include <vector>

#include "apps/config_options.hpp"
#include "results/folder.hpp"
#include "sweep/manifest.hpp"
#include "sweep/shard.hpp"

// `kvreplay sweep ...`: common part of its commands.

namespace kvreplay::app {

void add_sweep_plan(Command& sweep);
void add_sweep_work(Command& sweep);
void add_sweep_status(Command& sweep);
void add_sweep_merge(Command& sweep);
void add_sweep_submit(Command& sweep);

// Footer of a command's --help.
std::string sweep_example(const std::string& words);

// The directory of a sweep, as the positional OUT or -o.
void add_out_option(Command& command, std::string& out);

// The results published in it; creates and changes nothing.
ResultsFolder results_of(const std::string& out, const Manifest& manifest);

// The state of a sweep when it was read.
struct Sweep {
  std::string out;  // absolute
  Manifest manifest;
  ResultsFolder folder;
  SweepStatus status;
  // Those of `shards` that are not done.
  std::vector<int32_t> missing(int32_t shards) const { return missing_shards(manifest, folder, shards); }
  // Rounds to a number of shards, from 1 to the number of units.
  int32_t at_most_units(double shards) const;
};
Sweep sweep_in(const std::string& out);

// "12 core-seconds", "3.4 core-hours"
std::string core_time_text(double core_seconds);

// Seconds of "90s", "50m", "1h30m", "2d", "01:30:00", "1-12:00:00". Throws ConfigError that names the option.
int64_t parse_duration(const std::string& option, const std::string& text);

// Writes the tables of a sweep and prints a summary. Returns the exit code of `sweep merge`.
int merge_sweep(const Sweep& sweep, bool partial, Context& context);

}  // namespace kvreplay::app
