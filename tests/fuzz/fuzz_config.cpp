#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/errors.hpp"
#include "config/cases.hpp"
#include "finding.hpp"

// Any bytes as a configuration, checked against a trace. Input: the text, then overrides, each after a NUL.
// A configuration is refused with messages that name a place, or accepted: then what a run records of it is
// accepted too, and means the same.

using namespace kvreplay;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text)
    if (c == at) parts.emplace_back();
    else parts.back() += c;
  return parts;
}

// With a file a.h5 that configurations may name.
std::filesystem::path folder() {
  const std::filesystem::path made = std::filesystem::temp_directory_path() / "kvreplay-fuzz-config";
  std::filesystem::create_directories(made);
  std::ofstream(made / "a.h5") << "is not opened";
  return made;
}

// A trace that an override names is told by its own name, which may be any text.
bool is_of_a_trace(const std::string& line) {
  constexpr const char* kWords[] = {"no trace ", " is an unfinished dump", " is a folder without", " is not a file",
                                    " does not exist, only "};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](const char* words) { return line.find(words) != line.npos; });
}

void check_places(const std::string& messages) {
  if (messages.empty()) finding("an error without a message");
  for (const std::string& line : split(messages, '\n'))
    if (!line.starts_with("c.yaml:") && !line.starts_with("command line: error: ") && !is_of_a_trace(line))
      finding("a message without its place: " + line);
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
    if (resolved_json(again) != recorded) finding("what is recorded means something else: " + recorded);
    select(config, std::vector<TraceInfo>(config.traces.size(), config_stub::trace_of(3, 100)), problems);
    for (const std::string& problem : problems) check_places(problem);
  } catch (const UserError& error) {
    check_places(error.what());
  }
  return 0;
}
