#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "core/philox.hpp"
#include "core/token.hpp"

// What a method file says of itself besides its steps. Light on purpose: method files are compiled for
// devices too.

namespace kvreplay {

enum class Phase { stream, oneshot };           // convention C6
enum class GqaLevel { kv, query, layer };       // convention C9: one set per kv head, query head or layer
enum class Positions { original, cache };       // convention C14
enum class PromptMode { as_run, cut, stream };  // convention C5; as_run: as replay.prompt says
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

enum class Reweight { none, uniform };  // kept unprotected prompt tokens stand for the others
enum class Allocator { uniform, pyramid, ada, cake, file };  // how a budget is shared over heads and layers

// How stored entries are written (methods.md, row formats).
struct RowFormat {
  enum class Kind : int32_t { source, f32, f16, bf16, int8, int4, kivi, gear };
  Kind kind = Kind::source;
  int32_t bits = 4;   // kivi, gear: 2 or 4
  int32_t group = 0;  // numbers that share offset and step; 0: 64 for int4 and int8, 32 for kivi and gear
  int32_t residual = 128;  // kivi, gear: newest tokens that stay exact
  int32_t rank = 4;        // gear: of the correction
  double outliers = 2;     // gear: per cent of the residuals kept exactly
  bool quantises() const { return kind >= Kind::int8; }
  bool by_block() const { return kind >= Kind::kivi; }  // several rows share offsets and steps
};

// What every method can be combined with.
struct CommonOptions {
  Phase phase = Phase::stream;
  GqaLevel gqa_level = GqaLevel::kv;
  Aggregate gqa_aggregate = Aggregate::sum;
  Positions positions = Positions::original;
  Order order = Order::attend_then_evict;
  PromptMode prompt = PromptMode::as_run;
  Reweight reweight = Reweight::none;
  Allocator allocator = Allocator::uniform;
  std::string allocator_file;  // of Allocator::file: rows layer,kv_head,tokens
  RowFormat row_format;
};

struct MethodInfo {
  const char* name;       // as in configurations
  const char* title;      // one line for tables
  const char* source;     // paper, section
  int tier;               // 1: seed papers, 2: field standard, 3: frontier
  const char* memory;     // what is charged, in words
  const char* deviation;  // from the source, or ""
  bool streams = true;    // can run with phase: stream
  bool oneshots = true;   // can run with phase: oneshot
  Phase default_phase = Phase::stream;
  Positions default_positions = Positions::original;
  bool any_positions = true;  // `positions: cache` has a meaning
  bool layer_level = true;    // gqa.level layer has a meaning: what decides is not the keys of one kv head
  bool takes_budget = true;
  bool exact_budget = true;       // false: the realised size comes near B, in whole chunks for example
  bool implied_layout = false;    // which tokens are held follows from the step, so no positions are stored
  bool reads_full_cache = false;  // query-time selection: the budget bounds what is read, not what is stored
  bool needs_linear_logits = false;  // sketches or bounds <q, k>: refused on soft-capped layers
  bool needs_every_token = false;    // sums over all tokens in one: refused on layers with a sliding window
  bool own_row_format = false;       // codes its rows itself: row_format has no meaning
  double default_fraction = 0;       // of the prompt, where no budget is given; 0: one must be given
  const char* alias = "";
  const char* warning = "";  // worth saying before a run
};

// The situation a method is resolved for.
struct MethodContext {
  int32_t budget = 0;              // B, tokens per kv head; 0: the method takes none
  int32_t prompt = 0, tokens = 0;  // P, n
  HeadShape shape{};
  int32_t layer = 0, n_layers = 0;
  Phase phase = Phase::stream;
  double scale = 1;  // of the logits
  Aggregate aggregate = Aggregate::sum;
  int32_t window = 0;  // the layer's sliding window; known to the replay only
  // Of the whole trace, future included; 0 where the method's oracle_needs() does not ask, and while a run is
  // planned.
  double median_key_distance = 0, largest_query_norm = 0;
  double real_budget = 0;       // f * P before it was rounded down to B; 0: B itself
  bool compares_heads = false;  // scores of several kv heads will be ranked together
};

// Numbers of the trace that no causal method can know. A method that asks for them says so in its text.
struct OracleNeeds {
  bool median_key_distance = false;  // measures.md, section 4: of at most 2000 pairs
  bool largest_query_norm = false;
};

// A set of layers, small enough to travel with a policy.
struct LayerSet {
  static constexpr int32_t kMost = 256;
  uint64_t bits[kMost / 64] = {};
  KVR_FN bool has(int32_t layer) const {
    return layer >= 0 && layer < kMost && (bits[layer / 64] >> (layer % 64) & 1) != 0;
  }
  void add(int32_t layer) { bits[layer / 64] |= uint64_t{1} << (layer % 64); }
};

// Numbers that a policy's cache stores, beyond what the engine counts itself: key and value floats of rows,
// 8 bytes a score where the policy observes, 4 bytes a position where the layout does not imply it.
struct ExtraBytes {
  int64_t weight_floats = 0;  // weights, counts, masses
  int64_t key_floats = 0;     // besides the rows'
  int64_t sketch_floats = 0;  // key numbers of sketches, at the width of the keys
  int64_t aux_bytes = 0;      // sketches
  int64_t mark_bytes = 0;     // rings of marks, text classes: a decision reads them, attention does not
  // Of rows that the method stores in a format of its own: numbers that are not held, bytes of codes in their
  // place.
  int64_t coded_floats = 0, code_bytes = 0;
  int64_t coded_rows = 0;  // how many rows that are
};

// An array of uniforms that a run can be given instead of counter-based ones, with the extents it reads.
struct RngArray {
  const char* names;  // datasets, the first that is found: "U uniforms"
  RngStream structure;
  int64_t rounds, positions, slots = 0;  // slots 0: the array has no such axis
};

// An integer that follows from the budget unless the user gives it.
constexpr int32_t kDerived = std::numeric_limits<int32_t>::min();
// An integer parameter that was given as its word instead ("random").
constexpr int32_t kWord = kDerived + 1;
// A real parameter that was not given, or given as its word.
constexpr double kUnset = -std::numeric_limits<double>::infinity();
constexpr double kRealWord = std::numeric_limits<double>::infinity();
// Which rows vote (score_rows): all, none of the prompt's, or the last w > 0 of them.
constexpr int32_t kAllRows = 0, kDecodeRows = -1;

// What the theorem behind an instance allows (measures.md, sections 1 and 7): with `probability` the error of
// a row is at most epsilon ||x||_2 times a norm of V.
struct ErrorBound {
  enum class Norm { none, spectral, frobenius };
  Norm norm = Norm::none;  // none: the instance has no target to be held to
  double epsilon = 0, probability = 0;
  bool capped = false;  // some size was smaller than the theorem asks for
  // r^2/sqrt(d) of an additive theorem, ||numerator error|| <= epsilon j exp(-r^2/sqrt(d)) max ||v||; kUnset:
  // none. It may grow with the tokens seen.
  double spread = kUnset;
};

struct Range {
  double low, high;  // inclusive
};
constexpr double kManyTokens = 1 << 30;

// A parameter whose value contradicts another one or the budget. `parameter` may be empty.
struct ParameterError : ConfigError {
  ParameterError(std::string name, const std::string& m) : ConfigError(m), parameter(std::move(name)) {}
  std::string parameter;
};

inline ParameterError too_much_protection(int32_t sinks, int32_t recent, int32_t budget) {
  return {recent > 0 ? "recent" : "sinks",
          "sinks " + std::to_string(sinks) + " + recent " + std::to_string(recent) +
              " exceed the budget of " + std::to_string(budget) + "; make them smaller or the budget larger"};
}

}  // namespace kvreplay
