#include "apps/command_line.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "apps/exit_codes.hpp"
#include "base/text.hpp"

// The one file that knows the parser.

namespace kvreplay::app {

struct Command::Program {
  CLI::App parser;
  struct Known {
    CLI::App* parser;
    std::function<int(Context&)> work;
  };
  std::vector<Known> commands;
  Program(const std::string& name, const std::string& help) : parser(help, name) {}
};

namespace {

// The innermost command that was named.
const CLI::App& chosen_of(const CLI::App& parser) {
  const auto named = parser.get_subcommands();
  return named.empty() ? parser : chosen_of(*named.front());
}

std::vector<const CLI::App*> commands_below(const CLI::App& parser) {
  return parser.get_subcommands([](const CLI::App*) { return true; });
}

// What may follow the name of a command.
std::vector<std::string> words_known_to(const CLI::App& parser) {
  std::vector<std::string> known;
  for (const CLI::App* below : commands_below(parser)) known.push_back(below->get_name());
  for (const CLI::App* place = &parser; place != nullptr; place = place->get_parent())
    for (const CLI::Option* option : place->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return known;
}

// The parser names what it did not expect; this says what was probably meant.
std::string guess(const CLI::App& parser, int argc, char** argv) {
  const CLI::App& chosen = chosen_of(parser);
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

}  // namespace

Option& Option::type(const std::string& shown) { return option_->type_name(shown), *this; }
Option& Option::group(const std::string& heading) { return option_->group(heading), *this; }
Option& Option::required() { return option_->required(), *this; }
Option& Option::one_of(std::initializer_list<const char*> words) {
  option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
  return *this;
}
Option& Option::within(double low, double high) {
  option_->check(CLI::Range(int64_t(low), int64_t(high)));
  return *this;
}
Option& Option::excludes(const Option& other) { return option_->excludes(other.option_), *this; }
Option& Option::one_value() { return option_->allow_extra_args(false), *this; }
Option& Option::shows_default() { return option_->capture_default_str(), *this; }
bool Option::given() const { return option_->count() > 0; }

Command::Command(const std::string& name, const std::string& help)
    : parser_(nullptr), program_(std::make_shared<Program>(name, help)) {
  parser_ = &program_->parser;
  parser_->require_subcommand(0, 1);
}
Command::Command(CLI::App* parser, std::shared_ptr<Program> program) : parser_(parser), program_(std::move(program)) {}

Command Command::command(const std::string& name, const std::string& help) {
  CLI::App* below = parser_->add_subcommand(name, help);
  below->fallthrough();
  return {below, program_};
}

template <class Value>
Option Command::option(const std::string& names, Value& value, const std::string& help) {
  return Option(parser_->add_option(names, value, help));
}
template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::option(const std::string&, int32_t&, const std::string&);
template Option Command::option(const std::string&, uint32_t&, const std::string&);
template Option Command::option(const std::string&, int64_t&, const std::string&);
template Option Command::option(const std::string&, uint64_t&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, std::optional<int64_t>&, const std::string&);
template Option Command::option(const std::string&, std::optional<int32_t>&, const std::string&);

Option Command::flag(const std::string& names, bool& value, const std::string& help) {
  return Option(parser_->add_flag(names, value, help));
}
Option Command::count(const std::string& names, int& value, const std::string& help) {
  return Option(parser_->add_flag(names, value, help));
}
Command& Command::footer(const std::string& text) { return parser_->footer(text), *this; }
Command& Command::leaves_the_rest() {
  parser_->fallthrough(false)->allow_extras()->set_help_flag();
  return *this;
}
Command& Command::runs(std::function<int(Context&)> work) {
  program_->commands.push_back({parser_, std::move(work)});
  return *this;
}
std::string Command::help() const { return parser_->help(); }

int Command::run(int argc, char** argv, const std::string& version, Context& context,
                 const std::function<void()>& before) const {
  CLI::App& parser = program_->parser;
  parser.set_version_flag("--version", version);
  try {
    parser.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return parser.exit(asked);
  } catch (const CLI::ParseError& error) {
    Console().error(
        fmt::format("{}{}. See {} --help", error.what(), guess(parser, argc, argv), full_name(chosen_of(parser))));
    return kUsage;
  }
  before();
  context.words.assign(argv, argv + argc);
  const CLI::App& chosen = chosen_of(parser);
  for (const Program::Known& known : program_->commands)
    if (known.parser == &chosen) return known.work(context);
  print(chosen.help());
  return 0;
}

std::vector<std::string> split_list(const std::string& text) { return CLI::detail::split(text, ','); }

}  // namespace kvreplay::app
