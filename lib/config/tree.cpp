#include "config/tree.hpp"

namespace kvreplay {

const Node* Node::find(const std::string& key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text == key) return &items[i];
  return nullptr;
}

const Mark& Node::key_mark(const std::string& key) const {
  for (const Key& k : keys)
    if (k.text == key) return k.mark;
  return mark;
}

}  // namespace kvreplay
