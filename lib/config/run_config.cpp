#include "config/run_config.hpp"

#include <fmt/core.h>

#include "base/text.hpp"
#include "config/sections.hpp"

namespace kvreplay {

RunConfig read_config(const std::string& text, const std::string& label, const Source& source,
                      const std::vector<std::string>& overrides, Problems& problems) {
  RunConfig config;
  config.file = label, config.words = &problems.words();
  Node root = parse_yaml(text, !label.empty(), problems);
  if (problems.any_error() && root.kind == Node::Kind::null) return config;  // not even YAML
  for (const std::string& assignment : overrides) apply_override(root, assignment, problems);
  if (!label.empty() && root.mark.line == 0) root.mark = {1, 1};  // a file without a map, which an override made one
  read_root(config, root, source, problems);
  return config;
}

Mark RunConfig::mark_of(std::initializer_list<std::string> places) const {
  for (const std::string& place : places)
    if (const auto found = marks.find(place); found != marks.end()) return found->second;
  return {};
}

bool RunConfig::has_place(const Mark& mark) const { return !file.empty() && mark.line > 0; }

std::string RunConfig::at(const Mark& mark, const std::string& severity, const std::string& text) const {
  // A value or a file's name may contain line ends.
  const std::string line = single_line(text);
  if (!has_place(mark)) return line;
  return fmt::format("{}:{}:{}: {}: {}", file.string(), mark.line, mark.column, severity, line);
}

RunConfig parse_config(const std::string& text, const std::filesystem::path& base, const std::string& label,
                       const std::vector<std::string>& overrides, const Registry& methods,
                       const std::vector<std::string>& measures) {
  Problems problems;
  RunConfig config = read_config(text, label, {methods, measures, base}, overrides, problems);
  problems.raise(config);
  config.warnings = problems.warnings(config);
  return config;
}

std::vector<SelectedLayer> select(RunConfig& config, const std::vector<TraceInfo>& traces,
                                  std::vector<std::string>& problems) {
  Problems found(*config.words);
  std::vector<SelectedLayer> selected = select(config, traces, found);
  const auto errors = found.errors(config), warnings = found.warnings(config);
  problems.insert(problems.end(), errors.begin(), errors.end());
  config.warnings.insert(config.warnings.end(), warnings.begin(), warnings.end());
  return selected;
}

}  // namespace kvreplay
