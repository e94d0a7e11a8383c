#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/errors.hpp"
#include "config/cases.hpp"
#include "finding.hpp"

// Takes any bytes as a configuration and checks it against a trace. Input: the text, then overrides, each after a NUL.
// Either the configuration is refused with messages that name a place, or it is accepted. If accepted, the resolved
// form that a run records is accepted too and has the same meaning.

using namespace kvreplay;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text)
    if (c == at) parts.emplace_back();
    else parts.back() += c;
  return parts;
}

// The folder has a file a.h5 that configurations may name.
std::filesystem::path folder() {
  const std::filesystem::path made = std::filesystem::temp_directory_path() / "kvreplay-fuzz-config";
  std::filesystem::create_directories(made);
  std::ofstream(made / "a.h5") << "is not opened";
  return made;
}

// A message about an override has no place in the file.
void check_places(const std::string& messages, bool overridden) {
  if (messages.empty()) finding("an error without a message");
  for (const std::string& line : split(messages, '\n'))
    if (!line.starts_with("c.yaml:") && !overridden) finding("a message without its place: " + line);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path base = folder();
  std::vector<std::string> parts = split(std::string(reinterpret_cast<const char*>(data), size), '\0');
  const std::string text = parts.front();
  parts.erase(parts.begin());
  try {
    RunConfig config = parse_config(text, base, "c.yaml", parts, config_stub::methods(), {});
    std::vector<std::string> problems;
    const std::string recorded = resolved_json(config);
    const RunConfig again = parse_config(recorded, base, "c.yaml", {}, config_stub::methods(), {});
    if (resolved_json(again) != recorded) finding("the recorded form has another meaning: " + recorded);
    select(config, std::vector<TraceInfo>(config.traces.size(), config_stub::trace_of(3, 100)), problems);
    for (const std::string& problem : problems) check_places(problem, !parts.empty());
  } catch (const UserError& error) {
    check_places(error.what(), !parts.empty());
  }
  return 0;
}
