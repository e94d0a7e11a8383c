#pragma once
#include <string>
#include <vector>

#include "config/problems.hpp"

// The configuration as a tree of texts with their positions, not yet interpreted.

namespace kvreplay {

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

}  // namespace kvreplay
