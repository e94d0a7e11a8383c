#pragma once
#include <optional>
#include <string>
#include <vector>

#include "config/tree.hpp"
#include "parameters/parameter.hpp"

// One value out of the tree: the right kind, in range, or a problem that says what would be right.

namespace kvreplay {

// "window is 0 and must be at least 1"
void must_be(Problems& problems, const Node& node, const std::string& name, const std::string& what);

// Text of the user's for a message: at most 60 bytes of it, in quotes.
std::string in_quotes(const std::string& text);

std::optional<int64_t> read_integer(Problems& problems, const Node& node, const std::string& name, Range range);
std::optional<double> read_real(Problems& problems, const Node& node, const std::string& name, Range range);
std::optional<bool> read_boolean(Problems& problems, const Node& node, const std::string& name);
std::optional<std::string> read_text(Problems& problems, const Node& node, const std::string& name);
std::optional<std::string> read_word(Problems& problems, const Node& node, const std::string& name,
                                     const std::vector<std::string>& words);
// A value for a declared parameter, as canonical JSON (parameters/parameter.hpp).
std::optional<std::string> read_parameter(Problems& problems, const Node& node, const ParameterSpec& spec);

// What a value goes by: the word itself, or what a map says under `name`; null: a map without one.
const Node* name_of(const Node& value);

// The items of a list, or the node itself: one value may stand without brackets.
std::vector<const Node*> one_or_many(const Node& node);

// One map whose keys are known. What else it holds is reported at once.
class Section {
 public:
  Section(const Node* node, std::string name, std::vector<std::string> keys, Problems& problems);
  // Null when absent or empty (`key:` without a value takes the default).
  const Node* find(const std::string& key) const;

 private:
  const Node* node_;
};

}  // namespace kvreplay
