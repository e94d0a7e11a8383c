#include "base/json_text.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvreplay {

std::string json_text(std::string_view text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (!plain) return canonical(nlohmann::json(text));
  return std::string(1, '"').append(text).append(1, '"');
}

std::string JsonObject::members() const {
  std::string all;
  for (const auto& [name, json] : members_) all += (all.empty() ? "" : ",") + json_text(name) + ":" + json;
  return all;
}

JsonObject JsonObject::without(const JsonObject& others) const {
  JsonObject rest;
  for (const auto& [name, json] : members_) {
    const auto same = others.members_.find(name);
    if (same == others.members_.end() || same->second != json) rest.members_[name] = json;
  }
  return rest;
}

std::string parse_json_string(std::string_view json) { return nlohmann::json::parse(json).get<std::string>(); }

std::string JsonObject::text() const { return "{" + members() + "}"; }

}  // namespace kvreplay
