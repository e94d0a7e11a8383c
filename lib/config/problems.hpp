#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/refusal.hpp"
#include "config/run_config.hpp"

namespace kvreplay {

// Problems of a configuration: collected over the whole file and reported together, in the words of whoever asked.
class Problems {
 public:
  enum class Kind { error, trace_error, warning };  // trace_error: about a trace file, exit code 3
  struct Problem {
    Mark mark;
    Kind kind;
    Refusal refusal;
  };

  explicit Problems(const Wording& words = file_wording()) : words_(&words) {}
  const Wording& words() const { return *words_; }

  // A mistake at one place of the configuration.
  void error(const Mark& mark, std::string text) { add({mark, Kind::error, sentence(std::move(text))}, true); }
  void trace_error(const Mark& mark, std::string text) {
    add({mark, Kind::trace_error, sentence(std::move(text))}, true);
  }
  void warning(const Mark& mark, std::string text) { add({mark, Kind::warning, sentence(std::move(text))}, true); }
  // A mistake that a check may find at several layers, prompts and methods: they become one, at the first mark.
  void error(const Mark& mark, Refusal refusal) { add({mark, Kind::error, std::move(refusal)}, false); }
  void warning(const Mark& mark, Refusal refusal) { add({mark, Kind::warning, std::move(refusal)}, false); }

  bool any_error() const { return errors() > 0; }
  size_t errors() const;  // number of errors
  // Complete lines sorted by position; those without a position come first.
  std::vector<std::string> errors(const RunConfig& config) const;
  std::vector<std::string> warnings(const RunConfig& config) const;
  // Throws a ConfigError, or a TraceError if every error is about a trace file. Does nothing without errors.
  void raise(const RunConfig& config) const;

 private:
  static Refusal sentence(std::string text) { return {.rule = std::move(text)}; }
  void add(Problem problem, bool at_its_mark);
  std::vector<Problem> sorted() const;
  const Wording* words_;
  std::vector<Problem> problems_;
  std::map<std::string, size_t> known_;  // index by what makes two problems one
};

}  // namespace kvreplay
