#include <fmt/core.h>
#include <signal.h>

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "apps/command_line.hpp"
#include "apps/commands.hpp"
#include "apps/exit_codes.hpp"
#include "apps/meta.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "kernels/kernels.hpp"
#include "trace/h5_file.hpp"

// The front door: parses the command line, calls one command, turns errors into exit codes.

namespace kvreplay::app {
namespace {

constexpr int kOutOfMemory = 4, kOurMistake = 70;

constexpr const char* kExamples =
    "examples:\n"
    "  kvreplay run configs/quickstart.yaml\n"
    "  kvreplay run TRACE.h5 --method h2o,snapkv --budget 64,256 -o out/first\n"
    "  kvreplay sweep plan configs/quickstart.yaml -o out/s\n";

// Verbs of the Python package, whose command finds this program for all others.
const std::vector<std::string> kPythonVerbs = {"record",   "import",      "tasks",      "compare", "report",  "figures",
                                               "export",   "leaderboard", "quickstart", "confirm", "formats", "predict",
                                               "allocate", "refine",      "study",      "claims"};

struct General {
  bool quiet = false;
  int verbose = 0;
  std::string log, color = "auto";
};

void add_general(Command& app, General& general) {
  app.flag("-q,--quiet", general.quiet, "warnings and errors only");
  app.count("-v,--verbose", general.verbose, "more about the work");
  app.option("--log", general.log, "also append all messages to FILE").type("FILE");
  app.option("--color", general.color, "auto, always or never").one_of({"auto", "always", "never"});
}

void apply(const General& general, Console& console) {
  console.verbosity = general.quiet ? -1 : general.verbose;
  console.color = general.color == "always"  ? Console::Color::always
                  : general.color == "never" ? Console::Color::never
                                             : Console::Color::automatic;
  if (!general.log.empty()) console.open_log(general.log);
}

std::string command_line(int argc, char** argv) {
  std::string text;
  for (int i = 0; i < argc; ++i) text += (i > 0 ? " " : "") + shell_quoted(argv[i]);
  return text;
}

int dispatch(int argc, char** argv, Context& context) {
  Command program("kvreplay", "Replays recorded queries, keys and values through KV-cache compression methods.");
  General general;
  add_general(program, general);
  program.footer(kExamples);
  add_run(program);
  add_sweep(program);
  add_table(program);
  add_inspect(program);
  add_synth(program);
  add_calibrate(program);
  add_clusterability(program);
  add_list(program);
  add_budgets(program);
  add_bounds(program);
  add_bench(program);
  program.python_verbs(kPythonVerbs);
  return program.run(argc, argv, version_text(), context, [&] {
    apply(general, context.console);
    isa_path();  // an impossible KVREPLAY_ISA is an error of every command, before any work
  });
}

int guarded(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error like a full disk
  disable_hdf5_exit_handler();
  Context context;
  context.command_line = command_line(argc, argv);
  try {
    const int code = dispatch(argc, argv, context);
    finish_output();
    return code;
  } catch (const UserError& e) {
    context.console.error(e.what());
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    context.console.error("out of memory: fewer --jobs need less, and so do fewer layers or methods at a time");
    return kOutOfMemory;
  } catch (const std::filesystem::filesystem_error& e) {
    context.console.error(fmt::format("{}: {}", e.path1().string(), e.code().message()));
    return kUsage;
  } catch (const std::system_error& e) {  // threads that cannot be started
    context.console.error(fmt::format("the system refused ({}): fewer --jobs need less", e.code().message()));
    return kOutOfMemory;
  } catch (const std::exception& e) {
    context.console.error(
        fmt::format("internal error: {}. Please report it with this command line: {}", e.what(), context.command_line));
    return kOurMistake;
  }
}

}  // namespace
}  // namespace kvreplay::app

int main(int argc, char** argv) { return kvreplay::app::guarded(argc, argv); }
