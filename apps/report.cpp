#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/interpreter.hpp"
#include "base/errors.hpp"
#include "results/folder.hpp"

// `kvreplay report OUT` and `kvreplay figures OUT|CONFIG`: `python -m kvanalysis` does the work.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

struct ReportChoices {
  std::string place, out;
  std::vector<std::string> traces, sets;
  bool quick = false, force = false;
};

// A figure configuration, or a folder of them.
bool holds_configs(const fs::path& place) {
  std::error_code ignored;
  if (place.extension() == ".yaml" || place.extension() == ".yml") return true;
  for (const auto& entry : fs::directory_iterator(place, ignored))
    if (entry.path().extension() == ".yaml") return true;
  return false;
}

// Made by `kvreplay figures CONFIG -o PLACE`: each configuration has a folder with a figure.json.
bool holds_figures(const fs::path& place) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored))
    if (fs::is_regular_file(entry.path() / "figure.json", ignored)) return true;
  return false;
}

void require_results(const std::string& verb, const std::string& place) {
  const bool report = verb == "report";
  if (holds_table(place) || (report && holds_figures(place))) return;
  throw ConfigError(fmt::format(
      "{}: holds no results.csv{}. {} takes the output directory of a run, or {}", place,
      report ? " and no figures (NAME/figure.json)" : "", verb,
      report ? "the folder that `kvreplay figures CONFIG -o DIR` made" : "a configuration of configs/figures"));
}

std::vector<std::string> words_of(const std::string& verb, const ReportChoices& choices) {
  const bool from_config = verb == "figures" && holds_configs(choices.place);
  std::vector<std::string> words = {from_config ? "figure" : verb, choices.place};
  if (!from_config) return words;
  if (!choices.out.empty()) words.insert(words.end(), {"-o", choices.out});
  for (const std::string& trace : choices.traces) words.insert(words.end(), {"--trace", trace});
  for (const std::string& set : choices.sets) words.insert(words.end(), {"-s", set});
  if (choices.quick) words.emplace_back("--quick");
  if (choices.force) words.emplace_back("--force");
  return words;
}

int analyse(const std::string& verb, const ReportChoices& choices) {
  const std::vector<std::string> words = words_of(verb, choices);
  if (words.front() != "figure") require_results(verb, choices.place);
  return become_python("kvanalysis", {"numpy", "pandas", "scipy", "matplotlib"}, words);
}

}  // namespace

void add_report(Command& app) {
  const auto choices = std::make_shared<ReportChoices>();
  Command report = app.command("report", "one self-contained HTML page of a run, or of a folder of figures");
  report.option("out", choices->place, "output directory of a run; or the folder of `kvreplay figures CONFIG -o DIR`")
      .required()
      .type("OUT");
  Command figures =
      app.command("figures", "figures of a run, or of a configuration in configs/figures (which is run first)");
  figures.option("place", choices->place, "output directory of a run; or a figure's configuration, or a folder")
      .required()
      .type("OUT|CONFIG");
  const std::string group = "With a configuration";
  figures.option("-o,--out", choices->out, "where figures go (default: out/figures)").type("DIR").group(group);
  figures.option("--trace", choices->traces, "instead of the configuration's traces").type("FILE").group(group);
  figures.option("-s,--set", choices->sets, "override of every run: replay.tokens=512").type("KEY=VALUE").group(group);
  figures.flag("--quick", choices->quick, "one kv head per layer: a look, not a result").group(group);
  figures.flag("--force", choices->force, "forget what an earlier run left").group(group);
  report.runs([choices](Context&) { return analyse("report", *choices); });
  figures.runs([choices](Context&) { return analyse("figures", *choices); });
}

}  // namespace kvreplay::app
