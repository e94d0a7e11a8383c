#include "sweep.hpp"

#include <fmt/format.h>

#include <charconv>

#include "base/errors.hpp"
#include "meta.hpp"
#include "results/shards.hpp"

namespace kvreplay::app {

void add_out_option(CLI::App& command, std::string& out) {
  command.add_option("out,-o,--out", out, "the sweep's directory, where `sweep plan` has put its plan")
      ->type_name("DIR")
      ->required();
}

ResultsFolder results_of(const std::string& out, const Manifest& manifest) {
  return {out, manifest.save, build_of(build_record())};
}

int64_t parse_duration(const std::string& option, const std::string& text) {
  const std::map<char, int64_t> units = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  constexpr int64_t kMost = 1'000'000;
  int64_t seconds = 0;
  const char *at = text.data(), *end = at + text.size();
  bool sound = at != end;
  while (sound && at != end) {
    int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    const auto unit = error == std::errc() && next != end ? units.find(*next) : units.end();
    sound = unit != units.end() && number >= 0 && number <= kMost;
    if (sound) seconds += number * unit->second, at = next + 1;
  }
  if (sound && seconds > 0) return seconds;
  throw ConfigError(fmt::format("{} {}: must be a time, for example 90s, 50m or 1h30m", option, text));
}

void add_sweep(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* sweep = app.add_subcommand("sweep", "the same cells over many machines");
  sweep->require_subcommand(0, 1);
  sweep->footer(
      "examples:\n"
      "  kvreplay sweep plan configs/quickstart.yaml -o out/first\n"
      "  kvreplay sweep submit out/first --engine local --workers 4\n"
      "  kvreplay sweep submit out/first --engine slurm --time 1h -j 8\n");
  add_sweep_plan(*sweep, commands);
  add_sweep_work(*sweep, commands);
  add_sweep_status(*sweep, commands);
  add_sweep_merge(*sweep, commands);
  add_sweep_submit(*sweep, commands);
  commands.push_back({sweep, [sweep](Context&) {
                        print(sweep->help());
                        return 0;
                      }});
}

}  // namespace kvreplay::app
