#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "apps/commands.hpp"
#include "apps/config_options.hpp"
#include "apps/console.hpp"
#include "apps/devices.hpp"
#include "apps/progress.hpp"
#include "apps/run_options.hpp"
#include "apps/summary.hpp"
#include "base/errors.hpp"
#include "config/run_config.hpp"
#include "plan/estimate.hpp"
#include "plan/plan.hpp"
#include "results/survey_files.hpp"
#include "survey/survey.hpp"

// `kvreplay cluster TRACE -o FILE.h5`: what a trace is like, whatever the method.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;

struct ClusterChoices {
  std::string trace, out, layers, prompts, kv_heads, tokens, prefill, jobs, progress = "auto";
  std::vector<std::string> sets;
  uint32_t seed = 0;
  bool force = false;
};

bool sets_prefill(const ClusterChoices& choices) {
  return !choices.prefill.empty() || std::any_of(choices.sets.begin(), choices.sets.end(), [](const std::string& set) {
    return set.starts_with("replay.prefill");
  });
}

// A survey is planned like a run of the exact method, so that selections are checked, and refused, by one
// text.
std::vector<std::string> overrides_of(const ClusterChoices& choices) {
  std::vector<std::string> all = {"schema=1", text_override("traces", choices.trace), "methods=[exact]",
                                  "output.save=[kept]"};
  const auto list = [&](const char* key, const std::string& value, bool texts) {
    if (!value.empty()) all.push_back(value == "all" ? fmt::format("{}=all", key) : list_override(key, value, texts));
  };
  const auto plain = [&](const char* key, const std::string& value) {
    if (!value.empty()) all.push_back(fmt::format("{}={}", key, value));
  };
  list("select.layers", layer_list(choices.layers, choices.trace), false);
  list("select.kv_heads", choices.kv_heads, false);
  list("select.prompts", choices.prompts, true);
  plain("replay.tokens", choices.tokens);
  plain("replay.prefill", choices.prefill);
  if (!sets_prefill(choices)) plain("replay.prefill", "1");  // each prompt gets its own
  plain("run.jobs", choices.jobs);
  for (const std::string& set : choices.sets) {
    if (!set.starts_with("select.") && !set.starts_with("replay."))
      throw ConfigError(
          fmt::format("-s {}: cluster knows no methods, only select.* and replay.tokens, replay.prefill", set));
    all.push_back(set);
  }
  return all;
}

// The recorded prompt where tokens follow it, else the first half.
int32_t usual_prefill(const TraceInfo& trace, const Cell& cell) {
  const PromptInfo* prompt = trace.find(cell.place.prompt);
  const int32_t tokens = cell.extent.tokens;
  return prompt->n_prompt < tokens ? int32_t(prompt->n_prompt) : std::max(1, tokens / 2);
}

std::vector<SurveyUnit> units_of(const std::vector<Cell>& plan, const TraceInfo& trace, bool prefill_given) {
  std::vector<SurveyUnit> units;
  for (const Cell& cell : plan)
    units.push_back({cell.place,
                     cell.prompt_rank,
                     {cell.extent.tokens, prefill_given ? cell.extent.prompt_tokens : usual_prefill(trace, cell)}});
  return units;
}

// Before anything is computed: two files that may be written.
void check_output(const ClusterChoices& choices) {
  const fs::path file = choices.out, table = survey_table(file);
  if (file == table)
    throw ConfigError(
        fmt::format("-o {}: is the name of the table that stands beside the HDF5 file; write FILE.h5", choices.out));
  for (const fs::path& path : {file, table}) {
    std::error_code ignored;
    if (fs::equivalent(path, choices.trace, ignored))
      throw ConfigError(fmt::format("{}: is the trace itself; choose another file with -o", path.string()));
    if (fs::exists(path, ignored) && !choices.force)
      throw ConfigError(
          fmt::format("{}: exists; overwrite it with --force, or choose another file with -o", path.string()));
  }
  if (file.has_parent_path()) {
    std::error_code error;
    fs::create_directories(file.parent_path(), error);
    if (error) throw OutputError(fmt::format("{}: cannot be made: {}", file.parent_path().string(), error.message()));
  }
}

// Means over the kv heads of a layer; a value that does not apply to one of them is left out.
struct Mean {
  double sum = 0;
  int count = 0;
  void add(double x) { sum += x, ++count; }
  void add(const std::vector<double>& values) {
    for (const double x : values) add(x);
  }
  std::string text() const { return count == 0 ? "-" : fmt::format("{:.3g}", sum / count); }
};

constexpr const char* kViews[] = {"keys", "keys_unrotated", "values"};
struct LayerMeans {
  std::map<std::string, Mean> r16, r256, growth;
  Mean sparsity, sink, top20, null20;

  void add(const UnitSurvey& survey) {
    for (const Clusterability& c : survey.views) {
      if (c.radii.size() >= 16 && c.rms > 0) r16[c.view].add(c.radii[15] / c.rms);
      if (c.radii.size() >= 256 && c.rms > 0) r256[c.view].add(c.radii[255] / c.rms);
      if (!c.growth_exponent.empty()) growth[c.view].add(c.growth_exponent[2]);
    }
    const AttentionShape& a = survey.attention;
    sparsity.add(a.sparsity);
    sink.add(a.sink_mass);
    for (size_t at = 2; at < a.top_share_heads.size(); at += std::size(kTopShares)) top20.add(a.top_share_heads[at]);
    if (!a.top_share_null.empty()) null20.add(a.top_share_null[2]);
  }
  std::vector<std::string> fields() {
    std::vector<std::string> row;
    for (auto* means : {&r16, &r256, &growth})
      for (const char* view : kViews) row.push_back((*means)[view].text());
    for (const Mean* mean : {&sparsity, &sink, &top20, &null20}) row.push_back(mean->text());
    return row;
  }
};

std::string summary(const std::vector<UnitSurvey>& surveys) {
  static_assert(kDeltaRel[2] == 0.7 && kTopShares[2] == 0.2);
  std::map<std::pair<std::string, int32_t>, LayerMeans> layers;
  for (const UnitSurvey& survey : surveys) layers[{survey.unit.place.prompt, survey.unit.place.layer}].add(survey);
  std::vector<std::vector<std::string>> rows = {{"prompt", "layer", "r16 keys", "unrot", "values", "r256 keys", "unrot",
                                                 "values", "growth keys", "unrot", "values", "sparsity", "token 0",
                                                 "top 20 %", "null"}};
  for (auto& [place, means] : layers) {
    rows.push_back({place.first, std::to_string(place.second)});
    const std::vector<std::string> fields = means.fields();
    rows.back().insert(rows.back().end(), fields.begin(), fields.end());
  }
  return aligned(rows) +
         "r16, r256: k-center radius / rms; growth: slope of ln m against ln n, radius 0.7 of the median "
         "distance;\nsparsity: share below 1 % of the row's maximum; means over heads\n";
}

int cluster(const ClusterChoices& choices, Context& context) {
  Console& console = context.console;
  const LoadedRun loaded = load_run({}, overrides_of(choices), registry(), {}, option_wording());
  for (const std::string& warning : loaded.config.warnings) console.warning(warning);
  check_output(choices);
  const std::vector<Cell> plan = plan_cells(loaded);
  const TraceInfo& info = loaded.traces.front();
  SurveyOptions options;
  options.seed = choices.seed;
  options.jobs = loaded.config.run.jobs > 0 ? loaded.config.run.jobs : default_jobs();
  Progress progress(console, Progress::mode_of(choices.progress, console.verbosity < 0), 0, plan,
                    estimate(loaded.config, plan, loaded.traces).cost);
  options.on_start = [&](size_t i) { progress.started(plan[i]); };
  options.on_done = [&](size_t i) { progress.finished(plan[i], true); };
  const StopSignals signals;
  options.stop = [] { return StopSignals::stop(); };
  const std::vector<UnitSurvey> surveys =
      survey_trace(Trace(loaded.config.traces.front()), units_of(plan, info, sets_prefill(choices)), options);
  progress.end();
  if (surveys.size() < plan.size()) {
    console.note("stopped: nothing is written");
    return StopSignals::exit_code();
  }
  write_survey(choices.out, {info.trace_id, info.model, choices.seed}, surveys);
  print(summary(surveys));
  console.note(fmt::format("wrote {} and {}", choices.out, survey_table(choices.out).string()));
  return 0;
}

}  // namespace

void add_clusterability(Command& app) {
  const auto choices = std::make_shared<ClusterChoices>();
  Command command = app.command(
      "clusterability", "a trace's clusters and attention: k-center radii, cluster counts, sparsity, heavy tail");
  command.formerly("cluster");
  command.option("trace", choices->trace, "a trace (HDF5)").required().type("TRACE");
  command.option("-o,--out", choices->out, "the HDF5 file to write; the same numbers go to FILE.csv")
      .required()
      .type("FILE.h5");
  const auto add = [&](const char* name, std::string& value, const char* help, const char* type) {
    command.option(name, value, help).type(type);
  };
  add("--tokens", choices->tokens, "use the first N tokens (default: all)", "N");
  add("--prefill", choices->prefill,
      "tokens of the prompt, for the overlaps (default: as recorded if tokens follow, else half)", "N");
  add("--layers", choices->layers, kLayersHelp, "LIST");
  add("--prompts", choices->prompts, "prompts by id (default: all)", "LIST");
  add("--kv-heads", choices->kv_heads, "kv heads: 0,2 (default: all)", "LIST");
  add("-j,--jobs", choices->jobs, "threads; the numbers do not depend on it (default: all cores)", "N");
  command.option("-s,--set", choices->sets, "the same as a configuration says it: select.layers=[0,7]")
      .type("KEY=VALUE")
      .one_value();
  command.option("--seed", choices->seed, "seed of the pairs behind the median distance").shows_default();
  command.flag("--force", choices->force, "overwrite FILE.h5 and FILE.csv");
  command.option("--progress", choices->progress, "auto, bar, plain, json or none")
      .one_of({"auto", "bar", "plain", "json", "none"});
  command.runs([choices](Context& context) { return cluster(*choices, context); });
}

}  // namespace kvreplay::app
