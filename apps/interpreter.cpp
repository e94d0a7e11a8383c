#include "apps/interpreter.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/errors.hpp"

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

constexpr int kNotThere = 127, kLacks = 10;  // exit codes

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

// Outside of a checkout the packages have to be installed.
void offer_checkout() {
  const fs::path root = checkout();
  if (root.empty()) return;
  std::string path = fmt::format("{}:{}", (root / "analysis").string(), (root / "apps").string());
  const char* known = std::getenv("PYTHONPATH");
  if (known != nullptr && *known != '\0') path = fmt::format("{}:{}", known, path);
  ::setenv("PYTHONPATH", path.c_str(), 1);
}

// Python runs this program for the steps of its work.
void offer_program() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) ::setenv("KVREPLAY", binary.c_str(), 0);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return arguments;
}

// Exit code of a child process; kNotThere when the program does not exist.
int call(std::vector<std::string> words) {
  std::fflush(nullptr);
  const std::vector<char*> arguments = pointers(words);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(arguments[0], arguments.data());
    ::_exit(kNotThere);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0) throw UserError(2, "a process cannot be started");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void require(const std::string& python, const std::string& module, const std::vector<std::string>& needs) {
  std::vector<std::string> words = {python, "-c",
                                    fmt::format("import importlib.util as u, sys\n"
                                                "sys.exit({} if any(u.find_spec(name) is None for name in "
                                                "sys.argv[1:]) else 0)",
                                                kLacks),
                                    module};
  words.insert(words.end(), needs.begin(), needs.end());
  const int found = call(std::move(words));
  if (found == kNotThere)
    throw UserError(2, fmt::format("{} is not there: install Python 3, or name it in KVREPLAY_PYTHON", python));
  if (found == kLacks)
    throw UserError(2, fmt::format("{} lacks {} or what it needs ({}): install a wheel of kvreplay, or in a checkout "
                                   "run `bash apps/python_env.sh analysis`, or name an interpreter that has them in "
                                   "KVREPLAY_PYTHON",
                                   python, module, fmt::join(needs, ", ")));
}

}  // namespace

int become_python(const std::string& module, const std::vector<std::string>& needs,
                  const std::vector<std::string>& words) {
  offer_checkout();
  offer_program();
  const std::string python = interpreter();
  require(python, module, needs);
  std::vector<std::string> all = {python, "-m", module};
  all.insert(all.end(), words.begin(), words.end());
  std::fflush(nullptr);
  ::execvp(python.c_str(), pointers(all).data());
  throw UserError(2, fmt::format("{} cannot be started", python));
}

}  // namespace kvreplay::app
