#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/sweep/sweep.hpp"
#include "base/errors.hpp"
#include "plan/estimate.hpp"
#include "sweep/shard.hpp"

// `kvreplay sweep status`: the progress of a sweep, and what is left.

namespace kvreplay::app {
namespace {

struct StatusChoices {
  std::string out;
  bool missing_array = false, json = false;
  int32_t shards = 0;
};

std::string status_text(const std::string& out, const Manifest& manifest, const SweepStatus& s) {
  std::string text = fmt::format("plan      {} ({})\n", manifest.name, manifest.run_name);
  const auto add = [&](const char* name, int64_t count, const std::string& more) {
    text += fmt::format("{:<9} {}{}\n", name, count, more);
  };
  const auto add_if_any = [&](const char* name, int64_t count, const std::string& more) {
    if (count > 0) add(name, count, more);
  };
  add("cells", s.cells, fmt::format(" in {} units", manifest.units.size()));
  add("ok", s.ok, "");
  add("missing", s.missing, "");
  add_if_any("failed", s.failed, " will be tried again");
  add_if_any("parked", s.parked, fmt::format(" failed {} times; sweep work --retry-parked tries again", kMostAttempts));
  add_if_any("stale", s.stale, " of another build; sweep work --stale replays them");
  add_if_any("repeated", s.repeated, " lines of cells that were there already");
  add_if_any("damaged", s.damaged, " lines that are ignored");
  const std::string left =
      s.complete() ? "nothing: kvreplay sweep merge " + out : "about " + core_time_text(core_seconds(s.cost_left));
  return fmt::format("{}left      {}\n", text, left);
}

nlohmann::json status_json(const Manifest& manifest, const SweepStatus& s) {
  return {{"plan", manifest.name},    {"units", manifest.units.size()},
          {"cells", s.cells},         {"ok", s.ok},
          {"failed", s.failed},       {"parked", s.parked},
          {"missing", s.missing},     {"stale", s.stale},
          {"repeated", s.repeated},   {"damaged", s.damaged},
          {"complete", s.complete()}, {"core_s_left", core_seconds(s.cost_left)}};
}

int status(const StatusChoices& choices) {
  if (choices.missing_array && choices.shards < 1)
    throw ConfigError("--missing-array needs --shards N, the number that the workers were given: --shard i/N");
  const Sweep sweep = sweep_in(choices.out);
  if (choices.missing_array) {
    print(ranges_text(sweep.missing(choices.shards)) + "\n");
    return 0;
  }
  print(choices.json ? status_json(sweep.manifest, sweep.status).dump(2) + "\n"
                     : status_text(choices.out, sweep.manifest, sweep.status));
  return 0;
}

}  // namespace

void add_sweep_status(Command& sweep) {
  Command command = sweep.command("status", "how many cells are done, failed, missing");
  const auto choices = std::make_shared<StatusChoices>();
  add_out_option(command, choices->out);
  command.flag("--missing-array", choices->missing_array,
               "only the shards that are not done, as sbatch --array takes them: 0-3,7");
  command.option("--shards", choices->shards, "N of --shard i/N, for --missing-array").type("N").within(1, 1e6);
  command.flag("--json", choices->json, "as JSON");
  command.footer(sweep_example("status out/first"));
  command.runs([choices](Context&) { return status(*choices); });
}

}  // namespace kvreplay::app
