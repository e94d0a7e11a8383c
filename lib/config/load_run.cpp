#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/text.hpp"
#include "catalog/cell.hpp"
#include "config/sections.hpp"
#include "trace/trace.hpp"

// Loads configurations and traces from files.

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 20;

std::string similar_files(const fs::path& file) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(file.parent_path().empty() ? "." : file.parent_path(), ignored))
    if (entry.path().extension() == ".yaml" || entry.path().extension() == ".yml")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return did_you_mean(file.filename().string(), names);
}

// A file that is called a configuration, or that begins one somewhere.
bool looks_like_configuration(const fs::path& file, const std::string& text) {
  const std::string suffix = file.extension().string();
  if (suffix == ".yaml" || suffix == ".yml" || suffix == ".json") return true;
  return text.empty() || text.starts_with("schema:") || text.find("\nschema:") != std::string::npos;
}

std::string read_file(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    throw ConfigError(fmt::format("{}: error: no such file{}", file.string(), similar_files(file)));
  if (fs::is_regular_file(file / "results.csv", ignored))
    throw ConfigError(fmt::format(
        "{}: error: is the output of a run: give the .yaml configuration or the trace that was run, or draw it: "
        "kvreplay report {}",
        file.string(), shell_quoted(file.string())));
  if (fs::is_directory(file, ignored))
    throw ConfigError(fmt::format("{}: error: is a folder without an index.h5: give a .yaml configuration or a trace",
                                  file.string()));
  if (!fs::is_regular_file(file, ignored)) throw ConfigError(fmt::format("{}: error: not a file", file.string()));
  if (fs::file_size(file, ignored) > kLargestFile)
    throw ConfigError(fmt::format("{}:1:1: error: larger than 1 MiB: this is no configuration", file.string()));
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw ConfigError(fmt::format("{}: error: cannot be read", file.string()));
  if (!looks_like_configuration(file, text.str()))
    throw ConfigError(fmt::format("{}: error: neither a trace (.h5) nor a configuration (.yaml)", file.string()));
  return text.str();
}

// Prompts that are replayed, or that a method or an allocator is calibrated on; nothing: all.
std::optional<std::vector<std::string>> looked_at(const RunConfig& config) {
  std::optional<std::vector<std::string>> prompts = config.select.prompts;
  for (const MethodInstance& m : config.methods) {
    if (m.values.calibration().is_offline()) return std::nullopt;
    const Calibration* from = calibration_heads(m.values, m.options);
    if (from == nullptr || !prompts) continue;
    if (from->source == Calibration::Source::others) return std::nullopt;
    if (from->source == Calibration::Source::prompt) prompts->push_back(from->name);
  }
  return prompts;
}

// The reader reports unfinished and foreign files; the configuration has already reported missing ones.
std::vector<TraceInfo> open_traces(const RunConfig& config, const OpenTensors& open, Problems& problems) {
  std::vector<TraceInfo> traces;
  for (size_t i = 0; i < config.traces.size(); ++i) {
    try {
      traces.push_back(open(i, {looked_at(config), config.select.layers})->info());
    } catch (const TraceError& e) {
      problems.trace_error(config.mark_of({fmt::format("traces[{}]", i)}), e.what());
    }
  }
  return traces;
}

LoadedRun checked_run(RunConfig config, const OpenTensors& open, Problems& problems) {
  LoadedRun run;
  run.config = std::move(config);
  run.traces = open_traces(run.config, open, problems);
  run.selection = select(run.config, run.traces, problems);
  problems.raise(run.config);
  run.config.warnings = problems.warnings(run.config);
  return run;
}

LoadedRun run_of_files(const std::string& text, const Source& source, const std::string& label,
                       const std::vector<std::string>& overrides, Problems& problems) {
  RunConfig config = read_config(text, label, source, overrides, problems);
  const OpenTensors open = open_files(config.traces);
  return checked_run(std::move(config), open, problems);
}

}  // namespace

RunConfig load_config(const fs::path& file, const std::vector<std::string>& overrides, const Registry& methods,
                      const std::vector<std::string>& measures) {
  return parse_config(read_file(file), file.parent_path(), file.string(), overrides, methods, measures);
}

LoadedRun load_run(const fs::path& file, const std::vector<std::string>& overrides, const Registry& methods,
                   const std::vector<std::string>& measures, const Wording& words) {
  Problems problems(words);
  return run_of_files(file.empty() ? "{}" : read_file(file), {methods, measures, file.parent_path()}, file.string(),
                      overrides, problems);
}

LoadedRun load_run(const std::string& text, const fs::path& base, const std::string& label,
                   const std::vector<std::string>& overrides, const Registry& methods,
                   const std::vector<std::string>& measures) {
  Problems problems;
  return run_of_files(text, {methods, measures, base}, label, overrides, problems);
}

LoadedRun load_over(const std::string& text, const Registry& methods, const std::vector<std::string>& measures,
                    const std::vector<fs::path>& traces, const OpenTensors& open, const Wording& words) {
  Problems problems(words);
  RunConfig config = read_config(text, "", {methods, measures, ".", false}, {}, problems);
  config.traces = traces;
  return checked_run(std::move(config), open, problems);
}

}  // namespace kvreplay
