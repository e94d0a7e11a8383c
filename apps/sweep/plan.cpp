#include <fmt/core.h>

#include <memory>
#include <numeric>

#include "apps/earlier_results.hpp"
#include "apps/meta.hpp"
#include "apps/progress.hpp"
#include "apps/remarks.hpp"
#include "apps/run_options.hpp"
#include "apps/sweep/sweep.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "plan/estimate.hpp"
#include "sweep/shard.hpp"

// `kvreplay sweep plan`: turns a configuration into a manifest.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

double mebibytes(int64_t bytes) { return double(bytes) / (1 << 20); }

// Bytes of the layers that the plan names; the worker that replays a layer's heads reads it once.
int64_t bytes_to_read(const std::vector<TraceInfo>& traces) {
  int64_t bytes = 0;
  for (const TraceInfo& trace : traces)
    for (const PromptInfo& prompt : trace.prompts) bytes += bytes_of(prompt);
  return bytes;
}

void tell(const fs::path& file, const Manifest& m, const std::vector<TraceInfo>& traces, const SweepStatus& status) {
  constexpr double kBytesPerRow = 2600;  // a line in the shards
  print(fmt::format(
      "plan    {}\n"
      "cells   {} ({} done) in {} units, each of one kv head or one layer\n"
      "time    about {}\n"
      "memory  about {:.0f} MiB a worker for each of its threads\n"
      "traces  {}, {:.1f} MiB to read\n"
      "results about {:.1f} MiB{}\n",
      file.string(), status.cells, status.ok, m.units.size(), core_time_text(core_seconds(status.cost_left)),
      std::max(1.0, mebibytes(m.bytes_peak)), m.traces.size(), mebibytes(bytes_to_read(traces)),
      mebibytes(int64_t(double(status.cells) * kBytesPerRow)),
      m.save.curves || m.save.kept || m.save.outputs || m.save.projections ? ", and the arrays that are saved" : ""));
}

int plan(const RunChoices& choices, Context& context) {
  LoadedRun loaded = load_run(choices, context.console);
  const SolvedShares shares = solve_shares(loaded, context.console);
  RunConfig config = with_absolute_paths(loaded.config);
  config.output.dir = fs::absolute(output_of(loaded.config)).lexically_normal();
  const fs::path out = output_of(loaded.config);
  const std::vector<Cell> cells = planned(choices, loaded);
  Manifest manifest = make_manifest(config, loaded.traces, cells);
  if (!shares.unreachable.empty()) manifest.unreachable = unreachable_json(config, shares);
  if (!choices.dry_run) refuse_foreign_table(out, choices.force);
  if (choices.force && !choices.dry_run) forget_results(out), forget_manifest(out);
  const ResultsFolder folder = results_of(out.string(), manifest);
  fs::path file = "(not written: dry run)";
  if (!choices.dry_run) {
    with_earlier(folder, cells, {manifest.config, trace_records(loaded.traces)});
    file = write_manifest(out, manifest);
  }
  tell(file, manifest, loaded.traces, status_of(manifest, folder));
  if (!choices.dry_run)
    print(fmt::format("next    kvreplay sweep submit {} --engine local\n", shell_quoted(out.string())));
  return 0;
}

}  // namespace

void add_sweep_plan(Command& sweep) {
  Command command = sweep.command("plan", "write the list of cells that workers share");
  const auto choices = std::make_shared<RunChoices>();
  add_plan_options(command, *choices);
  command.footer(sweep_example("plan configs/quickstart.yaml -o out/first"));
  command.runs([choices](Context& context) { return plan(*choices, context); });
}

}  // namespace kvreplay::app
