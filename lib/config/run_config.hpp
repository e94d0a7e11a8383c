#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catalog/bound_method.hpp"
#include "catalog/token_lists.hpp"
#include "trace/tensors.hpp"

// A run, as written in YAML (docs/configuration.md): parsed, checked, sweep axes expanded.

namespace kvreplay {

struct Mark {  // where something stands in the configuration; line 0: the command line
  int line = 0, column = 0;
};

// One method with one value for every parameter.
struct MethodInstance {
  MethodValues values;
  CommonOptions options;
  std::filesystem::path uniforms;  // empty: counter-based
  Mark mark;
  const Method& method() const { return values.method(); }
};

struct BudgetList {
  enum class Kind { tokens, fraction_kept, bytes } kind = Kind::tokens;
  std::vector<double> values;
  std::vector<Mark> marks;
  std::vector<double> shares;  // of the full cache's bytes, beside the values
  // Which bytes shares bound: those at the peak, the mean over steps, or those of the prompt after its cut.
  enum class Of { peak, mean, prompt } of = Of::peak;
  bool has_shares() const { return !shares.empty(); }
};

// budget.of, in the order of BudgetList::Of.
inline const std::vector<std::string> kSizesOfShares = {"peak", "mean", "prompt"};

struct RunConfig {
  std::filesystem::path file;  // empty: built on the command line
  std::string name = "run";
  std::vector<std::filesystem::path> traces;
  struct Select {
    std::optional<std::vector<std::string>> prompts;  // nullopt: all
    std::optional<std::vector<int32_t>> layers, kv_heads;
  } select;
  struct Replay {
    std::optional<int64_t> tokens, prefill;  // nullopt: all of the trace; the recorded prompt
    std::optional<double> prefill_share;     // of the tokens of each prompt, in the place of `prefill`
    bool prompt_streams = false;             // convention C5
    // Whether a method takes the prompt token by token: its own word, or the run's.
    bool streams_prompt(const CommonOptions& options) const {
      return options.prompt == PromptMode::as_run ? prompt_streams : options.prompt == PromptMode::stream;
    }
    enum class Queries { all, last, stride } queries = Queries::all;
    int64_t queries_count = 0;  // of last, or the stride
    struct Needles {            // marked spans of the prompt: each starts at a share of it
      std::vector<double> at;   // empty: none
      int64_t tokens = 0;
    } needles;
  } replay;
  std::vector<MethodInstance> methods;
  BudgetList budget;
  uint32_t seed_first = 0, seed_count = 5;
  std::vector<std::string> metrics;  // column names; empty: default
  struct Run {
    std::string device = "cpu";
    int jobs = 0;  // 0: all cores
    bool double_precision = false;
    bool audit = false;  // evicted and future tokens are overwritten with NaN while a method runs
  } run;
  struct Output : SaveOptions {
    std::filesystem::path dir;
  } output;
  std::map<std::string, Mark> marks;  // of "traces[0]", "select.layers[2]", "replay.tokens", "budget", ...
  std::vector<std::string> warnings;  // complete lines, `file:line:column: warning: ...`

  // Of the first of these that stands in the configuration.
  Mark mark_of(std::initializer_list<std::string> places) const;
  bool has_place(const Mark& mark) const;  // in a file
  // `file:line:column: error: text`, or `command line: error: text`.
  std::string at(const Mark& mark, const std::string& severity, const std::string& text) const;
};

// Reads a configuration. `overrides` are `a.b.c=value` with YAML values, applied before checking.
// Relative paths are relative to the file. `measures` are the columns that `metrics:` may name (empty:
// not checked). Throws ConfigError holding all problems, one a line, or TraceError if each of them is
// about a trace file.
RunConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                      const Registry& methods, const std::vector<std::string>& measures = {});
// Reads a configuration from text; `base` resolves relative paths, `label` stands for the file name in messages
// (empty: everything was given on the command line).
RunConfig parse_config(const std::string& text, const std::filesystem::path& base, const std::string& label,
                       const std::vector<std::string>& overrides, const Registry& methods,
                       const std::vector<std::string>& measures = {});
// What is replayed on one layer of one prompt.
struct SelectedLayer {
  size_t trace = 0, prompt = 0, layer = 0;  // places among the traces, the trace's prompts, the prompt's layers
  Extent extent;
  std::vector<int32_t> kv_heads;
  struct Variant {
    size_t instance;     // of RunConfig::methods
    BoundMethod method;  // at one budget
    Budget budget;
    // Where the budget was asked for as shares of the full cache: those, and for whom it is the right one.
    std::vector<double> shares = {};
    std::optional<int32_t> kv_head = {};  // nullopt: for all that are selected
    std::optional<uint32_t> seed = {};    // nullopt: for all
  };
  std::vector<Variant> variants;
  std::vector<size_t> by_share =
      {};  // instances whose budgets are shares of the full cache, which are yet to be solved
};
// What a configuration selects of its traces, every method resolved at every budget. Checks layers, heads, prompts,
// extents and parameters: a part that is wrong is among the problems and not selected. Adds warnings to `config`.
std::vector<SelectedLayer> select(RunConfig& config, const std::vector<TraceInfo>& traces,
                                  std::vector<std::string>& problems);
// The smallest budget that an instance can be resolved with, of those up to context.tokens. Throws ParameterError
// where there is none.
int32_t least_budget(const MethodInstance& instance, MethodContext context);
// The situation of a method instance on one layer; without a budget.
MethodContext context_of(const MethodInstance& instance, const LayerInfo& layer, int32_t n_layers, Extent extent);

struct LoadedRun {
  RunConfig config;
  std::vector<TraceInfo> traces;  // of config.traces
  std::vector<SelectedLayer> selection;
};
// One method instance at one budget joins a selected layer. Throws ParameterError.
void add_variant(LoadedRun& run, size_t layer, size_t instance, int32_t tokens, int32_t kv_head,
                 std::optional<uint32_t> seed);
// All of the above: reads, opens the traces, checks one against the other, and tells every problem at
// once. An empty `file` means that `overrides` hold the whole configuration.
LoadedRun load_run(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const Registry& methods, const std::vector<std::string>& measures = {});
// Loads a run whose configuration is text, as in parse_config. Of large traces only what `select` names is opened.
LoadedRun load_run(const std::string& text, const std::filesystem::path& base, const std::string& label,
                   const std::vector<std::string>& overrides, const Registry& methods,
                   const std::vector<std::string>& measures = {});

// The same for traces that are open already, as arrays in memory are: the configuration has no `traces`.
LoadedRun load_over(const std::string& text, const std::string& label, const Registry& methods,
                    const std::vector<std::string>& measures, std::vector<TraceInfo> traces);

// A budget in tokens for one layer (convention C10) before it is rounded down, and after; below 1 only when
// `bytes` hold no token. Not of share_of_cache, which is solved by replaying.
double real_budget(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                   const RowFormat& format);
int32_t budget_tokens(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                      const RowFormat& format);
// The budgets that a method runs with: the list, or where there is none, its own share of the prompt if it
// has one.
BudgetList budgets_for(const MethodInstance& instance, const BudgetList& list);
// Whether it runs once, with a size that is an output.
bool runs_without_budget(const MethodInstance& instance, const BudgetList& list);

// "at least 1", "1 to 8", "in (0, 1]": the values a parameter may take.
std::string range_text(double low, double high, bool whole);

// The configuration with all defaults filled in, as results.meta.json records it: JSON.
std::string resolved_json(const RunConfig& config);

}  // namespace kvreplay
