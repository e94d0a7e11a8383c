#pragma once
#include <string>
#include <vector>

#include "parameters/parameter.hpp"

// Describes parameters of methods and row formats for people, for programs and for the documentation.

namespace kvreplay::app {

using TextRows = std::vector<std::vector<std::string>>;

std::string spec_json(const ParameterSpec& spec);
// Name, default, values and meaning of each, below a header row.
TextRows parameter_rows(const std::vector<ParameterSpec>& parameters);
// The first row is the header.
std::string markdown_table(const TextRows& rows);

}  // namespace kvreplay::app
