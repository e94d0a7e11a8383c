#include <nlohmann/json.hpp>

#include "config/values.hpp"

// kvreplay.replay builds its configuration as JSON, so the module needs no parser of YAML.

namespace kvreplay {
namespace {

using nlohmann::ordered_json;

Node node_of(const ordered_json& value) {
  Node node;
  if (value.is_null()) return node;
  if (value.is_object()) {
    node.kind = Node::Kind::map;
    for (const auto& [key, item] : value.items()) node.keys.push_back({key, {}}), node.items.push_back(node_of(item));
  } else if (value.is_array()) {
    node.kind = Node::Kind::list;
    for (const ordered_json& item : value) node.items.push_back(node_of(item));
  } else {
    node.kind = Node::Kind::scalar;
    node.quoted = value.is_string();
    node.text = node.quoted ? value.get<std::string>() : value.dump();
  }
  return node;
}

}  // namespace

Node parse_yaml(const std::string& text, bool, Problems&) { return node_of(ordered_json::parse(text)); }

}  // namespace kvreplay
