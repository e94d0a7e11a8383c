#include "apps/parameter_text.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "config/run_config.hpp"

namespace kvreplay::app {
namespace {

std::string values_text(const ParameterSpec& spec) {
  using Kind = ParameterSpec::Kind;
  switch (spec.kind) {
    case Kind::choice:
    case Kind::rows:
    case Kind::calibration:
      return join(spec.choices, " | ");
    case Kind::scorer:
      return join(spec.choices, " | ") + ", or {name: one of them, its parameters}";
    case Kind::boolean:
      return "true | false";
    case Kind::file:
      return "a path, relative to the configuration";
    case Kind::layers:
      return "a list of layers";
    case Kind::integers:
      return fmt::format("a list of whole numbers in {}", range_text(spec.low, spec.high, true));
    case Kind::integer:
    case Kind::real: {
      const std::string range = range_text(spec.low, spec.high, spec.kind == Kind::integer);
      return spec.choices.empty() ? range : range + " | " + join(spec.choices, " | ");
    }
  }
  return "";
}

// Escapes pipes, which would end a cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string spec_json(const ParameterSpec& spec) {
  const nlohmann::json all = {{"name", spec.name},
                              {"default", nlohmann::json::parse(spec.default_json)},
                              {"default_text", spec.default_text},
                              {"low", spec.low},
                              {"high", spec.high},
                              {"choices", spec.choices},
                              {"help", spec.help}};
  return all.dump();
}

TextRows parameter_rows(const std::vector<ParameterSpec>& parameters) {
  TextRows rows = {{"parameter", "default", "values", "meaning"}};
  for (const ParameterSpec& spec : parameters)
    rows.push_back({spec.name, spec.default_text, values_text(spec), spec.help});
  return rows;
}

std::string markdown_table(const TextRows& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += "|";
    for (const std::string& c : rows[r]) text += fmt::format(" {} |", cell(c));
    text += "\n";
    if (r > 0) continue;
    text += "|";
    for (size_t c = 0; c < rows[r].size(); ++c) text += "---|";
    text += "\n";
  }
  return text;
}

}  // namespace kvreplay::app
