#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "apps/console.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

// Declares commands and their options without the parser's headers.

namespace kvreplay::app {

// Passed to every command.
struct Context {
  Console console;
  std::string command_line;
  std::vector<std::string> words;  // words of the command line, the program's name first
};

// A declared option; each call adds a property.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& type(const std::string& shown);     // placeholder of its value in --help: FILE
  Option& group(const std::string& heading);  // heading in --help; "": it is not shown
  Option& required();
  Option& one_of(std::initializer_list<const char*> words);
  Option& within(double low, double high);
  Option& excludes(const Option& other);
  Option& one_value();      // a list grows by one value each time the option is used
  Option& shows_default();  // in --help
  bool given() const;       // whether it is on the command line

 private:
  CLI::Option* option_;
};

// A command and what may follow its name. Values that are declared here are filled in while the command line is read,
// so they must live until the command runs.
class Command {
 public:
  // The whole program.
  Command(const std::string& name, const std::string& help);

  Command command(const std::string& name, const std::string& help);  // adds a command below this one
  // names: "-o,--out", or a bare word for a positional value, or both. Value: std::string, a list of them, or a number,
  // which may be optional.
  template <class Value>
  Option option(const std::string& names, Value& value, const std::string& help);
  Option flag(const std::string& names, bool& value, const std::string& help);
  Option count(const std::string& names, int& value, const std::string& help);  // counts how often it occurs
  Command& footer(const std::string& text);
  // Words after its name are not parsed, not even --help: the command finds them in Context::words.
  Command& keep_rest();
  // An old name of the command. It still works, and a note names the new one.
  Command& formerly(const std::string& name);
  // Commands of the Python package: this program refuses them, and its error names the package.
  Command& python_verbs(const std::vector<std::string>& names);
  // Sets the function that runs the command; it returns the exit code.
  Command& runs(std::function<int(Context&)> work);
  std::string help() const;

  // Reads the command line and runs the command that it names; `before` is called first. Unexpected words are reported
  // with a suggestion: exit code 2. `version` answers --version.
  int run(int argc, char** argv, const std::string& version, Context& context,
          const std::function<void()>& before) const;

 private:
  void refuse_python_verb(const std::string& word) const;
  struct Program;  // all commands
  Command(CLI::App* parser, std::shared_ptr<Program> program);
  CLI::App* parser_;
  std::shared_ptr<Program> program_;
};

// "a,b" -> {"a", "b"}
std::vector<std::string> split_list(const std::string& text);

}  // namespace kvreplay::app
