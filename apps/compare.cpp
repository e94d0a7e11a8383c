#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "apps/commands.hpp"
#include "apps/exit_codes.hpp"
#include "apps/interpreter.hpp"
#include "apps/run.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "results/folder.hpp"

// `kvreplay compare`: who loses least at equal bytes. A trace or a configuration is replayed at the shares first;
// `python -m kvanalysis compare` answers from the results.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

// What people choose between, each as its paper has it.
constexpr const char* kContenders =
    "h2o,tova,scissorhands,buzz,streaming_llm,snapkv,pyramidkv,adakv,expected_attention,knorm,keydiff,lagkv,balancekv,"
    "subgen,uniform,window";

struct CompareChoices {
  std::string place, at, of = "peak", layers, measure, phase;
  RunChoices run;
};

// "20%" of "20%" and of "0.2". Throws ConfigError on what is no share.
std::string percent_of(const std::string& share) {
  const bool percent = share.ends_with('%');
  const auto number = number_in<double>(share.substr(0, share.size() - (percent ? 1 : 0)));
  const double value = number ? (percent ? *number : 100 * *number) : 0;
  if (value > 0 && value <= 100) return fmt::format("{:.10g}%", value);
  const bool meant = number && !percent && *number > 1 && *number <= 100;
  throw ConfigError(fmt::format("--at {}: write a share of the full cache's bytes, as 20% or 0.2{}", share,
                                meant ? fmt::format("; {0} %? write {0}%", share) : ""));
}

std::string budgets_at(const std::string& at) {
  std::vector<std::string> shares;
  for (const std::string& share : split_list(at)) shares.push_back(percent_of(share));
  return join(shares, ",");
}

// Budgets of one table are shares of the same bytes.
fs::path default_folder(const CompareChoices& choices) {
  const std::string of = choices.of == "peak" ? "" : "-" + choices.of;
  return fs::path("out") / ("compare-" + fs::path(choices.place).stem().string() + of);
}

// Replays what is missing; the exit code.
int replay(CompareChoices& choices, Context& context) {
  choices.run.config.file = choices.place;
  choices.run.budget = budgets_at(choices.at);
  choices.run.config.sets.push_back("budget.of=" + choices.of);
  choices.run.prints_table = false;
  if (names_a_trace(choices.run)) {
    if (choices.run.methods.empty()) choices.run.methods = kContenders;
    choices.run.predicts = true;
  }
  if (choices.run.out.empty()) choices.run.out = default_folder(choices).string();
  return run(choices.run, context);
}

void require_results(const fs::path& place) {
  if (holds_table(place)) return;
  throw ConfigError(
      fmt::format("{}: holds no results.csv. compare takes the output directory of a run, a trace or a configuration",
                  place.string()));
}

int compare(CompareChoices& choices, Context& context) {
  fs::path results = choices.place;
  const std::string methods = choices.run.methods;  // as asked for
  if (std::error_code ignored; fs::is_directory(results, ignored)) {
    require_results(results);
    const RunChoices& run = choices.run;
    if (!run.out.empty() || !run.jobs.empty() || !run.seeds.empty() || !run.prefill.empty())
      throw ConfigError(
          fmt::format("{}: is replayed already: --out, --jobs, --seeds and --prefill belong to a trace or a "
                      "configuration",
                      results.string()));
  } else {
    const int code = replay(choices, context);
    if (code != 0 && code != kSomeFailed) return code;
    results = choices.run.out;
  }
  std::vector<std::string> words = {"compare", results.string(), "--at=" + choices.at, "--of=" + choices.of};
  if (!choices.layers.empty()) words.push_back("--layers=" + choices.layers);
  if (!choices.measure.empty()) words.push_back("--measure=" + choices.measure);
  if (!choices.phase.empty()) words.push_back("--phase=" + choices.phase);
  if (!methods.empty()) words.push_back("--methods=" + methods);
  return become_python("kvanalysis", {"numpy", "pandas", "scipy"}, words);
}

}  // namespace

void add_compare(Command& app) {
  const auto choices = std::make_shared<CompareChoices>();
  Command command = app.command("compare", "which method loses least at equal bytes, and is the difference real");
  command
      .option("place", choices->place, "output directory of a run; or a trace, or a configuration, which is replayed")
      .required()
      .type("OUT|TRACE|CONFIG");
  command.option("--at", choices->at, "shares of the full cache's bytes: 20%, or 10%,20%,40%")
      .required()
      .type("SHARES");
  command
      .option("--of", choices->of,
              "which bytes: those at the peak (default), the mean over steps, or those of the prompt after its cut, "
              "as papers count the compression of one-shot methods")
      .one_of({"peak", "mean", "prompt"});
  command.option("--layers", choices->layers, "these layers only: 0,15-29 (default: all)").type("LIST");
  command
      .option("--measure", choices->measure,
              "nats (predicted from a gradient in the trace: the default where all methods have them), distance "
              "(squared cosine distance: else the default), error, cosine, or a column in which less is better")
      .type("NAME");
  command.option("--phase", choices->phase, "methods of this phase only").one_of({"stream", "oneshot"});
  RunChoices& run = choices->run;
  command.option("--method", run.methods, fmt::format("these methods only (default of a trace: {})", kContenders))
      .type("LIST");
  const std::string group = "With a trace or a configuration";
  command.option("-o,--out", run.out, "where results go (default: out/compare-NAME)").type("DIR").group(group);
  command.option("-j,--jobs", run.jobs, "threads (default: all cores)").type("N").group(group);
  command.option("--seeds", run.seeds, "seeds of the random methods (default: 5)").type("N").group(group);
  command.option("--prefill", run.prefill, kPrefillHelp).type("N|SHARE").group(group);
  command.runs([choices](Context& context) { return compare(*choices, context); });
}

}  // namespace kvreplay::app
