#pragma once
#include <string>
#include <vector>

#include "base/refusal.hpp"
#include "catalog/method.hpp"
#include "config/run_config.hpp"
#include "formats/registry.hpp"
#include "parameters/parameter.hpp"

// Describes methods, row formats and their parameters for people, for programs and for the documentation.

namespace kvreplay::app {

std::string phases_text(const MethodInfo& info);  // the first is the default
std::string method_json(const Method& method);
std::string method_text(const Method& method);
std::string method_markdown(const Method& method);
// The README's table, and the page with one section for each method.
std::string methods_markdown_table(const Registry& methods);
std::string methods_markdown_page(const Registry& methods);

// Throws ConfigError that suggests similar names.
const Method& method_named(const Registry& methods, const std::string& name, const Wording& words = file_wording());

using TextRows = std::vector<std::vector<std::string>>;

std::string spec_json(const ParameterSpec& spec);
// Name, default, values and meaning of each, below a header row.
TextRows parameter_rows(const std::vector<ParameterSpec>& parameters);
// The first row is the header.
std::string markdown_table(const TextRows& rows);

// Bytes of a coded row of `width` numbers, keys and values together: "72".
std::string row_bytes_text(const RowFormatEntry& format, int32_t width);
std::string format_json(const RowFormatEntry& format);
std::string format_text(const RowFormatEntry& format);
std::string format_markdown(const RowFormatEntry& format);
std::string formats_markdown_page();

// "snapkv window=16 phase=stream": the name and the parameters that are not defaults.
std::string instance_text(const MethodInstance& instance);

}  // namespace kvreplay::app
