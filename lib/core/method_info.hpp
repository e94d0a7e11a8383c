#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "core/common_options.hpp"
#include "core/method_context.hpp"
#include "core/philox.hpp"

// What a method file says of itself besides its steps. Light on purpose: method files are compiled for
// devices too.

namespace kvreplay {

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
  bool exact_budget = true;          // false: the realised size comes near B, in whole chunks for example
  bool implied_layout = false;       // which tokens are held follows from the step, so no positions are stored
  bool reads_full_cache = false;     // query-time selection: the budget bounds what is read, not what is stored
  bool own_index = false;            // with gqa.level query each query head keeps an index of its own beside it
  bool needs_linear_logits = false;  // sketches or bounds <q, k>: refused on soft-capped layers
  bool needs_every_token = false;    // sums over all tokens in one: refused on layers with a sliding window
  bool own_row_format = false;       // codes its rows itself: row_format has no meaning
  double default_fraction = 0;       // of the prompt, where no budget is given; 0: one must be given
  const char* alias = "";
  const char* warning = "";   // worth saying before a run
  const char* identity = "";  // hash of its text, where that is no part of this build
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

// A short list of integers.
struct IntegerList {
  static constexpr int32_t kMost = 4;
  int32_t count = 0;
  int32_t values[kMost] = {};
};

// Numbers that a policy's cache stores, beyond what the engine counts itself: key and value floats of rows,
// 8 bytes a score where the policy observes, 4 bytes a position where the layout does not imply it.
struct ExtraBytes {
  int64_t weight_floats = 0;                             // weights, counts, masses
  int64_t key_floats = 0;                                // besides the rows'
  int64_t sketch_floats = 0;                             // key numbers of sketches, at the width of the keys
  int64_t aux_bytes = 0;                                 // sketches
  int64_t sketch_floats_read = -1, aux_bytes_read = -1;  // of these in a step; negative: all
  int64_t mark_bytes = 0;  // rings of marks, text classes: a decision reads them, attention does not
  // Of rows that the method stores in a format of its own: numbers that are not held, bytes of codes in their
  // place.
  int64_t coded_floats = 0, code_bytes = 0;
  int64_t coded_rows = 0;  // how many rows that are
};

// An array of uniforms that a run can be given instead of counter-based ones, with the extents it reads.
struct RngArray {
  const char* names;  // datasets, the first that is found: "U uniforms"
  RngStream stream;
  int64_t rounds, positions, slots = 0;  // slots 0: the array has no such axis
};

// An integer that follows from the budget unless the user gives it.
constexpr int32_t kDerived = std::numeric_limits<int32_t>::min();
// An integer parameter that was given as its word instead ("random").
constexpr int32_t kWord = kDerived + 1;
// A real parameter that was not given, or given as its word.
constexpr double kUnset = -std::numeric_limits<double>::infinity();
constexpr double kRealWord = std::numeric_limits<double>::infinity();
constexpr double kSecondRealWord = std::numeric_limits<double>::max();  // given as the second of its words
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

inline ParameterError no_centre(int32_t kernel) {
  return {"kernel",
          "kernel " + std::to_string(kernel) + " must be odd, so that pooling has a centre; take one more or less"};
}

inline ParameterError too_much_protection(int32_t sinks, int32_t recent, int32_t budget) {
  return {recent > 0 ? "recent" : "sinks", "sinks " + std::to_string(sinks) + " + recent " + std::to_string(recent) +
                                               " exceed the budget of " + std::to_string(budget) +
                                               "; make them smaller or the budget larger"};
}

}  // namespace kvreplay
