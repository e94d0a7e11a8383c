#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "base/errors.hpp"

// `kvreplay report OUT` and `kvreplay figures OUT|CONFIG`: `python -m kvanalysis` does the work.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

// The checkout that this binary was built in, build/<preset>/kvreplay, or an empty path.
fs::path checkout() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  const fs::path root = binary.parent_path().parent_path().parent_path();
  return !error && fs::exists(root / "analysis" / "kvanalysis" / "__main__.py", error) ? root : fs::path();
}

// The one that the user names, else the environment that apps/python_env.sh makes in a checkout.
std::string interpreter() {
  const char* chosen = std::getenv("KVREPLAY_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  std::error_code error;
  const fs::path made = checkout() / "build" / "venv" / "bin" / "python";
  return fs::exists(made, error) ? made.string() : "python3";
}

// Outside of a checkout the package has to be installed.
void offer_checkout() {
  if (checkout().empty()) return;
  const std::string analysis = (checkout() / "analysis").string();
  const char* known = std::getenv("PYTHONPATH");
  const std::string path = known == nullptr || *known == '\0' ? analysis : fmt::format("{}:{}", known, analysis);
  ::setenv("PYTHONPATH", path.c_str(), 1);
}

// Exit code of a child process; 127 when the program does not exist.
int call(std::vector<std::string> words) {
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0) throw UserError(2, "a process cannot be started");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Becomes that process, so that Ctrl-C and every other signal reach what does the work.
int become(std::vector<std::string> words) {
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  throw UserError(2, fmt::format("{} cannot be started", words.front()));
}

void require_analysis(const std::string& python) {
  const int found = call({python, "-c",
                          "import importlib.util as u, sys\n"
                          "wanted = ('kvanalysis', 'numpy', 'pandas', 'matplotlib')\n"
                          "sys.exit(10 if any(u.find_spec(name) is None for name in wanted) else 0)"});
  if (found == 127)
    throw UserError(2, fmt::format("{} is not there: install Python 3, or name it in KVREPLAY_PYTHON", python));
  if (found == 10)
    throw UserError(2,
                    fmt::format("{} lacks kvanalysis or what it needs (numpy, pandas, matplotlib): run `bash "
                                "apps/python_env.sh analysis` or pip install the checkout with [analysis], or name an "
                                "interpreter that has them in KVREPLAY_PYTHON",
                                python));
}

// The analysis runs this program for the steps of a figure.
void offer_program() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) ::setenv("KVREPLAY", binary.c_str(), 0);
}

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

bool holds_results(const fs::path& place) {
  std::error_code ignored;
  return fs::is_regular_file(place / "results.csv", ignored);
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
  if (holds_results(place) || (report && holds_figures(place))) return;
  throw ConfigError(fmt::format(
      "{}: holds no results.csv{}. {} takes the output directory of a run, or {}", place,
      report ? " and no figures (NAME/figure.json)" : "", verb,
      report ? "the folder that `kvreplay figures CONFIG -o DIR` made" : "a configuration of configs/figures"));
}

std::vector<std::string> words_of(const std::string& verb, const ReportChoices& choices) {
  const bool from_config = verb == "figures" && holds_configs(choices.place);
  std::vector<std::string> words = {"-m", "kvanalysis", from_config ? "figure" : verb, choices.place};
  if (!from_config) return words;
  if (!choices.out.empty()) words.insert(words.end(), {"-o", choices.out});
  for (const std::string& trace : choices.traces) words.insert(words.end(), {"--trace", trace});
  for (const std::string& set : choices.sets) words.insert(words.end(), {"-s", set});
  if (choices.quick) words.emplace_back("--quick");
  if (choices.force) words.emplace_back("--force");
  return words;
}

int analyse(const std::string& verb, const ReportChoices& choices) {
  std::vector<std::string> words = words_of(verb, choices);
  if (words[2] != "figure") require_results(verb, choices.place);
  offer_checkout();
  offer_program();
  require_analysis(interpreter());
  words.insert(words.begin(), interpreter());
  return become(words);
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
