#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

struct CsvRow {
  int64_t line = 0;  // line on which the row starts, from 1
  std::vector<std::string> fields;
};

// The rows of a comma-separated file (RFC 4180: fields may be quoted, with quotes doubled inside); empty lines are left
// out. Throws ConfigError if the file cannot be read or a quote does not end.
std::vector<CsvRow> read_csv(const std::filesystem::path& file);

}  // namespace kvreplay
