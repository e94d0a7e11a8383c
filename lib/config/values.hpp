#pragma once
#include <optional>
#include <string>
#include <vector>

#include "config/problems.hpp"
#include "parameters/parameter.hpp"

namespace kvreplay {

// The configuration as a tree of texts with their positions, not yet interpreted.

struct Key {
  std::string text;
  Mark mark;
};

struct Node {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     // value of a scalar
  bool quoted = false;  // "10" is text, 10 is a number
  Mark mark;
  std::vector<Key> keys;    // for a map; keys[i] belongs to items[i]
  std::vector<Node> items;  // for a list or a map

  const Node* find(const std::string& key) const;
  const Mark& key_mark(const std::string& key) const;  // mark of the node itself if the key is missing
};

// Parses one YAML document. YAML features that a configuration must not use (duplicate keys, merge keys, tags, several
// documents) become problems; the rest of the tree is still returned. `place`: false gives all nodes line 0, for texts
// from the command line.
Node parse_yaml(const std::string& text, bool place, Problems& problems);

// Applies `a.b.c=value` to the tree. Missing maps on the way are created; numbers index lists.
void apply_override(Node& root, const std::string& assignment, Problems& problems);

// Reads one value of the tree. A value of the wrong kind or out of range is a problem that names what would be right.

// "window is 0 and must be at least 1"
void must_be(Problems& problems, const Node& node, const std::string& name, const std::string& what);

// Quotes text of the user for a message, at most 60 bytes of it.
std::string in_quotes(const std::string& text);

std::optional<int64_t> read_integer(Problems& problems, const Node& node, const std::string& name, Range range);
std::optional<double> read_real(Problems& problems, const Node& node, const std::string& name, Range range);
std::optional<bool> read_boolean(Problems& problems, const Node& node, const std::string& name);
std::optional<std::string> read_text(Problems& problems, const Node& node, const std::string& name);
std::optional<std::string> read_word(Problems& problems, const Node& node, const std::string& name,
                                     const std::vector<std::string>& words);
// Value for a declared parameter, as canonical JSON (parameters/parameter.hpp).
std::optional<std::string> read_parameter(Problems& problems, const Node& node, const ParameterSpec& spec);

// Node that holds the name of a value: the word itself, or the map's `name`; null: a map without one.
const Node* name_of(const Node& value);

// The items of a list, or the node itself: one value needs no brackets.
std::vector<const Node*> one_or_many(const Node& node);

// Whether a section of the configuration has this key.
bool is_key_of_section(const std::string& key);

// One map whose keys are known. Unknown keys are reported at once.
class Section {
 public:
  Section(const Node* node, std::string name, std::vector<std::string> keys, Problems& problems);
  // Null if absent or empty (`key:` without a value takes the default).
  const Node* find(const std::string& key) const;

 private:
  const Node* node_;
};

}  // namespace kvreplay
