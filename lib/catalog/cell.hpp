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

// A trace by what results call it.
struct TraceNames {
  std::string trace_id, model;
  int32_t n_layers = 0;  // of the model
};

// Another prompt of the trace, by which heads are compared, and how it would be replayed.
struct CalibrationPrompt {
  std::string id;
  uint32_t rank = 0;  // as Cell::prompt_rank
  Extent extent;
};

// What the cells of a method instance have in common on one layer at one budget.
struct Variant {
  std::shared_ptr<const TraceNames> trace;
  size_t instance = 0;  // of the configuration's methods
  MethodValues values;  // as configured, to be resolved for a budget
  CommonOptions options;
  std::string params;    // canonical JSON of all parameters, resolved, and options: what results show, a file of
                         // lists by its name
  std::string given;     // of those that are not the method's defaults
  std::string uniforms;  // file, or ""
  std::string kept;      // file of lists that the method is given, or ""
  FileDigests digests;
  std::vector<CalibrationPrompt> calibration;  // by which a rule that shares a budget knows heads, where by others
  bool prompt_streams = false;                 // convention C5
  HeadShape shape{};                           // of what decides together (gqa.level)
  double scale = 1;                            // of the layer's logits

  explicit Variant(MethodValues v) : values(std::move(v)) {}
};
// Variant::params of a method that is resolved from its values.
std::string shown_params(const BoundMethod& method, const Variant& variant);

struct Cell {
  std::string key;  // k and 16 hex digits of SHA-256 over everything that determines the numbers
  Place place;
  uint32_t prompt_rank = 0;  // of the prompt id among the trace's sorted ids
  Extent extent;
  Budget budget;
  std::optional<uint32_t> seed;  // randomised instances only
  // What each cut leaves that its heads make together, where they do.
  std::shared_ptr<const TokenLists> common_cuts = nullptr;
  // What the rule says that shared the budget, for the column `extras`.
  std::map<std::string, double> allocator_says = {};
  // Shares of the full cache's bytes for which the budget was asked; ascending. They are no part of what the cell is.
  std::vector<double> shares = {};
  std::shared_ptr<const Variant> variant;
  // Where this cell is replayed by another method than its own (a head that streams, whatever cuts the others): the
  // cell as results name it.
  std::shared_ptr<const Cell> named = nullptr;

  const Method& method() const { return variant->values.method(); }
  const CommonOptions& options() const { return variant->options; }
  // The situation that the method is resolved for.
  MethodContext context() const;
};

// Whose heads share a budget with a method's cell.
SharedOver shared_over(const MethodValues& values, const CommonOptions& options);
SharedOver shared_over(const Cell& cell);
// Whether an allocator looks at what other heads of the prompt say.
bool compares_heads(Allocator rule);
// Whether a head's share follows from the configuration alone.
bool needs_no_other_head(const Cell& cell);
// Whether its share depends on heads of all layers.
bool needs_all_layers(const Cell& cell);
// Whether its heads cut together while they decode.
bool cuts_together(const Cell& cell);
// Whose text a rule that shares a budget over heads learns them from; null where it learns none.
const Calibration* heads_learnt_from(const MethodValues& values, const CommonOptions& options);
// Whether it looks at other prompts of its trace.
bool needs_other_prompts(const Cell& cell);
// Gives a cell its share of the budget: from here on what followed from the whole one follows from it. Throws
// ParameterError.
void set_share(Cell& cell, int32_t tokens);
// Tells a cell's method what the heads said by which each of them decides.
void tell(Cell& cell, const std::vector<HeadScores>& heads);

}  // namespace kvreplay
