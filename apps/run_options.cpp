#include "apps/run_options.hpp"

#include <fmt/core.h>

#include <map>

#include "apps/command_line.hpp"
#include "apps/devices.hpp"
#include "apps/engine_options.hpp"
#include "apps/offered/registry.hpp"
#include "apps/remarks.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "measures/metrics.hpp"
#include "plan/only.hpp"
#include "plan/plan.hpp"
#include "trace/trace.hpp"

namespace kvreplay::app {

bool names_a_trace(const RunChoices& choices) {
  return !choices.config.file.empty() && looks_like_trace(choices.config.file);
}

void add_progress_option(Command& command, std::string& progress) {
  command.option("--progress", progress, "auto, bar, plain, json or none")
      .one_of({"auto", "bar", "plain", "json", "none"});
}

void add_run_options(Command& command, RunChoices& choices) {
  add_plan_options(command, choices);
  const Option fail_fast = command.flag("--fail-fast", choices.fail_fast, "stop at the first failed cell");
  command.flag("--keep-going", choices.keep_going, "replay the other cells after a failure (default)")
      .excludes(fail_fast);
  command.flag("--plan-only", choices.plan_only,
               "results.csv holds the cells of this run alone (default: those that earlier runs left there as well)");
  add_progress_option(command, choices.progress);
}

void add_plan_options(Command& command, RunChoices& choices) {
  add_config_options(command, choices.config, "a configuration (YAML), or a trace (HDF5) together with --method");
  command.option("-o,--out", choices.out, "where results go (default: output.dir, else out/NAME)").type("DIR");
  command.option("-j,--jobs", choices.jobs, "threads; the numbers do not depend on it (default: all cores)").type("N");
  command.option("--device", choices.device, "cpu or cuda[:N]").type("DEVICE");
  command.flag("-n,--dry-run", choices.dry_run, "only show cells, memory and estimated time");
  command.flag("--force", choices.force, "remove the results of earlier runs from the output directory");
  const std::string group = "Instead of a configuration, or over it";
  const auto add = [&](const char* name, std::string& value, const char* help, const char* type) {
    command.option(name, value, help).type(type).group(group);
  };
  add("--method,--methods", choices.methods, "methods: h2o,snapkv", "LIST");
  add("--budget", choices.budget,
      "tokens per kv head: 64,256; or shares of the full cache's bytes, which --of names: 10%,20%", "LIST");
  command
      .option(
          "--of", choices.of,
          "bytes that a share bounds: the prompt's after its cut, as papers count them (the default if tokens follow "
          "every prompt), at the peak (otherwise the default), or the mean over steps")
      .one_of({"peak", "mean", "prompt"})
      .group(group);
  add("--prefill", choices.prefill, kPrefillHelp, "N|SHARE");
  add("--tokens", choices.tokens, "use the first N tokens (default: all)", "N");
  add("--layers", choices.layers, kLayersHelp, "LIST");
  add("--kv-heads", choices.kv_heads, "kv heads: 0,2 (default: all)", "LIST");
  add("--prompts", choices.prompts, "prompts by id (default: all)", "LIST");
  add("--seeds", choices.seeds, "seeds of the random methods: how many from 0, or FIRST:COUNT (default: 5)", "N");
  command
      .flag("--predict", choices.predicts,
            "save projections, from which losses are predicted, if every prompt of the trace has a gradient")
      .group(group);
  add("--save", choices.save, "curves,kept,outputs,projections,consensus: arrays that go to HDF5 (default: none)",
      "LIST");
  add("--precision", choices.precision, "single (default) or double", "WORD");
  add("--only", choices.only, "only cells that a row of this CSV names (prompt, layer, method, budget_tokens, ...)",
      "FILE");
}

LoadedRun load_run(const RunChoices& choices, Console& console) {
  const std::filesystem::path config = config_file(choices);
  const std::vector<std::string> overrides = overrides_of(choices);
  LoadedRun loaded = [&] {
    try {
      return kvreplay::load_run(config, overrides, known_methods(), metric_names(),
                                config.empty() ? option_wording() : file_wording());
    } catch (const ConfigError& e) {
      throw ConfigError(with_offered_hint(e.what()));
    }
  }();
  for (const std::string& warning : loaded.config.warnings) console.warning(warning);
  return loaded;
}

SolvedShares solve_shares(LoadedRun& loaded, Console& console) {
  if (!loaded.config.budget.has_shares()) return {};
  console.note(fmt::format("solving shares of {}: budgets are tried, and the bytes counted",
                           bytes_text(loaded.config.budget.of.value())));
  RunOptions options = engine_options(loaded.config, false, open_files(loaded.config.traces));
  options.jobs = loaded.config.run.jobs > 0 ? loaded.config.run.jobs : default_jobs();
  SolvedShares solved = kvreplay::solve_shares(loaded, std::move(options));
  for (const std::string& line : remarks_on(loaded.config, solved)) console.warning(line);
  return solved;
}

std::vector<Cell> planned(const RunChoices& choices, const LoadedRun& loaded) {
  std::vector<Cell> plan = plan_cells(loaded);
  return choices.only.empty() ? plan : CellFilter(choices.only).of(std::move(plan));
}

std::filesystem::path output_of(const RunConfig& config) {
  return config.output.dir.empty() ? std::filesystem::path("out") / config.name : config.output.dir;
}

std::filesystem::path config_file(const RunChoices& choices) {
  if (choices.config.file.empty())
    throw ConfigError(
        "run needs a configuration or a trace: kvreplay run configs/quickstart.yaml, "
        "or kvreplay run TRACE.h5 --method h2o --budget 64,256");
  return names_a_trace(choices) ? std::filesystem::path() : std::filesystem::path(choices.config.file);
}

namespace {

// "20%" -> "0.2"; throws ConfigError(problem_text) if it is not a number.
std::string share_of(const std::string& percent, const std::string& problem_text) {
  const auto number =
      parse_number<double>(percent.substr(0, percent.size() - 1) + "e-2");  // rounded as if written by hand
  if (!number) throw ConfigError(problem_text);
  return fmt::format("{}", *number);
}

std::string prefill_of(const std::string& text) {
  if (!text.ends_with('%')) return text;
  return share_of(text, fmt::format("--prefill {}: is no share of the tokens. Write for example --prefill 75%", text));
}

}  // namespace

std::string budget_override(const std::string& text) {
  std::vector<std::string> tokens, shares, kinds;
  for (const std::string& item : split_list(text)) {
    const bool share = item.ends_with('%');
    if (!share && item.find('.') != std::string::npos)
      throw ConfigError(fmt::format(
          "--budget {}: is no number of tokens. A share of the cache's bytes? Write --budget 20%. A share of "
          "the prompt's tokens? Write -s 'budget={{fraction_kept: [{}]}}'",
          item, item));
    const std::string no_share =
        fmt::format("--budget {}: is no share of the cache. Write for example --budget 20%", item);
    (share ? shares : tokens).push_back(share ? share_of(item, no_share) : item);
  }
  if (!tokens.empty()) kinds.push_back(fmt::format("tokens: [{}]", join(tokens)));
  if (!shares.empty()) kinds.push_back(fmt::format("share_of_cache: [{}]", join(shares)));
  return fmt::format("budget={{{}}}", join(kinds));
}

std::vector<std::string> overrides_of(const RunChoices& choices) {
  std::vector<std::string> all;
  if (names_a_trace(choices)) {
    all = {"schema=1", text_override("traces", choices.config.file),
           text_override("name", std::filesystem::path(choices.config.file).stem().string())};
    if (choices.methods.empty() && choices.config.sets.empty())
      throw ConfigError(
          "a trace needs --method: kvreplay run TRACE.h5 --method h2o,snapkv --budget 64,256 "
          "(kvreplay list methods)");
  }
  const auto list = [&](const char* key, const std::string& value, bool texts) {
    if (!value.empty()) all.push_back(value == "all" ? fmt::format("{}=all", key) : list_override(key, value, texts));
  };
  const auto plain = [&](const char* key, const std::string& value) {
    if (!value.empty()) all.push_back(fmt::format("{}={}", key, value));
  };
  list("methods", choices.methods, true);
  if (!choices.budget.empty()) all.push_back(budget_override(choices.budget));
  plain("budget.of", choices.of);
  list("select.layers", layer_list(choices.layers, names_a_trace(choices) ? choices.config.file : ""), false);
  list("select.kv_heads", choices.kv_heads, false);
  list("select.prompts", choices.prompts, true);
  plain("replay.prefill", prefill_of(choices.prefill));
  plain("replay.tokens", choices.tokens);
  const size_t colon = choices.seeds.find(':');
  if (colon != std::string::npos) plain("seeds.first", choices.seeds.substr(0, colon));
  plain("seeds.count", colon == std::string::npos ? choices.seeds : choices.seeds.substr(colon + 1));
  list("output.save", choices.save, true);
  plain("run.precision", choices.precision);
  plain("run.jobs", choices.jobs);
  if (!choices.device.empty()) all.push_back(text_override("run.device", choices.device));
  // Paths of a configuration are relative to it; this one is relative to where the command runs.
  if (!choices.out.empty()) all.push_back(text_override("output.dir", std::filesystem::absolute(choices.out).string()));
  all.insert(all.end(), choices.config.sets.begin(), choices.config.sets.end());
  return all;
}

namespace {

// "[64, 128]" -> "64,128".
std::string plain_list(const std::string& value) {
  std::string list = without_quotes(value);
  std::erase_if(list, [](char c) { return c == '[' || c == ']' || c == ' '; });
  return list;
}

constexpr const char* kShares = "budget.share_of_cache";

// "[0.1, 0.2]" -> "10%,20%".
std::string percent_list(const std::string& value) {
  std::vector<std::string> shares;
  for (const std::string& share : split_list(plain_list(value)))
    shares.push_back(number_text(100 * parse_number<double>(share).value_or(0)) + "%");
  return join(shares, ",");
}

// Empty if no option sets the key.
std::string option_for(const std::string& place) {
  static const std::map<std::string, std::string> options = {
      {"methods", "--method"},           {"budget", "--budget"},          {"budget.tokens", "--budget"},
      {"share_of_cache", "--budget"},    {kShares, "--budget"},           {"budget.of", "--of"},
      {"replay.prefill", "--prefill"},   {"replay.tokens", "--tokens"},   {"select.layers", "--layers"},
      {"select.kv_heads", "--kv-heads"}, {"select.prompts", "--prompts"}, {"seeds.first", "--seeds"},
      {"seeds.count", "--seeds"},        {"run.jobs", "--jobs"},          {"run.device", "--device"},
      {"run.precision", "--precision"},  {"output.dir", "--out"},         {"output.save", "--save"}};
  const auto found = options.find(place);
  return found == options.end() ? "" : found->second;
}

class OptionWording final : public Wording {
 public:
  std::string key(const std::string& place) const override {
    const std::string option = option_for(place);
    return option.empty() ? place : option;
  }
  std::string setting(const std::string& place, const std::string& value) const override {
    const std::string option = option_for(place);
    const bool plain = value.find('{') == std::string::npos;
    if (!option.empty() && plain) return option + " " + (place == kShares ? percent_list(value) : plain_list(value));
    return "--set " + shell_quoted(place + "=" + without_quotes(value));
  }
  std::string mention(const std::string& place, const std::string& value) const override {
    return option_for(place).empty() ? Wording::mention(place, value) : setting(place, value);
  }
  std::string entries(const std::vector<NamedMethod>& methods, const std::string& name,
                      const std::string& word) const override {
    if (methods.size() > kMostEntries) return fmt::format("--set methods.N.{}={} for each (N from 0)", name, word);
    std::vector<std::string> all;
    for (const NamedMethod& m : methods) all.push_back(fmt::format("--set methods.{}.{}={}", m.entry, name, word));
    return join(all, " ");
  }
  std::string belongs(const std::string& section, const std::string& key) const override {
    const std::string option = option_for(section + "." + key);
    return option.empty() ? Wording::belongs(section, key) : "it is the option " + option;
  }
  std::string budgets() const override { return "with --budget"; }
  bool percent() const override { return true; }
  std::string folder() const override { return "the working directory"; }
};

}  // namespace

const Wording& option_wording() {
  static const OptionWording words;
  return words;
}

}  // namespace kvreplay::app
