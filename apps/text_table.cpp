#include "apps/text_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

namespace kvreplay::app {
namespace {

std::string padded(const std::vector<std::vector<std::string>>& rows, size_t left_columns) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += (i > 0 ? "  " : "") +
              (i < left_columns ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) { return padded(rows, 1); }
std::string left_aligned(const std::vector<std::vector<std::string>>& rows) { return padded(rows, SIZE_MAX); }

}  // namespace kvreplay::app
