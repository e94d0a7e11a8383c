#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/devices.hpp"
#include "apps/offered/registry.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "config/run_config.hpp"
#include "measures/metrics.hpp"
#include "plan/plan.hpp"
#include "survey/recorded_output.hpp"
#include "survey/suspicious_numbers.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"

// `kvreplay inspect TRACE` and `kvreplay validate FILE`: check files without running anything.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

struct InspectChoices {
  std::string file;
  bool json = false;
};

int inspect(const InspectChoices& choices) {
  const Trace trace = open_trace(choices.file);
  print(choices.json ? inspect_json(trace) + "\n" : inspect_text(trace));
  return 0;
}

struct ValidateChoices {
  ConfigOptions config;
  bool deep = false;
};

// Wrong content is an error, content that is rarely intended a warning.
void check_deep(const Trace& trace, const std::string& file, Console& console) {
  std::vector<std::string> problems = deep_check(trace);
  for (std::string& problem : problems)
    if (!problem.starts_with(file)) problem = fmt::format("{}: {}", file, problem);
  if (!problems.empty()) throw TraceError(join(problems, "\n"));
  problems = wrong_outputs(trace);
  for (const auto& warnings : {unknown_names(trace), swapped_axes(trace.info()), odd_positions(trace.info()),
                               far_scalings(trace.info()), suspicious_numbers(trace)})
    for (const std::string& warning : warnings) console.warning(warning);
  if (!problems.empty()) throw TraceError(join(problems, "\n"));
}

int validate_trace(const ValidateChoices& choices, Console& console) {
  const Trace trace = open_trace(choices.config.file);
  if (choices.deep) check_deep(trace, choices.config.file, console);
  print(fmt::format("{}: a sound trace{}\n", choices.config.file, choices.deep ? ", every number read" : ""));
  return 0;
}

int validate_config(const ValidateChoices& choices, Console& console) {
  const LoadedRun loaded = load_run(choices.config.file, choices.config.sets, known_methods(), metric_names());
  for (const std::string& warning : loaded.config.warnings) console.warning(warning);
  require_device(loaded.config);
  if (choices.deep)
    for (const fs::path& path : loaded.config.traces) check_deep(Trace(path), path.string(), console);
  if (loaded.config.budget.has_shares())  // the number of cells is known only after replaying
    print(fmt::format("{}: a sound configuration, with budgets that are shares of the cache\n", choices.config.file));
  else print(fmt::format("{}: a sound configuration of {} cells\n", choices.config.file, plan_cells(loaded).size()));
  return 0;
}

}  // namespace

void add_inspect(Command& app) {
  const auto shown = std::make_shared<InspectChoices>();
  Command command = app.command("inspect", "a trace: model, prompts, layers, heads, tokens, dtypes, sizes, checks");
  command.option("trace", shown->file, "a trace (HDF5)").required().type("TRACE");
  command.flag("--json", shown->json, "as JSON");
  command.runs([shown](Context&) { return inspect(*shown); });

  const auto checked = std::make_shared<ValidateChoices>();
  Command validate = app.command("validate", "check a configuration or a trace without running");
  add_config_options(validate, checked->config, "a configuration (YAML) or a trace (HDF5)");
  validate.flag("--deep", checked->deep,
                "read every tensor, verify checksums, recompute rows of out, warn of usual mistakes");
  validate.runs([checked](Context& context) {
    if (checked->config.file.empty())
      throw ConfigError("validate needs a file: kvreplay validate configs/quickstart.yaml");
    const bool trace = looks_like_trace(checked->config.file);
    return trace ? validate_trace(*checked, context.console) : validate_config(*checked, context.console);
  });
}

}  // namespace kvreplay::app
