#include "apps/format_text.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/parameter_text.hpp"
#include "apps/text_table.hpp"
#include "base/text.hpp"

namespace kvreplay::app {
namespace {

using nlohmann::json;
using Lines = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kEveryFormatTakes =
    "Every format also takes rotate, rotate_block and keys, where they have a meaning for it, and every row_format "
    "full_precision, skip_layers and own_row: docs/configuration.md, \"Row formats\".";

RowFormat both(const RowFormatEntry& format) { return row_format(format.info.name); }

std::string rotation_text(const RowFormatEntry& format) {
  if (format.own_rotation) return "its own";
  return format.info.default_rotate == RowRotation::hadamard_signed ? "hadamard_signed by default" : "";
}

Lines facts(const RowFormatEntry& format) {
  const RowFormat f = both(format);
  const int64_t fixed = static_bytes(f, 64, 64);
  const std::string bytes = format.which == 0
                                ? ""
                                : fmt::format("{} for a key and a value of 64 numbers, {} of 128{}",
                                              row_bytes_text(format, 64), row_bytes_text(format, 128),
                                              fixed > 0 ? fmt::format(", and {} once for a kv head of 64", fixed) : "");
  const Lines all = {
      {"source", format.info.source},
      {"tier", std::to_string(format.info.tier)},
      {"bytes", bytes},
      {"rotation", rotation_text(format)},
      {"keys", format.info.keys_pre_rope ? "pre_rope by default" : ""},
      {"widths", format.info.multiple_of > 1 ? fmt::format("multiples of {}", format.info.multiple_of) : ""},
      {"constants", is_calibrated(f) ? "from the prompt, once for each kv head" : ""},
      {"coded", format.info.by_block ? "several rows together" : ""},
      {"deviation", format.info.deviation}};
  Lines said;
  for (const auto& line : all)
    if (!line.second.empty()) said.push_back(line);
  return said;
}

}  // namespace

std::string row_bytes_text(const RowFormatEntry& format, int32_t width) {
  if (format.which == 0) return "as the trace";
  const double bytes = row_bytes(both(format), width, width, 2);
  return bytes == double(int64_t(bytes)) ? std::to_string(int64_t(bytes)) : fmt::format("{:.1f}", bytes);
}

std::string format_json(const RowFormatEntry& format) {
  json parameters = json::array();
  for (const ParameterSpec& spec : format.parameters) parameters.push_back(json::parse(spec_json(spec)));
  const RowFormat f = both(format);
  const FormatInfo& info = format.info;
  json all = {{"name", info.name},
              {"title", info.title},
              {"source", info.source},
              {"tier", info.tier},
              {"deviation", info.deviation},
              {"multiple_of", info.multiple_of},
              {"coded_in_blocks", info.by_block},
              {"calibrated", is_calibrated(f)},
              {"own_rotation", format.own_rotation},
              {"parameters", parameters}};
  if (format.which > 0) all["bytes_64"] = row_bytes(f, 64, 64, 2), all["bytes_128"] = row_bytes(f, 128, 128, 2);
  return all.dump(2);
}

std::string format_text(const RowFormatEntry& format) {
  std::string text = fmt::format("{}: {}\n\n", format.info.name, format.info.title);
  for (const auto& [name, value] : facts(format)) text += fmt::format("{:<11}{}\n", name, value);
  text += format.parameters.empty() ? "\nno parameters\n" : "\n" + left_aligned(parameter_rows(format.parameters));
  return text + "\n" + kEveryFormatTakes + "\n";
}

std::string format_markdown(const RowFormatEntry& format) {
  std::string text = fmt::format("## {}\n\n{}.\n\n", format.info.name, format.info.title);
  for (const auto& [name, value] : facts(format)) text += fmt::format("- **{}**: {}\n", name, value);
  if (!format.parameters.empty()) text += "\n" + markdown_table(parameter_rows(format.parameters));
  return text;
}

std::string formats_markdown_page() {
  std::string text =
      "# Row formats\n\nHow the rows of any cache are stored, from the lines of each format's own file (`kvreplay list "
      "formats --markdown`). Bytes are those of a coded row, key and value together, with scales and offsets; what is "
      "stored once for a kv head is not in them. " +
      std::string(kEveryFormatTakes) + "\n\n";
  TextRows rows = {{"name", "what it stores", "bytes, d = 64", "d = 128", "tier"}};
  for (const RowFormatEntry& f : row_formats())
    rows.push_back({fmt::format("[`{}`](#{})", f.info.name, f.info.name), f.info.title, row_bytes_text(f, 64),
                    row_bytes_text(f, 128), std::to_string(f.info.tier)});
  text += markdown_table(rows);
  for (const RowFormatEntry& f : row_formats()) text += "\n" + format_markdown(f);
  return text;
}

}  // namespace kvreplay::app
