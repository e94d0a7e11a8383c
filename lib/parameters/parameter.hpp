#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvreplay {

// A parameter of a method or of a row format, as declared by declare(). The parser, the range checks, `kvreplay
// describe`, the docs table, the sweep axes and the cell's key all use it.
struct ParameterSpec {
  enum class Kind { integer, real, boolean, choice, layers, rows, integers, scorer, file, calibration };
  std::string name;
  Kind kind = Kind::integer;
  double low = 0, high = 0;  // inclusive; integers, also those of a list, and reals
  // For a choice: its words. For a number: words allowed instead. For a scorer: its names.
  std::vector<std::string> choices;
  std::string default_json;  // "null": derived, see default_text
  std::string default_text;  // what `describe` shows: "4", "floor(B/2)"
  std::string help;          // one sentence, with the unit
  size_t offset = 0;         // offset of its member in the policy's bytes; a file and a calibration have none
  std::vector<std::vector<ParameterSpec>> nested = {};  // for a scorer: the parameters of each choice
  bool is_derived() const { return default_json == "null"; }
};

// The value of a parameter in a policy's bytes, as JSON. Integers, reals, booleans and words are JSON scalars; a set of
// layers and integers are lists of numbers; rows are "full", "decode_only" or "last:w"; a scorer is {"name": ..., its
// parameters}. A value that is still to be derived from the budget or a variant is null. A file is not stored in the
// policy and is null; a calibration is shown as its default.
std::string parameter_json(const ParameterSpec& spec, const std::byte* policy);
// A value as JSON if it differs from the one in `defaults`, else "". For a scorer: its name and those of its parameters
// that differ.
std::string given_json(const ParameterSpec& spec, const std::byte* policy, const std::byte* defaults);
// Sets a value that the parser has checked (a scorer may be a bare name); null changes nothing.
void assign_parameter(const ParameterSpec& spec, const std::string& json, std::byte* policy);

}  // namespace kvreplay
