#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/text.hpp"

// JSON for output: values as canonical text (base/text.hpp), so that code that passes them on needs no parser.

namespace kvreplay {

// "text" with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
// The string that a JSON string represents.
std::string parse_json_string(std::string_view json);
template <class T>
std::string json_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_arithmetic_v<T>) return number_text(double(value));
  else return json_text(value);
}
template <class T>
std::string json_of(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += text.size() > 1 ? "," : "", text += json_of(value);
  return text += "]";
}

// {"name":value,...} with sorted names.
class JsonObject {
 public:
  template <class T>
  JsonObject& add(const std::string& name, const T& value) {
    return add_json(name, json_of(value));
  }
  // json: the text of any JSON value.
  JsonObject& add_json(const std::string& name, std::string json) {
    members_[name] = std::move(json);
    return *this;
  }
  JsonObject& add_all(const JsonObject& others) {
    for (const auto& [name, json] : others.members_) members_[name] = json;
    return *this;
  }
  // Members that `others` does not hold with an equal value.
  JsonObject without(const JsonObject& others) const;
  bool empty() const { return members_.empty(); }
  std::string text() const;
  std::string members() const;  // without the braces

 private:
  std::map<std::string, std::string> members_;
};

}  // namespace kvreplay
