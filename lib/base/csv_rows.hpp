#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

struct CsvRow {
  int64_t line = 0;  // where it starts, from 1
  std::vector<std::string> fields;
};

// The rows of a comma-separated file (RFC 4180: fields may stand in quotes, and quotes are doubled there);
// empty lines are left out. Throws ConfigError: not readable, a quote that does not end.
std::vector<CsvRow> read_csv(const std::filesystem::path& file);

}  // namespace kvreplay
