#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "core/token.hpp"

// What a method file says of itself besides its steps. Light on purpose: method files are compiled for
// devices too.

namespace kvreplay {

enum class Phase { stream, oneshot };      // convention C6
enum class GqaLevel { kv, query };         // convention C9: one set per kv head, or per query head
enum class Positions { original, cache };  // convention C14
enum class Order { attend_then_evict, evict_then_attend };  // convention C4

// What every method can be combined with.
struct Axes {
  Phase phase = Phase::stream;
  GqaLevel gqa_level = GqaLevel::kv;
  Aggregate gqa_aggregate = Aggregate::sum;
  Positions positions = Positions::original;
  Order order = Order::attend_then_evict;
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
  bool takes_budget = true;
  bool implied_layout = false;    // which tokens are held follows from the step, so no positions are stored
  bool reads_full_cache = false;  // query-time selection: the budget bounds what is read, not what is stored
  const char* alias = "";
  const char* warning = "";  // worth saying before a run
};

// The situation a method is resolved for.
struct Scene {
  int32_t budget = 0;              // B, tokens per kv head; 0: the method takes none
  int32_t prompt = 0, tokens = 0;  // P, n
  HeadShape shape{};
  int32_t layer = 0, n_layers = 0;
  Phase phase = Phase::stream;
};

// An integer that follows from the budget unless the user gives it.
constexpr int32_t kDerived = std::numeric_limits<int32_t>::min();
// An integer parameter that was given as its word instead ("random").
constexpr int32_t kWord = kDerived + 1;

struct Range {
  double low, high;  // inclusive
};
constexpr double kManyTokens = 1 << 30;

// A parameter whose value contradicts another one or the budget. `parameter` may be empty.
struct ParameterError : ConfigError {
  ParameterError(std::string name, const std::string& m) : ConfigError(m), parameter(std::move(name)) {}
  std::string parameter;
};

}  // namespace kvreplay
