#include "config/run_config.hpp"

#include <fmt/core.h>

#include "base/json_text.hpp"
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

namespace {

template <class T>
std::string or_word(const std::optional<T>& value, const char* word) {
  return value ? json_of(*value) : json_of(word);
}

JsonObject replay_json(const RunConfig::Replay& replay) {
  using Queries = RunConfig::Replay::Queries;
  const char* kind = replay.queries == Queries::last ? "last" : "stride";
  JsonObject entry;
  entry.add_json("tokens", or_word(replay.tokens, "all"));
  entry.add_json("prefill", replay.prefill_share ? json_of(*replay.prefill_share) : or_word(replay.prefill, "trace"));
  entry.add("prompt", replay.prompt_streams ? "stream" : "cut");
  if (replay.turns) entry.add("turns", true);
  if (replay.branches.any)
    entry.add_json("branches", replay.branches.numbers.empty() ? json_of("all") : json_of(replay.branches.numbers));
  if (replay.queries == Queries::all) entry.add("queries", "all");
  else entry.add_json("queries", JsonObject().add(kind, replay.queries_count).text());
  if (replay.needles.recorded) entry.add("needles", "recorded");
  if (!replay.needles.at.empty())
    entry.add_json("needles", JsonObject().add("at", replay.needles.at).add("tokens", replay.needles.tokens).text());
  add_json(replay.working_set, entry);
  return entry;
}

// Files are recorded by their paths.
std::string value_json(const ParameterSpec& spec, const MethodValues& values) {
  if (spec.kind == ParameterSpec::Kind::file) return values.file().empty() ? "null" : json_of(values.file());
  if (spec.kind == ParameterSpec::Kind::calibration) return json_of(word(values.calibration()));
  return parameter_json(spec, values.policy());
}

std::string method_json(const MethodInstance& m) {
  JsonObject entry;
  for (const ParameterSpec& spec : m.method().parameters) entry.add_json(spec.name, value_json(spec, m.values));
  entry.add("name", m.method().info.name);
  if (!m.uniforms.empty()) entry.add("uniforms", m.uniforms.string());
  const std::string options = options_json(m.options);
  return "{" + entry.members() + "," + options.substr(1);
}

std::string budget_json(const BudgetList& budget) {
  if (budget.values.empty() && !budget.has_shares()) return "null";
  JsonObject entry;
  if (!budget.values.empty()) entry.add(kBudgetKinds[size_t(budget.kind)], budget.values);
  if (budget.kind == BudgetList::Kind::ratio_of_seen) entry.add("floor", budget.floor);
  if (budget.has_shares()) entry.add("share_of_cache", budget.shares);
  if (budget.of) entry.add("of", kSizesOfShares[size_t(*budget.of)]);
  return entry.text();
}

std::string output_json(const RunConfig::Output& output) {
  std::vector<std::string> save;
  if (output.curves) save.emplace_back("curves");
  if (output.kept) save.emplace_back("kept");
  if (output.outputs) save.emplace_back("outputs");
  if (output.projections) save.emplace_back("projections");
  if (output.consensus) save.emplace_back("consensus");
  JsonObject entry;
  entry.add("save", save);
  if (!output.dir.empty()) entry.add("dir", output.dir.string());
  return entry.text();
}

std::string run_json(const RunConfig::Run& run) {
  JsonObject entry;
  entry.add("device", run.device).add("precision", run.double_precision ? "double" : "single");
  entry.add_json("jobs", run.jobs == 0 ? json_of("auto") : json_of(run.jobs)).add("audit", run.audit);
  return entry.text();
}

}  // namespace

std::string resolved_json(const RunConfig& config) {
  std::vector<std::string> traces;
  for (const auto& path : config.traces) traces.push_back(path.string());
  std::string methods;
  for (const MethodInstance& instance : config.methods) methods += (methods.empty() ? "" : ",") + method_json(instance);
  JsonObject select;
  select.add_json("prompts", or_word(config.select.prompts, "all"));
  select.add_json("layers", or_word(config.select.layers, "all"));
  select.add_json("kv_heads", or_word(config.select.kv_heads, "all"));
  JsonObject all;
  all.add("schema", 1).add("name", config.name).add("traces", traces).add_json("select", select.text());
  all.add_json("replay", replay_json(config.replay).text()).add_json("methods", "[" + methods + "]");
  all.add_json("budget", budget_json(config.budget));
  all.add_json("seeds", JsonObject().add("first", config.seed_first).add("count", config.seed_count).text());
  all.add_json("metrics", config.metrics.empty() ? json_of("default") : json_of(config.metrics));
  return all.add_json("run", run_json(config.run)).add_json("output", output_json(config.output)).text();
}

}  // namespace kvreplay
