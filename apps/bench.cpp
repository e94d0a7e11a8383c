#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/commands.hpp"
#include "apps/exit_codes.hpp"
#include "base/errors.hpp"

// `kvreplay bench`: starts kvreplay_bench, the program of tests/bench/rates, which has this command's options and does
// its work.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp = "the engine's own rates beside the machine's limits, as ratios";
constexpr const char* kHowToBuild = "cmake --preset test && cmake --build build/release --target kvreplay_bench";

// kvreplay_bench in the folder of the running program.
fs::path bench_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path() / "kvreplay_bench";
}

// Replaces this process by that program with the same command line, so that signals reach the process that works.
void become(const fs::path& program, std::vector<std::string> words) {
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "--help" || w == "-h"; });
}

int bench(const Context& context) {
  const fs::path program = bench_program();
  become(program, context.words);  // returns only if it cannot be started
  if (!asks_for_help(context.words))
    throw UserError(kUsage, fmt::format("{} does the measuring, but is missing or cannot be started. Build it: {}",
                                        program.string(), kHowToBuild));
  print(
      fmt::format("{}\nUsage: kvreplay bench [OPTIONS]\n\nOptions are those of kvreplay_bench, the program that "
                  "measures. It is not here; build it:\n  {}\n",
                  kHelp, kHowToBuild));
  return 0;
}

}  // namespace

void add_bench(Command& program) { program.command("bench", kHelp).keep_rest().runs(bench); }

}  // namespace kvreplay::app
