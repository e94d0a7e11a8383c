#include "sweep_submit.hpp"

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

namespace {

const CLI::Range kCount(1, 1'000'000);

void add_slurm_options(CLI::App& command, SubmitChoices& choices) {
  const std::string group = "For --engine slurm";
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  add("--time", choices.time, "limit of a task (default: 1h); it ends 2 minutes before", "TIME");
  add("--task-time", choices.task_time, "what a task should take, if --shards is not given (default: 30m)",
      "TIME");
  add("--at-once", choices.at_once, "tasks that run at a time (default: no limit)", "N")->check(kCount);
  add("--array-limit", choices.array_limit, "most tasks of an array on this site (default: 1000)", "N")
      ->check(kCount);
  add("--mem", choices.memory_mb, "memory of a task in MiB (default: estimated)", "MIB")
      ->check(CLI::Range(1, 100'000'000));
  add("--sbatch", choices.sbatch, "another line #SBATCH of the script: --sbatch=--partition=long", "OPTION")
      ->allow_extra_args(false);
  command.add_flag("--wait", choices.wait, "wait for the jobs and write the table")->group(group);
}

}  // namespace

void add_sweep_submit(CLI::App& sweep, std::vector<Command>& commands) {
  CLI::App* command =
      sweep.add_subcommand("submit", "start workers here, or as a Slurm job array, and merge");
  const auto choices = std::make_shared<SubmitChoices>();
  add_out_option(*command, choices->out);
  command->add_option("--engine", choices->engine, "local or slurm")
      ->required()
      ->check(CLI::IsMember({"local", "slurm"}));
  command->add_option("--shards", choices->shards, "parts that the plan is cut into (default: chosen)")
      ->type_name("N")
      ->check(kCount);
  command->add_option("--workers", choices->workers, "processes at a time, for local (default: one a core)")
      ->type_name("N")
      ->check(kCount);
  command->add_option("-j,--jobs", choices->jobs, "threads of a worker (default: 1 for local, 4 for slurm)")
      ->type_name("N")
      ->check(kCount);
  command->add_option("--device", choices->device, "cpu or cuda[:N] (default: as planned)")
      ->type_name("DEVICE");
  command->add_option("--stage", choices->stage, "copy what a worker reads to this folder of its node")
      ->type_name("DIR");
  command->add_option("--rounds", choices->rounds, "how often what is missing is started again (default: 3)")
      ->type_name("N")
      ->check(kCount);
  command->add_flag("-n,--dry-run", choices->dry_run, "only show what would be started");
  add_slurm_options(*command, *choices);
  commands.push_back({command, [choices](Context& context) {
                        return choices->engine == "local" ? submit_local(*choices, context)
                                                          : submit_slurm(*choices, context);
                      }});
}

}  // namespace kvreplay::app
