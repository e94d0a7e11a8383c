#pragma once
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "config/run_config.hpp"

namespace kvreplay {

// What is wrong with a configuration: collected over the whole file, told at once.
class Problems {
 public:
  enum class Kind { error, trace_error, warning };  // trace_error: about a trace file, exit code 3
  struct Problem {
    Mark mark;
    Kind kind;
    std::string text;
  };

  void error(const Mark& mark, std::string text) { add({mark, Kind::error, std::move(text)}); }
  void trace_error(const Mark& mark, std::string text) { add({mark, Kind::trace_error, std::move(text)}); }
  void warning(const Mark& mark, std::string text) { add({mark, Kind::warning, std::move(text)}); }

  bool any_error() const { return errors() > 0; }
  size_t errors() const;  // how many
  // Complete lines by position; the command line comes first.
  std::vector<std::string> errors(const RunConfig& config) const;
  std::vector<std::string> warnings(const RunConfig& config) const;
  // Throws a ConfigError, or a TraceError if every error is about a trace file. Does nothing without errors.
  void raise(const RunConfig& config) const;

 private:
  void add(Problem problem);
  std::vector<Problem> sorted() const;
  std::vector<Problem> problems_;
  std::set<std::tuple<int, int, std::string>> told_;  // line, column, text
};

}  // namespace kvreplay
