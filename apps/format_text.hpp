#pragma once
#include <string>

#include "formats/registry.hpp"

// Describes a row format for people, for programs and for the documentation.

namespace kvreplay::app {

// Bytes of a coded row of `width` numbers, keys and values together: "72".
std::string row_bytes_text(const RowFormatEntry& format, int32_t width);
std::string format_json(const RowFormatEntry& format);
std::string format_text(const RowFormatEntry& format);
std::string format_markdown(const RowFormatEntry& format);
std::string formats_markdown_page();

}  // namespace kvreplay::app
