#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_text.hpp"
#include "base/refusal.hpp"
#include "catalog/bound_method.hpp"
#include "catalog/cell.hpp"
#include "catalog/token_lists.hpp"
#include "catalog/working_set_options.hpp"
#include "trace/tensors.hpp"

// A run as configured in YAML (docs/configuration.md): parsed, checked, sweep axes expanded.

namespace kvreplay {

struct Mark {  // position in the configuration; line 0: not in a file
  int line = 0, column = 0;
};

// One method with one value for every parameter.
struct MethodInstance {
  MethodValues values;
  CommonOptions options;
  std::filesystem::path uniforms;  // file of random numbers; empty: counter-based
  Mark mark;
  size_t entry = 0;  // in the list of methods; a sweep makes several instances of one entry
  std::shared_ptr<const LaterMethod> later = {};  // option `then`
  const Method& method() const { return values.method(); }
  NamedMethod named() const { return {method().info.name, entry}; }
  std::string method_name() const { return name_of(method(), later.get()); }  // as in the results
};

struct BudgetList {
  enum class Kind { tokens, fraction_kept, bytes, ratio_of_seen } kind = Kind::tokens;
  std::vector<double> values;
  std::vector<Mark> marks;
  int32_t floor = 1;           // ratio_of_seen: the least budget, tokens
  std::vector<double> shares;  // shares of the full cache's bytes, in addition to the values
  // Which bytes the shares bound: the peak, the mean over steps, or the prompt's after its cut. Where the configuration
  // leaves it open, select() decides by the traces.
  enum class Of { peak, mean, prompt };
  std::optional<Of> of;
  bool has_shares() const { return !shares.empty(); }
};

// Words of the kinds of budgets, in the order of BudgetList::Kind.
inline const std::vector<std::string> kBudgetKinds = {"tokens", "fraction_kept", "bytes", "ratio_of_seen"};

// Words of budget.of, in the order of BudgetList::Of.
inline const std::vector<std::string> kSizesOfShares = {"peak", "mean", "prompt"};

struct RunConfig {
  std::filesystem::path file;  // empty: the configuration is no file
  const Wording* words = &file_wording();
  std::string name = "run";
  std::vector<std::filesystem::path> traces;
  struct Select {
    std::optional<std::vector<std::string>> prompts;  // nullopt: all
    std::optional<std::vector<int32_t>> layers, kv_heads;
  } select;
  struct Replay {
    std::optional<int64_t> tokens, prefill;  // nullopt: the whole trace; the recorded prompt
    std::optional<double> prefill_share;     // fraction of each prompt's tokens, replaces `prefill`
    bool prompt_streams = false;             // convention C5
    // Whether a method takes the prompt token by token: its own option overrides the run's.
    bool streams_prompt(const CommonOptions& options) const {
      if (options.serving.prefill_chunk > 0) return true;
      return options.prompt == PromptMode::as_run ? prompt_streams : options.prompt == PromptMode::stream;
    }
    bool turns = false;  // the trace's segments say what arrives at once
    struct Branches {
      bool any = false;
      std::vector<int32_t> numbers;  // empty: all
    } branches;
    bool has_turns() const { return turns || branches.any; }
    enum class Queries { all, last, stride } queries = Queries::all;
    int64_t queries_count = 0;  // number of last rows, or the stride
    struct Needles {            // marked spans of the prompt, each of `tokens` tokens
      std::vector<double> at;   // starts, as fractions of the prompt; empty: no spans
      int64_t tokens = 0;
      bool recorded = false;  // the spans are those that the trace marks
      bool any() const { return recorded || !at.empty(); }
    } needles;
    WorkingSetOptions working_set;
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
  std::map<std::string, Mark> marks;  // by place: "traces[0]", "select.layers[2]", "replay.tokens", "budget", ...
  std::vector<std::string> warnings;  // complete lines, `file:line:column: warning: ...` or without a place

  // The mark of the first of these places that the configuration contains.
  Mark mark_of(std::initializer_list<std::string> places) const;
  bool has_place(const Mark& mark) const;  // whether it is in a file
  // `file:line:column: error: text`, or the text alone if it is about no file.
  std::string at(const Mark& mark, const std::string& severity, const std::string& text) const;
};

// Reads a configuration. `overrides` are `a.b.c=value` with YAML values, applied before checking. Relative paths are
// relative to the file. `measures` are the columns that `metrics:` may name (empty: not checked). Throws ConfigError
// with all problems, one a line, or TraceError if each of them is about a trace file.
RunConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                      const Registry& methods, const std::vector<std::string>& measures = {});
// Reads a configuration from text. `base` resolves relative paths; `label` replaces the file name in messages (empty:
// the configuration is no file).
RunConfig parse_config(const std::string& text, const std::filesystem::path& base, const std::string& label,
                       const std::vector<std::string>& overrides, const Registry& methods,
                       const std::vector<std::string>& measures = {});
// The part of a replay on one layer of one prompt.
struct SelectedLayer {
  size_t trace = 0, prompt = 0, layer = 0;  // indices of the trace, of its prompt, of the prompt's layer
  Extent extent;
  std::vector<int32_t> kv_heads;
  struct Variant {
    size_t instance;     // index in RunConfig::methods
    BoundMethod method;  // resolved at one budget
    Budget budget;
    // For a budget that was asked for as shares of the full cache: the shares, and the head and seed it was solved for.
    std::vector<double> shares = {};
    std::optional<int32_t> kv_head = {};  // nullopt: all selected heads
    std::optional<uint32_t> seed = {};    // nullopt: all seeds
  };
  std::vector<Variant> variants;
  std::vector<size_t> by_share = {};  // instances whose budgets are shares of the full cache, not yet solved
};
// The selected part of the traces, with every method resolved at every budget. Checks layers, heads, prompts, extents
// and parameters. A wrong part is added to `problems` and not selected. Adds warnings to `config`, and the bytes that
// shares of the cache bound: the prompt's if tokens follow every selected prompt, otherwise those at the peak.
std::vector<SelectedLayer> select(RunConfig& config, const std::vector<TraceInfo>& traces,
                                  std::vector<std::string>& problems);
// The smallest budget, up to context.tokens, that an instance can be resolved with. Throws ParameterError if there is
// none.
int32_t least_budget(const MethodInstance& instance, MethodContext context);
// The context of a method instance on one layer, without a budget.
MethodContext context_of(const MethodInstance& instance, const LayerInfo& layer, int32_t n_layers, Extent extent);

struct LoadedRun {
  RunConfig config;
  std::vector<TraceInfo> traces;  // in the order of config.traces
  std::vector<SelectedLayer> selection;
};
// Adds one method instance at one budget to a selected layer. Throws ParameterError.
void add_variant(LoadedRun& run, size_t layer, size_t instance, int32_t tokens, int32_t kv_head,
                 std::optional<uint32_t> seed);
// Does all of the above: reads the configuration, opens the traces, checks one against the other, and reports every
// problem together, in `words`. An empty `file` means that `overrides` hold the whole configuration.
LoadedRun load_run(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const Registry& methods, const std::vector<std::string>& measures = {},
                   const Wording& words = file_wording());
// Loads a run whose configuration is text, see parse_config. Opens only the selected parts of large traces.
LoadedRun load_run(const std::string& text, const std::filesystem::path& base, const std::string& label,
                   const std::vector<std::string>& overrides, const Registry& methods,
                   const std::vector<std::string>& measures = {});

// Like load_run, for traces that the caller opens, files or arrays in memory: the configuration has no `traces`.
LoadedRun load_over(const std::string& text, const Registry& methods, const std::vector<std::string>& measures,
                    const std::vector<std::filesystem::path>& traces, const OpenTensors& open,
                    const Wording& words = file_wording());

// The configuration of load_over alone, before there are traces.
RunConfig parse_over(const std::string& text, const Registry& methods, const std::vector<std::string>& measures,
                     const Wording& words = file_wording());

// A budget in tokens for one layer (convention C10), before and after it is rounded down. Below 1 only if `bytes` hold
// no token. Does not apply to share_of_cache, which is solved by replaying.
double real_budget(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                   const RowFormat& format);
int32_t budget_tokens(BudgetList::Kind kind, double value, int32_t prompt, const LayerInfo& layer,
                      const RowFormat& format);
// The budgets that a method runs with: the list, or without a list the method's default share of the prompt if it has
// one.
BudgetList budgets_for(const MethodInstance& instance, const BudgetList& list);
// Whether the method runs once, with a size that is an output.
bool runs_without_budget(const MethodInstance& instance, const BudgetList& list);

// Formats the values that a parameter may take: "at least 1", "1 to 8", "in (0, 1]".
std::string range_text(double low, double high, bool whole);

// Adds recall_k, tier and machine to the JSON of `replay`, as far as they are set.
void add_json(const WorkingSetOptions& options, JsonObject& to);

// The configuration with all defaults filled in, as JSON; results.meta.json records it.
std::string resolved_json(const RunConfig& config);

}  // namespace kvreplay
