#include "apps/config_options.hpp"

#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/text.hpp"

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

namespace {

constexpr int64_t kMostLayers = 1 << 16;

std::set<int64_t> layers_of(const std::string& trace) {
  const Trace opened = open_trace(trace);
  std::set<int64_t> known;
  for (const PromptInfo& prompt : opened.info().prompts)
    for (const LayerInfo& layer : prompt.layers) known.insert(layer.layer);
  return known;
}

ConfigError no_layers(const std::string& text) {
  return ConfigError(fmt::format("--layers {}: write all, 7, 15-29, a list such as 0,7,15-29, or every:4", text));
}

// Layers 0, n, 2 n, ... of "every:n".
std::vector<std::string> layers_at_steps(const std::string& text, const std::set<int64_t>& known) {
  const auto step = parse_number<int64_t>(text.substr(std::string("every:").size()));
  if (!step || *step < 1) throw no_layers(text);
  if (known.empty())
    throw ConfigError(fmt::format("--layers {}: needs a trace: write the layers' numbers for a configuration", text));
  std::vector<std::string> chosen;
  for (const int64_t layer : known)
    if (layer % *step == 0) chosen.push_back(std::to_string(layer));
  return chosen;
}

// Adds a number, or the layers of a range: the known ones, or all of them if none are known.
void add_layers(const std::string& word, const std::string& text, const std::set<int64_t>& known,
                std::vector<std::string>& chosen) {
  const size_t dash = word.find('-');
  if (dash == std::string::npos || dash == 0) return chosen.push_back(word);
  const auto low = parse_number<int64_t>(word.substr(0, dash)), high = parse_number<int64_t>(word.substr(dash + 1));
  if (!low || !high || *low > *high || *high >= kMostLayers) throw no_layers(text);
  // A layer beyond all known ones is refused by its number, with a list of those that the trace has.
  if (!known.empty() && *high > *known.rbegin()) return chosen.push_back(std::to_string(*high));
  for (int64_t layer = *low; layer <= *high; ++layer)
    if (known.empty() || known.count(layer) > 0) chosen.push_back(std::to_string(layer));
}

}  // namespace

std::string layer_list(const std::string& text, const std::string& trace) {
  const bool steps = text.starts_with("every:");
  if (!steps && text.find('-') == std::string::npos) return text;
  const std::set<int64_t> known = trace.empty() ? std::set<int64_t>() : layers_of(trace);
  std::vector<std::string> chosen;
  if (steps) chosen = layers_at_steps(text, known);
  else
    for (const std::string& word : split_list(text)) add_layers(word, text, known, chosen);
  if (chosen.empty()) throw ConfigError(fmt::format("--layers {}: the trace has no such layer", text));
  return join(chosen, ",");
}

bool looks_like_trace(const std::string& file) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::array<char, 8> start{};
  std::ifstream in(file, std::ios::binary);
  if (in.read(start.data(), start.size()) && std::string_view(start.data(), start.size()) == kSignature) return true;
  return file.ends_with(".h5") || file.ends_with(".hdf5") || file.ends_with(".part");
}

// Reports a missing file with similar names; the reader's message has none.
Trace open_trace(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) return Trace(file);
  if (std::filesystem::exists(file + ".part", ignored))
    throw TraceError(fmt::format(
        "{}: does not exist, only {}.part: the dump is unfinished, run `kvreplay record` again with --resume", file,
        file));
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored))
    names.push_back(entry.path().filename().string());
  throw TraceError(
      fmt::format("{}: no such file{}", file, did_you_mean(std::filesystem::path(file).filename().string(), names)));
}

}  // namespace kvreplay::app
