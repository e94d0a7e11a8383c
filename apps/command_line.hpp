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

// What commands take, declared without the parser's own headers.

namespace kvreplay::app {

// What every command gets.
struct Context {
  Console console;
  std::string command_line;
  std::vector<std::string> words;  // of the command line, the program's name first
};

// An option that was declared; each call says more of it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& type(const std::string& shown);     // the word for its value in --help: FILE
  Option& group(const std::string& heading);  // in --help; "": it is not shown
  Option& required();
  Option& one_of(std::initializer_list<const char*> words);
  Option& within(double low, double high);
  Option& excludes(const Option& other);
  Option& one_value();      // a list grows by one value each time the option is given
  Option& shows_default();  // in --help
  bool given() const;       // on the command line that was read

 private:
  CLI::Option* option_;
};

// A command and what may follow its name. What is declared is filled in while the command line is read, so it must
// live until the command runs.
class Command {
 public:
  // The whole program.
  Command(const std::string& name, const std::string& help);

  Command command(const std::string& name, const std::string& help);  // one below it
  // names: "-o,--out", or a bare word for what needs no name, or both. Value: std::string, a list of them, or a
  // number, which may be optional.
  template <class Value>
  Option option(const std::string& names, Value& value, const std::string& help);
  Option flag(const std::string& names, bool& value, const std::string& help);
  Option count(const std::string& names, int& value, const std::string& help);  // how often it is given
  Command& footer(const std::string& text);
  // What follows its name is not read, not even --help: the command finds it in Context::words.
  Command& leaves_the_rest();
  // Returns the exit code.
  Command& runs(std::function<int(Context&)> work);
  std::string help() const;

  // Reads the command line and runs what it names, between `before` and the end. Words that nothing expects are told
  // with what was probably meant: exit code 2. `version` answers --version.
  int run(int argc, char** argv, const std::string& version, Context& context,
          const std::function<void()>& before) const;

 private:
  struct Program;  // all commands
  Command(CLI::App* parser, std::shared_ptr<Program> program);
  CLI::App* parser_;
  std::shared_ptr<Program> program_;
};

// "a,b" -> {"a", "b"}
std::vector<std::string> split_list(const std::string& text);

}  // namespace kvreplay::app
