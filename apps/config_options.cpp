#include "apps/config_options.hpp"

#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/errors.hpp"
#include "base/json_text.hpp"

namespace kvreplay::app {

void add_config_options(Command& command, ConfigOptions& options, const std::string& what) {
  command.option("file,-c,--config", options.file, what).type("FILE");
  command
      .option("-s,--set", options.sets,
              "override a value of the configuration: budget.tokens=[64,128], methods.0.window=16")
      .type("KEY=VALUE")
      .one_value();
}

std::string text_override(const std::string& key, const std::string& value) {
  return key + "=" + json_text(value);  // a JSON text is a YAML text
}

std::string list_override(const std::string& key, const std::string& comma_list, bool texts) {
  std::vector<std::string> items;
  for (const std::string& item : split_list(comma_list)) items.push_back(texts ? json_text(item) : item);
  return fmt::format("{}=[{}]", key, join(items));
}

bool looks_like_trace(const std::string& file) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::array<char, 8> start{};
  std::ifstream in(file, std::ios::binary);
  if (in.read(start.data(), start.size()) && std::string_view(start.data(), start.size()) == kSignature) return true;
  return file.ends_with(".h5") || file.ends_with(".hdf5") || file.ends_with(".part");
}

// The reader's own message for a missing file knows no neighbours.
Trace open_trace(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) return Trace(file);
  if (std::filesystem::exists(file + ".part", ignored))
    throw TraceError(fmt::format(
        "{}: does not exist, only {}.part: the dump is unfinished, run kvdump again with --resume", file, file));
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored))
    names.push_back(entry.path().filename().string());
  throw TraceError(
      fmt::format("{}: no such file{}", file, did_you_mean(std::filesystem::path(file).filename().string(), names)));
}

}  // namespace kvreplay::app
