#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/errors.hpp"
#include "options.hpp"

// `kvreplay report OUT` and `kvreplay figures OUT`: `python -m kvanalysis` does the work.

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
  const std::string path =
      known == nullptr || *known == '\0' ? analysis : fmt::format("{}:{}", known, analysis);
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

void require_analysis(const std::string& python) {
  const int found = call({python, "-c",
                          "import importlib.util as u, sys\n"
                          "wanted = ('kvanalysis', 'numpy', 'pandas', 'matplotlib')\n"
                          "sys.exit(10 if any(u.find_spec(name) is None for name in wanted) else 0)"});
  if (found == 127)
    throw UserError(2,
                    fmt::format("{} is not there: install Python 3, or name it in KVREPLAY_PYTHON", python));
  if (found == 10)
    throw UserError(
        2, fmt::format("{} lacks kvanalysis or what it needs (numpy, pandas, matplotlib): run `bash "
                       "apps/python_env.sh analysis` or pip install the checkout with [analysis], or name an "
                       "interpreter that has them in KVREPLAY_PYTHON",
                       python));
}

struct ReportChoices {
  std::string out;
};

int analyse(const char* verb, const ReportChoices& choices) {
  if (std::error_code ignored; !fs::is_regular_file(fs::path(choices.out) / "results.csv", ignored))
    throw ConfigError(
        fmt::format("{}: holds no results.csv. {} takes the output directory of a run", choices.out, verb));
  offer_checkout();
  require_analysis(interpreter());
  return call({interpreter(), "-m", "kvanalysis", verb, choices.out});
}

}  // namespace

void add_report(CLI::App& app, std::vector<Command>& commands) {
  const auto choices = std::make_shared<ReportChoices>();
  for (const char* verb : {"report", "figures"}) {
    const bool report = std::string(verb) == "report";
    CLI::App* command = app.add_subcommand(
        verb, report ? "figures and one self-contained HTML page of a run" : "figures of a run");
    command->add_option("out", choices->out, "output directory of a run")->required()->type_name("OUT");
    commands.push_back({command, [choices, verb](Context&) { return analyse(verb, *choices); }});
  }
}

}  // namespace kvreplay::app
