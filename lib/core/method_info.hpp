#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "core/common_options.hpp"
#include "core/method_context.hpp"
#include "core/philox.hpp"
#include "core/share.hpp"

// How a method file describes the method, besides its steps. Light on purpose, because method files are compiled for
// devices too.

namespace kvreplay {

struct MethodInfo {
  const char* name;       // as in configurations
  const char* title;      // one line for tables
  const char* source;     // paper, section
  int tier;               // 1: seed papers, 2: field standard, 3: frontier
  const char* memory;     // which storage is charged, in words
  const char* deviation;  // differences from the source, or ""
  bool streams = true;    // can run with phase: stream
  bool oneshots = true;   // can run with phase: oneshot
  Phase default_phase = Phase::stream;
  Positions default_positions = Positions::original;
  bool any_positions = true;                // `positions: cache` is possible
  bool layer_level = true;                  // gqa.level layer is possible: more than the keys of one kv head decides
  std::optional<GqaLevel> only_level = {};  // no other gqa.level is possible
  // A cut keeps the protected tokens and the best others by one score: the options of serving (core/serving.hpp) apply.
  bool selects = false;
  bool joins_heads = false;         // decides for all kv heads of a layer by their keys and values (gqa.level layer)
  bool needs_whole_prompt = false;  // scores mean something for the whole prompt only: it cannot arrive in chunks
  bool takes_budget = true;
  bool exact_budget = true;          // false: the realised size only approximates B, in whole chunks for example
  bool implied_layout = false;       // the step determines which tokens are held, so no positions are stored
  bool reads_full_cache = false;     // query-time selection: the budget bounds what is read, not what is stored
  bool own_index = false;            // with gqa.level query each query head keeps a separate index
  bool needs_linear_logits = false;  // sketches or bounds <q, k>: refused on soft-capped layers
  bool needs_every_token = false;    // one sum over all tokens: refused on layers with a sliding window
  bool own_row_format = false;       // codes its rows itself: row_format is not possible
  SharedOver shared_over = SharedOver::none;  // Traits::shared_over of most instances
  double default_fraction = 0;                // default budget as a fraction of the prompt; 0: a budget is required
  const char* alias = "";
  const char* warning = "";   // printed before a run
  const char* identity = "";  // hash of the method's text if it is not part of this build
};

// Facts about an instance. The engine fills them from the method's info and hooks, then the hook traits() changes those
// that depend on parameters. The sizes at the end hold once the policy is resolved.
struct Traits {
  bool takes_budget = true;
  bool random = false;          // repeated over seeds
  bool streams_prompt = false;  // the prompt arrives token by token, as steps
  bool observes = false;        // calls observe()
  bool chooses = false;         // calls choose(): a step reads only some rows of the cache
  bool changes_logits = false;  // calls logit_factor()
  bool holds_all = false;       // every token is stored
  bool implied_layout = false;  // the step determines which tokens are held: no positions are stored
  bool heads_differ = false;    // each query head attends to its own choice of tokens
  // The heads that share its budget, or, with the hooks `hear` and `cut_together`, see each other's scores.
  SharedOver shared_over = SharedOver::none;
  bool share_reads_scores = false;  // a rule for a model gets all scores, besides the numbers of head_scores()
  bool learns_heads =
      false;  // share() learns from the prompts of the parameter `calibration`, not from the replayed one
  const char* warning = "";  // printed before a run
  const char* warning_when_streaming = "";
  static constexpr int32_t kUnbounded = -1;
  int64_t max_rows = kUnbounded;       // most rows after a step, if that is not the budget
  int32_t max_rows_read = kUnbounded;  // most rows that a step of a query-time method reads
};

// A set of layers, small enough to travel with a policy.
struct LayerSet {
  static constexpr int32_t kMost = 256;
  uint64_t bits[kMost / 64] = {};
  bool has(int32_t layer) const { return layer >= 0 && layer < kMost && (bits[layer / 64] >> (layer % 64) & 1) != 0; }
  void add(int32_t layer) { bits[layer / 64] |= uint64_t{1} << (layer % 64); }
};

// A short list of integers.
struct IntegerList {
  static constexpr int32_t kMost = 4;
  int32_t count = 0;
  int32_t values[kMost] = {};
};

// Numbers stored by a policy's cache beyond those that the engine counts itself. The engine counts key and value floats
// of rows, 8 bytes per score if the policy observes, and 4 bytes per position unless the layout implies it.
struct ExtraBytes {
  int64_t weight_floats = 0;  // weights, counts, masses
  int64_t key_floats = 0;     // besides those of the rows
  int64_t sketch_floats = 0;  // key numbers of sketches, at the width of the keys
  int64_t aux_bytes = 0;      // sketches
  // How many of these a step reads. A step may read fewer than 0 numbers of a sketch in exchange for those of rows.
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::min();
  int64_t sketch_floats_read = kAll, aux_bytes_read = kAll;
  // Query-time methods: more key numbers of sketches for each row that is read, and more bytes for each that is read or
  // scanned (kScanned).
  int64_t sketch_floats_per_row = 0, aux_bytes_per_scan = 0;
  double floats_stored() const { return double(sketch_floats) + double(layer_floats) / double(layer_heads); }
  double floats_read() const {
    const int64_t own = sketch_floats_read == kAll ? sketch_floats : sketch_floats_read;
    return double(own) + double(layer_floats_read) / double(layer_heads);
  }
  int64_t bytes_read() const { return aux_bytes_read == kAll ? aux_bytes : aux_bytes_read; }
  // Key numbers of a sketch that the kv heads of a layer share, each charged an equal part, and how many a step reads.
  int64_t layer_floats = 0, layer_floats_read = 0, layer_heads = 1;
  int64_t mark_bytes = 0;  // rings of marks, text classes: a decision reads them, attention does not
  // For rows that the method stores in its own format: numbers that are not stored, and bytes of the codes that replace
  // them.
  int64_t coded_floats = 0, code_bytes = 0;
  int64_t coded_rows = 0;  // number of such rows
};

// An array of uniforms that can replace the counter-based ones of a run, with the extents that are read.
struct RngArray {
  const char* names;  // dataset names; the first that exists is used: "U uniforms"
  RngStream stream;
  int64_t rounds, positions, slots = 0;  // slots 0: the array has no such axis
};

// An integer that is derived from the budget unless the user sets it.
constexpr int32_t kDerived = std::numeric_limits<int32_t>::min();
// An integer parameter that was set to its word instead ("random").
constexpr int32_t kWord = kDerived + 1;
// A real parameter that was not set, or was set to its word.
constexpr double kUnset = -std::numeric_limits<double>::infinity();
constexpr double kRealWord = std::numeric_limits<double>::infinity();
constexpr double kSecondRealWord = std::numeric_limits<double>::max();  // was set to the second of its words
// Which rows vote (score_rows): all, none of the prompt's rows, or its last w > 0 rows.
constexpr int32_t kAllRows = 0, kDecodeRows = -1;

// The guarantee of the theorem behind an instance (measures.md, sections 1 and 7): with `probability` the error of a
// row is at most epsilon ||x||_2 times a norm of V; or (partition) |tau / Z - 1| is at most epsilon; or (missed_mass)
// the mass that a row misses is at most its own bound, the hook missed_bound().
struct ErrorBound {
  enum class Norm { none, spectral, frobenius, partition, missed_mass };
  Norm norm = Norm::none;  // none: no guarantee applies
  double epsilon = 0, probability = 0;
  bool capped = false;  // some size was smaller than the theorem requires
  // r^2/sqrt(d) of an additive theorem, ||numerator error|| <= epsilon j exp(-r^2/sqrt(d)) max ||v||; kUnset: none. It
  // may grow with the number of tokens seen.
  double spread = kUnset;
};

struct Range {
  double low, high;  // inclusive
};
constexpr double kManyTokens = 1 << 30;

// A parameter whose value contradicts another parameter or the budget. `parameter` may be empty.
struct ParameterError : ConfigError {
  ParameterError(std::string name, const std::string& m) : ConfigError(m), parameter(std::move(name)) {}
  std::string parameter;
};

inline ParameterError even_kernel_error(int32_t kernel) {
  return {"kernel",
          "kernel " + std::to_string(kernel) + " must be odd, so that pooling has a centre; take one more or less"};
}

inline ParameterError window_error(int32_t window, int32_t budget) {
  return {"window", "window " + std::to_string(window) + " exceeds the budget of " + std::to_string(budget) +
                        "; make it smaller or the budget larger"};
}

inline ParameterError protection_error(int32_t sinks, int32_t recent, int32_t budget) {
  const std::string of_sinks = sinks > 0 ? "sinks " + std::to_string(sinks) : "";
  const std::string of_recent = recent > 0 ? "recent " + std::to_string(recent) : "";
  const bool both = sinks > 0 && recent > 0;
  return {recent > 0 ? "recent" : "sinks",
          of_sinks + (both ? " + " : "") + of_recent + (both ? " exceed" : " exceeds") + " the budget of " +
              std::to_string(budget) + "; make " + (both ? "them" : "it") + " smaller or the budget larger"};
}

}  // namespace kvreplay
