#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/layer_window.hpp"
#include "core/token_span.hpp"

// Metadata of a trace: shapes and attributes of its layers, without tensors.

namespace kvreplay {

const char* name_of(DType type);

// Rotary embedding of a layer (after any frequency scaling).
struct Rope {
  enum class Layout { half_split, interleaved };
  std::string type = "default";
  double theta = 0;
  std::vector<double> inv_freq;  // one per rotated pair
  double attention_factor = 1;
  Layout layout = Layout::half_split;
  int32_t rotary_dims = 0;
  bool changes = false;  // ranges of positions have frequencies of their own; inv_freq is the first range's
};

// Latent attention (MLA). All query heads read one row a token: the latent, from which each head's key and value are
// projected, and the rotated part of the keys. Readers give it as one kv head with keys [rope, width], the rotated
// numbers first, and values [width]; queries are projected to keys of this form.
struct LatentInfo {
  int32_t width = 0;  // numbers of the latent; 0: the layer has keys and values of its own
  int32_t rope = 0;   // numbers of the rotated part
  int32_t key = 0;    // rows of `up_k`: numbers of a head's key without the rotated part. 0: queries are recorded after
                      // the projection
  int32_t value = 0;  // numbers of a head's value, which `up_v` makes from the latent
};

struct LayerInfo {
  int32_t layer = 0;  // 0-based index in the model
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  int64_t tokens = 0;      // T, rows of k and v
  int64_t query_rows = 0;  // Tq; Tq < T when queries are strided
  DType dtype = DType::float32;
  double scaling = 0;
  int32_t sliding_window = 0;   // 0: none
  int32_t attention_chunk = 0;  // 0: none; only without a sliding window
  double softcap = 0;           // 0: none
  bool q_prescaled = false;
  std::string source_dtype;
  std::optional<Rope> rope;    // nullopt: no rotary embedding, or not recorded
  bool rope_recorded = false;  // false: the trace does not say whether there is one
  bool rope_unknown = false;   // there is one that a trace cannot say, or it changes within the prompt
  int32_t kv_layer = -1;       // the layer whose keys and values this one reads; -1: its own
  LatentInfo latent;
  bool has_out = false, has_sinks = false, has_q_pos = false;
  int32_t output_width = 0;                         // last extent of `o_proj`: the model's hidden size; 0: not recorded
  int32_t gradient_samples = 0, gradient_rows = 0;  // extents of `g`; 0: not recorded
  bool gradient_recorded = false, gradient_answer = false;  // the layer also has `g_recorded`, `g_answer`
  int64_t repeat_rows = 0;                                  // rows in `repeat_q` and `repeat_k`; 0: not recorded
  int64_t lookahead_rows = 0;                               // rows in `lookahead_q`; 0: not recorded
  bool has_repeat_norm = false, has_in_norm = false;        // the layer has `repeat_in_norm`, `resid_in_norm`
  int32_t all_gradients() const { return gradient_samples + (gradient_recorded ? 1 : 0) + (gradient_answer ? 1 : 0); }
  // A chunk that holds the whole text hides nothing: such a layer is replayed as one without.
  LayerWindow window() const { return {sliding_window, attention_chunk < tokens ? attention_chunk : 0}; }
  int32_t group() const { return q_heads / kv_heads; }
  bool is_latent() const { return latent.width > 0; }
  // Numbers of a head's attention output; of a value that a cache stores beside its key.
  int32_t query_width() const { return latent.key > 0 ? latent.key + latent.rope : head_dim; }  // in the file
  int32_t out_dim() const { return is_latent() ? latent.value : v_head_dim; }
  int32_t stored_v_dim() const { return is_latent() ? 0 : v_head_dim; }
};

// Bytes in the file of q, k, v (or the latent and its rotated part) and, if recorded, out.
int64_t bytes_of(const LayerInfo& layer);

// A context that the model repeated. Chunk c repeats the prompt's tokens ctx[c] <= i < ctx[c + 1] in the rows rows[c]
// <= r < rows[c + 1] of each layer's repeat_q. Empty if not recorded.
struct RepeatInfo {
  int64_t context_tokens = 0;      // tokens that the rows attended to
  std::vector<int32_t> rows, ctx;  // [chunks + 1]
  int64_t row_count() const { return rows.empty() ? 0 : rows.back(); }
  int64_t chunks() const { return rows.empty() ? 0 : static_cast<int64_t>(rows.size()) - 1; }
};

// Rows that the model generated after SnapKV had cut the prompt's cache. Empty if not recorded.
struct LookaheadInfo {
  int64_t rows = 0;
  int64_t context_tokens = 0;                  // tokens of the prompt before the cut
  int64_t budget = 0, window = 0, kernel = 0;  // options of the cut; 0: not recorded
};

// Parts of a prompt that arrive one after the other: what the model was given, and what it said. Empty if not recorded.
enum class SegmentKind : uint8_t { context, input, output };
struct SegmentsInfo {
  std::vector<int32_t> start;  // [count + 1]: first token of each, and the prompt's tokens at the end
  std::vector<SegmentKind> kind;
  std::vector<std::string> names;  // [count], or empty if not recorded
  size_t count() const { return kind.size(); }
  // Tokens before the first output: the end of the first run of contexts and inputs.
  int64_t first_input_end() const;
};

// A continuation of the prompt's first PromptInfo::context_tokens tokens, with rows of its own. It sees no row of
// another branch, and none of the prompt's later rows.
struct BranchInfo {
  std::string id, name;      // "000", "001", ...; "" if it has no name
  int64_t tokens = 0;        // rows of q, k and v in each layer
  int64_t input_tokens = 0;  // the first of them: the question. The others are output rows
  bool has_tokens = false;   // their ids are recorded
};

struct PromptInfo {
  std::string id;
  uint32_t rank = 0;     // numbers its random streams: as recorded, or its place among the sorted ids
  int64_t tokens = 0;    // T
  int64_t n_prompt = 0;  // tokens of the recorded prompt (T if the attribute is missing); with segments, those before
                         // the first output
  int64_t n_generated = 0;
  int64_t waiting = 0;                   // the last tokens, whose rows come from elsewhere later (prompt_with_room.hpp)
  std::optional<int64_t> question_from;  // first token of the question at the end of the prompt
  std::vector<TokenSpan> needles;        // tokens of the prompt that the answer needs; empty if not recorded
  std::string source;
  bool has_tokens = false, has_classes = false;
  std::string odd_positions;  // suspicious_facts.hpp; "" if positions are 0, 1, 2, ... or not recorded
  RepeatInfo repeat;
  LookaheadInfo lookahead;
  SegmentsInfo segments;
  std::vector<BranchInfo> branches;    // ascending by id; each holds the prompt's layers
  int64_t context_tokens = 0;          // the tokens that all branches continue; 0: there are no branches
  std::vector<int32_t> layer_numbers;  // all layers in the trace, ascending
  std::vector<LayerInfo> layers;       // layers in scope, ascending
};

int64_t bytes_of(const PromptInfo& prompt);  // sum over its `layers`

// The part of a trace to read. A large trace is many files, and reading one layer opens only one of them. Outside the
// scope only the names of prompts and layers are read.
struct TraceScope {
  std::optional<std::vector<std::string>> prompts;  // nullopt: all
  std::optional<std::vector<int32_t>> layers;
  bool holds(const std::string& prompt) const;
  bool holds(int32_t layer) const;
};

struct TraceInfo {
  std::filesystem::path path;
  std::string trace_id;  // recorded, or computed from the content if not recorded
  std::string model, revision, created_utc, dumper;
  int32_t n_layers = 0;             // layers of the model, not of the file
  std::vector<PromptInfo> prompts;  // ascending by id

  std::vector<std::string> prompt_ids() const;
  const PromptInfo* find(const std::string& prompt) const;  // null: the trace has no such prompt
  // The message that the trace has no such prompt, and which prompts it has.
  std::string lacks(const std::string& prompt) const;
};

std::string layer_path(const std::string& prompt, int32_t layer);   // "prompts/<id>/layers/<LLL>"
std::string branch_path(const std::string& prompt, size_t branch);  // "prompts/<id>/branches/<b>"
std::string branch_layer_path(const std::string& prompt, size_t branch, int32_t layer);

}  // namespace kvreplay
