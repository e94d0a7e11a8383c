#include "apps/sweep/submit.hpp"

#include <cstdlib>
#include <memory>

#include "base/errors.hpp"

// `kvreplay sweep submit`: workers on this machine, or a job array.

namespace kvreplay::app {

namespace fs = std::filesystem;

std::string this_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) throw OutputError("/proc/self/exe: cannot be read: " + error.message());
  return program.string();
}

std::string command_of_jobs() {
  const char* named = std::getenv("KVREPLAY_COMMAND");
  return named == nullptr || *named == '\0' ? this_program() : named;
}

namespace {

constexpr double kMostCount = 1e6;

void add_slurm_options(Command& command, SubmitChoices& choices) {
  const std::string group = "For --engine slurm";
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return command.option(name, value, help).type(type).group(group);
  };
  add("--time", choices.time, "limit of a task (default: 1h); it ends 2 minutes before", "TIME");
  add("--task-time", choices.task_time, "target time of a task, without --shards (default: 30m)", "TIME");
  add("--at-once", choices.at_once, "tasks that run at a time (default: no limit)", "N").within(1, kMostCount);
  add("--array-limit", choices.array_limit, "most tasks of an array on this site (default: 1000)", "N")
      .within(1, kMostCount);
  add("--mem", choices.memory_mb, "memory of a task in MiB (default: estimated)", "MIB").within(1, 1e8);
  add("--sbatch", choices.sbatch, "another line #SBATCH of the script: --sbatch=--partition=long", "OPTION")
      .one_value();
  command.flag("--wait", choices.wait, "wait for the jobs and write the table").group(group);
}

}  // namespace

void add_sweep_submit(Command& sweep) {
  Command command = sweep.command("submit", "start workers here, or as a Slurm job array, and merge");
  const auto choices = std::make_shared<SubmitChoices>();
  add_out_option(command, choices->out);
  command.option("--engine", choices->engine, "local or slurm").required().one_of({"local", "slurm"});
  command.option("--shards", choices->shards, "parts that the plan is cut into (default: chosen)")
      .type("N")
      .within(1, kMostCount);
  command.option("--workers", choices->workers, "processes at a time, for local (default: one a core)")
      .type("N")
      .within(1, kMostCount);
  command.option("-j,--jobs", choices->jobs, "threads of a worker (default: 1 for local, 4 for slurm)")
      .type("N")
      .within(1, kMostCount);
  command.option("--device", choices->device, "cpu or cuda[:N] (default: as planned)").type("DEVICE");
  command.option("--stage", choices->stage, "copy a worker's files to this folder of its node").type("DIR");
  command.option("--rounds", choices->rounds, "how often missing cells are started again (default: 3)")
      .type("N")
      .within(1, kMostCount);
  command.flag("-n,--dry-run", choices->dry_run, "only show what would be started");
  add_slurm_options(command, *choices);
  command.footer(sweep_example("submit out/first --engine slurm -j 8 --time 2h -n"));
  command.runs([choices](Context& context) {
    return choices->engine == "local" ? submit_local(*choices, context) : submit_slurm(*choices, context);
  });
}

}  // namespace kvreplay::app
