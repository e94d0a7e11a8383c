#include <fmt/format.h>
#include <signal.h>

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "kernels/kernels.hpp"
#include "meta.hpp"
#include "options.hpp"
#include "trace/h5_file.hpp"

// The front door: parses the command line, calls one command, turns errors into exit codes.

namespace kvreplay::app {
namespace {

constexpr int kUsage = 2, kOutOfMemory = 4, kOurMistake = 70;

constexpr const char* kExamples =
    "examples:\n"
    "  kvreplay run configs/quickstart.yaml\n"
    "  kvreplay run TRACE.h5 --method h2o,snapkv --budget 64,256 -o out/first\n"
    "  kvreplay describe h2o\n";

struct General {
  bool quiet = false;
  int verbose = 0;
  std::string log, color = "auto";
};

void add_general(CLI::App& app, General& general) {
  app.add_flag("-q,--quiet", general.quiet, "warnings and errors only");
  app.add_flag("-v,--verbose", general.verbose, "more about the work");
  app.add_option("--log", general.log, "also append all messages to FILE")->type_name("FILE");
  app.add_option("--color", general.color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.set_version_flag("--version", version_text());
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

// The innermost command that was named.
const CLI::App& chosen_of(const CLI::App& app) {
  const auto named = app.get_subcommands();
  return named.empty() ? app : chosen_of(*named.front());
}

std::vector<const CLI::App*> commands_below(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

// What may follow the name of a command.
std::vector<std::string> words_known_to(const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* below : commands_below(command)) known.push_back(below->get_name());
  for (const CLI::App* place = &command; place != nullptr; place = place->get_parent())
    for (const CLI::Option* option : place->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return known;
}

// The parser names what it did not expect; this says what was probably meant.
std::string guess(const CLI::App& app, int argc, char** argv) {
  const CLI::App& chosen = chosen_of(app);
  const std::vector<std::string> known = words_known_to(chosen);
  const bool takes_commands = !commands_below(chosen).empty();
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word.empty() || word == chosen.get_name() || (!takes_commands && !word.starts_with("--"))) continue;
    if (std::find(known.begin(), known.end(), word) == known.end()) return did_you_mean(word, known);
  }
  return "";
}

// "kvreplay sweep work"
std::string full_name(const CLI::App& parser) {
  const CLI::App* above = parser.get_parent();
  return above == nullptr ? parser.get_name() : full_name(*above) + " " + parser.get_name();
}

int usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  Console console;
  console.error(
      fmt::format("{}{}. See {} --help", error.what(), guess(app, argc, argv), full_name(chosen_of(app))));
  return kUsage;
}

int dispatch(int argc, char** argv, Context& context) {
  CLI::App app("Replays recorded queries, keys and values through KV-cache compression methods.", "kvreplay");
  General general;
  add_general(app, general);
  app.footer(kExamples);
  app.require_subcommand(0, 1);
  std::vector<Command> commands;
  add_run(app, commands);
  add_sweep(app, commands);
  add_inspect(app, commands);
  add_synth(app, commands);
  add_cluster(app, commands);
  add_list(app, commands);
  add_report(app, commands);
  add_bounds(app, commands);
  add_bench(app, commands);
  for (const Command& c : commands) c.parser->fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  }
  apply(general, context.console);
  isa_path();  // an impossible KVREPLAY_ISA is an error of every command, before any work
  for (const Command& c : commands)
    if (c.parser->parsed()) return c.run(context);
  print(app.help());
  return 0;
}

int guarded(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error like a full disk
  leave_hdf5_out_of_exit();
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
    context.console.error(
        "out of memory: fewer --jobs need less, and so do fewer layers or methods at a time");
    return kOutOfMemory;
  } catch (const std::filesystem::filesystem_error& e) {
    context.console.error(fmt::format("{}: {}", e.path1().string(), e.code().message()));
    return kUsage;
  } catch (const std::system_error& e) {  // threads that cannot be started
    context.console.error(fmt::format("the system refused ({}): fewer --jobs need less", e.code().message()));
    return kOutOfMemory;
  } catch (const std::exception& e) {
    context.console.error(fmt::format("internal error: {}. Please report it with this command line: {}",
                                      e.what(), context.command_line));
    return kOurMistake;
  }
}

}  // namespace
}  // namespace kvreplay::app

int main(int argc, char** argv) { return kvreplay::app::guarded(argc, argv); }
