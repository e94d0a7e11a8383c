#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/core.h>

#include "base/text.hpp"
#include "catalog/cell.hpp"
#include "config/method_keys.hpp"
#include "config/sections.hpp"
#include "config/serving.hpp"
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

RunConfig parse_over(const std::string& text, const Registry& methods, const std::vector<std::string>& measures,
                     const Wording& words) {
  Problems problems(words);
  RunConfig config = read_config(text, "", {methods, measures, ".", false}, {}, problems);
  problems.raise(config);
  return config;
}

LoadedRun load_over(const std::string& text, const Registry& methods, const std::vector<std::string>& measures,
                    const std::vector<fs::path>& traces, const OpenTensors& open, const Wording& words) {
  Problems problems(words);
  RunConfig config = read_config(text, "", {methods, measures, ".", false}, {}, problems);
  config.traces = traces;
  return checked_run(std::move(config), open, problems);
}

namespace {

void read_schema(const Section& root, const Mark& missing, Problems& problems) {
  const Node* schema = root.find("schema");
  if (schema == nullptr) {
    problems.error(missing, "schema is missing: a configuration starts with the line \"schema: 1\"");
  } else if (schema->kind != Node::Kind::scalar || schema->text != "1") {
    must_be(problems, *schema, "schema", "1, the only version this program reads");
  }
}

// The name becomes a folder when no output.dir is set.
void read_name(RunConfig& config, const Section& root, Problems& problems) {
  const Node* node = root.find("name");
  if (node == nullptr) return;
  const auto name = read_text(problems, *node, "name");
  if (!name) return;
  if (name->find('/') != std::string::npos || name->starts_with(".") || name->size() > 200) {
    must_be(problems, *node, "name", "usable as a folder's name: no slash, no leading point, at most 200 bytes");
    return;
  }
  config.name = *name;
}

// Only a prompt mode that differs from the run's is kept as a property of an instance.
void set_prompt_modes(RunConfig& config) {
  const PromptMode of_run = config.replay.prompt_streams ? PromptMode::stream : PromptMode::cut;
  for (MethodInstance& m : config.methods)
    if (m.options.prompt == of_run) m.options.prompt = PromptMode::as_run;
}

// The setting by which a method takes the prompt token by token, as its caller wrote it.
std::string streaming_text(const MethodInstance& m, const Wording& words) {
  return m.options.prompt == PromptMode::stream ? words.option("prompt", "stream")
                                                : words.mention("replay.prompt", R"("stream")");
}

// A method that cuts the prompt once, which then must not come token by token.
Refusal cut_of_stream(const MethodInstance& m, const std::string& streams, const Wording& words) {
  const std::string cut = fmt::format("the prompt once ({})", words.option("phase", "oneshot"));
  const std::string fed = fmt::format("but {} feeds it token by token", streams);
  if (m.method().info.streams)
    return {.methods = {m.named()},
            .verb = "cut",
            .rule = fmt::format("{}, {}", cut, fed),
            .remedy = "write {entry}",
            .option = {"phase", "stream"}};
  return {.methods = {m.named()},
          .verb = "cut",
          .rule = fmt::format("{} and cannot stream, {}", cut, fed),
          .remedy = fmt::format("leave it out, or take {}", words.mention("replay.prompt", R"("cut")"))};
}

void check_prompt_streams(const RunConfig& config, Problems& problems) {
  for (const MethodInstance& m : config.methods) {
    if (!config.replay.streams_prompt(m.options)) continue;
    if (m.options.serving.prefill_chunk > 0) {
      if (config.replay.prompt_streams)
        problems.error(m.mark,
                       Refusal{.methods = {m.named()},
                               .verb = "take",
                               .rule = fmt::format("the prompt in chunks (prefill_chunk), but {} feeds it token "
                                                   "by token",
                                                   problems.words().mention("replay.prompt", R"("stream")")),
                               .remedy = "leave out one of them"});
      continue;
    }
    const std::string streams = streaming_text(m, problems.words());
    const Allocator rule = m.options.allocator;
    if (compares_heads(rule))
      problems.error(m.mark, Refusal{.rule = fmt::format("allocator {} looks at the whole prompt before it shares, but "
                                                         "{} feeds it token by token",
                                                         word(rule), streams),
                                     .remedy = "leave out one of them"});
    if (!m.method().lists_in.empty())
      problems.error(m.mark,
                     Refusal{.rule = fmt::format("{} feeds the prompt token by token, but the lists of {} begin "
                                                 "when it has ended",
                                                 streams, m.method().info.name),
                             .remedy = "leave it out"});
    if (m.options.phase != Phase::stream && m.options.serving.prefill_chunk == 0)
      problems.error(m.mark, cut_of_stream(m, streams, problems.words()));
  }
}

void check_turns(const RunConfig& config, Problems& problems) {
  if (config.replay.branches.any && config.output.projections)
    problems.error(config.mark_of({"output.save"}),
                   fmt::format("{} have no recorded gradient: leave projections out of {}",
                               problems.words().key("replay.branches"), problems.words().key("output.save")));
  for (const MethodInstance& m : config.methods)
    if (const std::string why =
            turns_problem(m, config.replay.has_turns(), config.replay.branches.any, problems.words());
        !why.empty())
      problems.error(m.mark, Refusal{.methods = {m.named()}, .rule = why});
}

void check_budget_is_used(const RunConfig& config, const Node* budget, bool has_sweep, const Mark& missing,
                          Problems& problems) {
  for (const MethodInstance& m : config.methods) {
    const bool optional = m.method().info.default_fraction > 0 || !m.method().lists_in.empty();
    if (!m.values.traits().takes_budget || (budget == nullptr && optional)) continue;
    if (budget == nullptr)
      problems.error(missing,
                     fmt::format("{} is missing, and {} takes one: add {}{}", problems.words().key("budget"),
                                 m.method().info.name, problems.words().setting("budget.tokens", "[64, 128]"),
                                 has_sweep ? ", or let `kvreplay refine` find budgets as section sweep says" : ""));
    return;
  }
  if (budget != nullptr && !config.methods.empty())
    problems.warning(missing, "no listed method takes a budget: it is not used");
}

}  // namespace

void read_root(RunConfig& config, const Node& root, const Source& source, Problems& problems) {
  if (root.kind != Node::Kind::map) {
    const Mark start = config.file.empty() ? Mark{} : Mark{1, 1};
    problems.error(start, root.kind == Node::Kind::null
                              ? "the configuration is empty: it starts with the line \"schema: 1\""
                              : "a configuration is a map that starts with the line \"schema: 1\"");
    return;
  }
  // `figure` and `sweep` configure the analysis (`kvreplay figures`, `kvreplay refine`). A run does not read them.
  const std::vector<std::string> keys = {"schema", "name",    "traces", "select", "replay", "methods", "budget",
                                         "seeds",  "metrics", "run",    "output", "figure", "sweep"};
  const std::vector<std::string> misplaced = method_keys_at_root(root, keys, source.methods);
  const Node own = without(root, misplaced);
  const Section section(&own, "", keys, problems);
  read_schema(section, root.key_mark("schema"), problems);
  read_name(config, section, problems);
  read_traces(config, section.find("traces"), root.key_mark("traces"), source, problems);
  read_select(config, section.find("select"), problems);
  read_replay(config, section.find("replay"), problems);
  read_methods(config, section.find("methods"), root.key_mark("methods"), source, problems);
  check_tier(config, problems);
  tell_method_keys(config, root, misplaced, source, problems);
  read_budget(config, section.find("budget"), root.key_mark("budget"), problems);
  read_seeds(config, section.find("seeds"), problems);
  read_metrics(config, section.find("metrics"), source, problems);
  read_run(config, section.find("run"), problems);
  read_output(config, section.find("output"), source, problems);
  set_prompt_modes(config);
  check_prompt_streams(config, problems);
  check_turns(config, problems);
  check_budget_is_used(config, section.find("budget"), section.find("sweep") != nullptr, root.key_mark("budget"),
                       problems);
}

}  // namespace kvreplay
