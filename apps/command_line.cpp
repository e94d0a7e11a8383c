#include "apps/command_line.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>

#include "apps/exit_codes.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"

// The only file that includes the parser.

namespace kvreplay::app {

struct Command::Program {
  CLI::App parser;
  struct Known {
    CLI::App* parser;
    std::function<int(Context&)> work;
  };
  std::vector<Known> commands;
  std::vector<std::pair<std::string, std::string>> old_names;  // and the new ones
  std::vector<std::string> python_verbs;
  Program(const std::string& name, const std::string& help) : parser(help, name) {}
};

namespace {

// The innermost command on the command line.
const CLI::App& chosen_of(const CLI::App& parser) {
  const auto named = parser.get_subcommands();
  return named.empty() ? parser : chosen_of(*named.front());
}

std::vector<const CLI::App*> commands_below(const CLI::App& parser) {
  return parser.get_subcommands([](const CLI::App*) { return true; });
}

// Words that may follow the name of a command.
std::vector<std::string> known_words(const CLI::App& parser, const std::vector<std::string>& python_verbs) {
  std::vector<std::string> known;
  if (parser.get_parent() == nullptr) known = python_verbs;
  for (const CLI::App* below : commands_below(parser)) known.push_back(below->get_name());
  for (const CLI::App* place = &parser; place != nullptr; place = place->get_parent())
    for (const CLI::Option* option : place->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return known;
}

// Suggests a word for the one that the parser did not expect.
std::string guess(const CLI::App& parser, const std::vector<std::string>& python_verbs,
                  const std::vector<std::string>& words) {
  const CLI::App& chosen = chosen_of(parser);
  const std::vector<std::string> known = known_words(chosen, python_verbs);
  const bool takes_commands = !commands_below(chosen).empty();
  for (const std::string& full : words) {
    const std::string word = full.substr(0, full.find('='));
    if (word.empty() || word == chosen.get_name() || (!takes_commands && !word.starts_with("--"))) continue;
    if (std::find(known.begin(), known.end(), word) == known.end()) return did_you_mean(word, known);
  }
  return "";
}

// Place of the first word that is no option: a command's name, if it is one. words.size() if there is none.
size_t command_at(const std::vector<std::string>& words) {
  const auto found = std::find_if(words.begin(), words.end(), [](const auto& word) { return !word.starts_with('-'); });
  return size_t(found - words.begin());
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
Command& Command::keep_rest() {
  parser_->fallthrough(false)->allow_extras()->set_help_flag();
  return *this;
}
Command& Command::formerly(const std::string& name) {
  program_->old_names.emplace_back(name, parser_->get_name());
  return *this;
}
Command& Command::python_verbs(const std::vector<std::string>& names) {
  program_->python_verbs = names;
  parser_->footer(fmt::format("With the Python package: {}\n\n{}", join(names, ", "), parser_->get_footer()));
  return *this;
}
Command& Command::runs(std::function<int(Context&)> work) {
  program_->commands.push_back({parser_, std::move(work)});
  return *this;
}
std::string Command::help() const { return parser_->help(); }

void Command::refuse_python_verb(const std::string& word) const {
  const auto& names = program_->python_verbs;
  if (std::find(names.begin(), names.end(), word) == names.end()) return;
  throw UserError(kUsage, fmt::format("{} is a verb of the Python package, and this is the engine's program: run "
                                      "kvreplay {} of a wheel, or build/venv/bin/kvreplay {} in a checkout (bash "
                                      "apps/python_env.sh analysis makes it)",
                                      word, word, word));
}

int Command::run(int argc, char** argv, const std::string& version, Context& context,
                 const std::function<void()>& before) const {
  CLI::App& parser = program_->parser;
  parser.set_version_flag("--version", version);
  std::vector<std::string> words(argv + 1, argv + argc);
  const size_t at = command_at(words);
  if (at < words.size()) {
    refuse_python_verb(words[at]);
    for (const auto& [old_name, name] : program_->old_names)
      if (words[at] == old_name) {
        context.console.note(fmt::format("`{}` is now `{}`; the next release drops the old name", old_name, name));
        words[at] = name;
      }
  }
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as the parser wants them
    parser.parse(reversed);
  } catch (const CLI::Success& asked) {  // --help, --version
    return parser.exit(asked);
  } catch (const CLI::ParseError& error) {
    Console().error(fmt::format("{}{}. See {} --help", error.what(), guess(parser, program_->python_verbs, words),
                                full_name(chosen_of(parser))));
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
