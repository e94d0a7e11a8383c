#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/commands.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "calibration/calibrate.hpp"
#include "trace/trace.hpp"

// `kvreplay calibrate`: writes the query statistics of a model, from a trace, for methods that need them.

namespace kvreplay::app {
namespace {

struct CalibrateChoices {
  std::string trace, out, prompts;
  int32_t sinks = kCalibrationSinks;
  bool force = false;
};

std::vector<std::string> chosen_prompts(const Trace& trace, const std::string& list) {
  const std::vector<std::string> held = trace.info().prompt_ids();
  if (list.empty()) return held;
  const std::vector<std::string> chosen = split_list(list);
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (std::find(held.begin(), held.end(), chosen[i]) == held.end()) throw ConfigError(trace.info().lacks(chosen[i]));
    if (std::find(chosen.begin(), chosen.begin() + int64_t(i), chosen[i]) != chosen.begin() + int64_t(i))
      throw ConfigError(fmt::format("--prompts names {} twice: remove one", chosen[i]));
  }
  return chosen;
}

int calibrate(const CalibrateChoices& choices, Console& console) {
  std::error_code ignored;
  if (!choices.force && std::filesystem::exists(choices.out, ignored))
    throw ConfigError(
        fmt::format("{}: exists; overwrite it with --force, or choose another file with -o", choices.out));
  const Trace trace(choices.trace);
  const std::vector<std::string> prompts = chosen_prompts(trace, choices.prompts);
  write_calibration(trace, prompts, choices.out, choices.sinks);
  console.note(fmt::format("wrote {}, from {}", choices.out, join(prompts)));
  return 0;
}

}  // namespace

void add_calibrate(Command& app) {
  const auto choices = std::make_shared<CalibrateChoices>();
  Command command = app.command(
      "calibrate",
      "statistics of a trace's queries, for methods with calibration: file:FILE on other text of the model");
  command.option("trace", choices->trace, "the trace").required().type("TRACE");
  command.option("-o,--out", choices->out, "the file to write").required().type("FILE");
  command.option("--prompts", choices->prompts, "prompts by id, separated by commas (default: all)").type("IDS");
  command.option("--sinks", choices->sinks, "first rows of each prompt that mean and covariance leave out")
      .within(0, 1 << 30)
      .shows_default();
  command.flag("--force", choices->force, "overwrite FILE (default: it is kept, exit code 2)");
  command.footer(
      "examples:\n"
      "  kvreplay calibrate texts.h5 -o model.h5\n"
      "  kvreplay calibrate texts.h5 -o model.h5 --prompts manual,story\n"
      "then in a configuration: {name: triattention, calibration: \"file:model.h5\"}\n");
  command.runs([choices](Context& context) { return calibrate(*choices, context.console); });
}

}  // namespace kvreplay::app
