#include "apps/labels.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace kvreplay::app {

std::string label_text(const std::string& method, const std::string& given) {
  std::string text = method;
  const auto members = nlohmann::json::parse(given);
  for (const auto& [name, value] : members.items())
    text += fmt::format(" {}={}", name, value.is_string() ? value.get<std::string>() : canonical(value));
  return text;
}

std::string instance_text(const MethodInstance& instance) {
  return label_text(instance.method().info.name, given_json(instance.values, instance.options));
}

}  // namespace kvreplay::app
