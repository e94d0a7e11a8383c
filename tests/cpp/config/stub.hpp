#pragma once
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "config/cases.hpp"

// Helpers that return all messages of a configuration.

namespace config_stub {

// A folder with an empty file a.h5, so that paths of traces exist. Removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path path;
};

// Parses `rest`, which follows `schema: 1` and `traces: [a.h5]` (lines 1 and 2).
kvreplay::RunConfig parse(const std::string& rest, const std::vector<std::string>& overrides = {});
// {name: value} of all parameters of the i-th method; null if not resolved yet.
nlohmann::json params_of(const kvreplay::RunConfig& config, size_t i);
// The messages of an invalid configuration, one per line.
std::string errors(const std::string& rest, const std::vector<std::string>& overrides = {});
// As errors(), for a complete text.
std::string errors_of_text(const std::string& text, const std::vector<std::string>& overrides = {});

}  // namespace config_stub
