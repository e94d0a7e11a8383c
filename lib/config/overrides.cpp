#include <fmt/core.h>

#include <algorithm>

#include "base/text.hpp"
#include "config/values.hpp"

namespace kvreplay {
namespace {

// Turns a bare method name into a map, so that `methods.0.window=16` works on `- snapkv`.
void become_map(Node& node, bool names_a_method) {
  Node map;
  map.kind = Node::Kind::map;
  map.mark = node.mark;
  if (node.kind == Node::Kind::scalar && names_a_method) {
    map.keys.push_back({"name", node.mark});
    map.items.push_back(std::move(node));
  }
  node = std::move(map);
}

// The value under `path`, created if missing; null with `why` if the path cannot be followed.
Node* descend(Node* node, std::string path, std::string& why) {
  std::string walked;
  while (!path.empty()) {
    const bool in_methods = walked.starts_with("methods.");
    if (node->kind == Node::Kind::null || (node->kind == Node::Kind::scalar && in_methods))
      become_map(*node, in_methods);
    if (node->kind == Node::Kind::scalar) {
      why = fmt::format("{} is a single value and has no \"{}\"", walked.substr(0, walked.size() - 1), path);
      return nullptr;
    }
    // A key may itself contain a point: gqa.level.
    const bool whole = node->kind == Node::Kind::map && node->find(path) != nullptr;
    const size_t point = whole ? std::string::npos : path.find('.');
    const std::string word = path.substr(0, point);
    path = point == std::string::npos ? "" : path.substr(point + 1);
    if (node->kind == Node::Kind::list) {
      const auto index = parse_number<size_t>(word);
      if (!index || *index >= node->items.size()) {
        why = fmt::format("{} has {} entries, numbered from 0, and none is \"{}\"", walked.substr(0, walked.size() - 1),
                          node->items.size(), word);
        return nullptr;
      }
      node = &node->items[*index];
    } else {
      const auto found =
          std::find_if(node->keys.begin(), node->keys.end(), [&](const Key& k) { return k.text == word; });
      const auto at = size_t(found - node->keys.begin());
      if (found == node->keys.end()) {
        node->keys.push_back({word, Mark{}});
        node->items.emplace_back();
      }
      node->keys[at].mark = path.empty() ? Mark{} : node->keys[at].mark;
      node = &node->items[at];
    }
    walked += word + '.';
  }
  return node;
}

}  // namespace

void apply_override(Node& root, const std::string& assignment, Problems& problems) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.error({}, fmt::format("--set {}: write KEY=VALUE, for example --set budget.tokens=[64,128]", assignment));
    return;
  }
  Problems of_value;
  Node value = parse_yaml(assignment.substr(equals + 1), false, of_value);
  if (of_value.any_error()) {
    problems.error({}, fmt::format("--set {}: the value is not valid YAML", assignment));
    return;
  }
  std::string why;
  Node* target = descend(&root, assignment.substr(0, equals), why);
  if (target == nullptr) {
    problems.error({}, fmt::format("--set {}: {}", assignment, why));
    return;
  }
  *target = std::move(value);
}

}  // namespace kvreplay
