#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/bound_method.hpp"
#include "catalog/token_lists.hpp"
#include "core/place.hpp"

// A cell is the unit of results and of resume: one (trace, prompt, layer, kv head, method instance, budget, seed).

namespace kvreplay {

// A trace's names in the results.
struct TraceNames {
  std::string trace_id, model;
  int32_t n_layers = 0;  // number of layers in the model
};

// Another prompt of the trace, which serves to compare heads, and the extent of its replay.
struct CalibrationPrompt {
  std::string id;
  uint32_t rank = 0;  // as Cell::prompt_rank
  Extent extent;
};

// The method that decides after the prompt, where it is another one than cuts the prompt (option `then`).
struct LaterMethod {
  MethodValues values;
  CommonOptions options;
  Budget budget;  // none: that of the method before it
  // Resolved for the context of the method before it.
  BoundMethod method_for(MethodContext context) const;
  // The options of the cache from then on; first: those of the method before it.
  CommonOptions options_of(const CommonOptions& first) const;
};

// "snapkv+tova" where two methods decide; later: null, or the second.
std::string name_of(const Method& method, const LaterMethod* later);

// JSON of the method, its values that differ from the defaults and its budget. first: the context of the method before
// it, for all values as they are resolved, or null. "" for null: no other method decides.
std::string later_json(const LaterMethod* later, const MethodContext* first = nullptr);

// The common part of the cells of one method instance, layer and budget.
struct Variant {
  std::shared_ptr<const TraceNames> trace;
  size_t instance = 0;  // index in the configuration's methods
  MethodValues values;  // as configured; to be resolved for a budget
  CommonOptions options;
  std::shared_ptr<const LaterMethod> later = {};
  std::string params;    // canonical JSON of all resolved parameters and options, as shown in results; a file of
                         // lists is its name
  std::string given;     // JSON of those that differ from the defaults
  std::string uniforms;  // path of the file, or ""
  std::string kept;      // path of the file of kept lists, or ""
  FileDigests digests;
  // Prompts from which a rule that shares a budget learns the heads, if it uses other prompts.
  std::vector<CalibrationPrompt> calibration;
  bool prompt_streams = false;  // convention C5
  HeadShape shape{};            // shape of the heads that decide together (gqa.level)
  int32_t kv_heads = 1;         // all that the layer has
  double scale = 1;             // factor of the layer's logits

  explicit Variant(MethodValues v) : values(std::move(v)) {}
};
// Computes Variant::params for a resolved method.
std::string shown_params(const BoundMethod& method, const Variant& variant);

// A branch of the prompt that a cell is replayed on.
struct BranchExtent {
  int32_t number = 0, tokens = 0, input_tokens = 0;
};

struct Cell {
  std::string key;  // k and 16 hex digits of SHA-256 over everything that determines the numbers
  Place place;
  uint32_t prompt_rank = 0;                 // rank of the prompt id among the trace's sorted ids
  Extent extent;                            // with branches: of the longest
  std::vector<BranchExtent> branches = {};  // replayed one after the other, from one compressed context; empty: none
  Budget budget;
  std::optional<uint32_t> seed;  // only for randomised instances
  // The tokens that remain after each cut that the heads made together; null if they cut separately.
  std::shared_ptr<const TokenLists> common_cuts = nullptr;
  // Numbers from the rule that shared the budget, for the column `extras`.
  std::map<std::string, double> allocator_says = {};
  // Budgets as shares of the full cache's bytes, ascending, as the user asked for them. They do not identify the cell.
  std::vector<double> shares = {};
  std::shared_ptr<const Variant> variant;
  // Set if another method than the cell's own replays it (e.g. a head that streams whatever method cuts the others):
  // the cell as the results name it.
  std::shared_ptr<const Cell> named = nullptr;

  const Method& method() const { return variant->values.method(); }
  std::string method_name() const { return name_of(method(), variant->later.get()); }
  const CommonOptions& options() const { return variant->options; }
  // The context for which the method is resolved.
  MethodContext context() const;
};

// Which heads share a budget with a method's cell.
SharedOver shared_over(const MethodValues& values, const CommonOptions& options);
SharedOver shared_over(const Cell& cell);
// Whether an allocator reads the scores of other heads of the prompt.
bool compares_heads(Allocator rule);
// Whether the configuration alone determines a head's share.
bool has_fixed_share(const Cell& cell);
// Whether a head's share depends on heads of all layers.
bool needs_all_layers(const MethodValues& values, const CommonOptions& options);
bool needs_all_layers(const Cell& cell);
// Whether the cell's heads cut together during decoding.
bool cuts_together(const Cell& cell);
// The text from which a rule that shares a budget over heads learns the heads; null if it learns nothing.
const Calibration* calibration_heads(const MethodValues& values, const CommonOptions& options);
// Whether the method uses other prompts of its trace.
bool needs_other_prompts(const Cell& cell);
// Sets a cell's share of the budget and recomputes everything that depended on the whole budget. Throws ParameterError.
void set_share(Cell& cell, int32_t tokens);
// Passes the scores of all heads to a cell's method (hook hear).
void tell(Cell& cell, const std::vector<HeadScores>& heads);

}  // namespace kvreplay
