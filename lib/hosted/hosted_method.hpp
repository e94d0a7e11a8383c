#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/method.hpp"
#include "core/method_context.hpp"

// Methods that are not compiled into this build because they are written in another language. The engine replays them
// like its own, with the same budgets, protection, accounting and audit. A host implements these classes. An error in
// the host throws ReplayError, which fails the cell.

namespace kvreplay {

// Numbers that the engine lends for the duration of a call: float, or double if `wide`. Extents and strides are in
// elements; the last axis is contiguous.
struct ShownNumbers {
  const void* data = nullptr;
  bool wide = false;
  int64_t extents[3] = {}, strides[3] = {};
};

// The whole prompt, shown after its last token.
struct HostedPrompt {
  ShownNumbers keys, values;           // [kv heads, tokens, dim], [kv heads, tokens, v_dim]
  ShownNumbers queries, attention;     // last rows: [query heads, rows, dim], [query heads, rows, tokens]
  std::span<const int32_t> positions;  // [tokens]
  int32_t tokens = 0;
  double scale = 1;  // factor of the logits
};

// The rows that a cache holds in this step.
struct HostedRows {
  std::span<const int32_t> tokens;  // [rows] ascending
  std::span<double> scores;         // [rows], one number that the policy stores with a token; evicted with it
  bool wide = false;
  int32_t blocks = 1, dim = 0, v_dim = 0;
  std::function<void(void*to)> copy_keys, copy_values;  // [kv heads, rows, dim], in the engine's number type
};

// The host's state for one cache of a method.
class HostedSession {
 public:
  virtual ~HostedSession() = default;
  // One-shot: writes a score for each token of the prompt. The engine keeps the tokens with the largest scores.
  virtual void score(const HostedPrompt& prompt, std::span<double> scores) = 0;
  // Streaming: called after the prompt. scores are all 0 and may be set.
  virtual void start(const HostedPrompt& prompt, std::span<double> scores) = 0;
  // Receives the probabilities of this step, [query heads, rows].
  virtual void observe(const HostedRows& rows, std::span<const double> probabilities, int32_t heads) = 0;
  // Returns the tokens to evict.
  virtual std::vector<int32_t> evict(const HostedRows& rows) = 0;
};

// The context and position of a cache in a run.
struct HostedPlace {
  MethodContext context;
  uint32_t seed = 0, prompt = 0, layer = 0, kv_head = 0;
  int32_t first_head = 0;  // first of its query heads in the stream
  std::string params;      // canonical JSON of `sinks`, `recent` and the method's parameters
  bool audit = false;
};

class HostedMethod {
 public:
  struct Parameter {
    std::string name, help;
    ParameterSpec::Kind kind = ParameterSpec::Kind::real;  // integer, real or boolean
    double value = 0;                                      // default
  };
  std::string name, title, source;
  std::string identity;  // hash of the method's source code, so that a changed method counts as another method
  std::vector<Parameter> parameters;
  bool streams = false;  // false: one-shot
  bool observes = false, random = false;
  bool sees_budget = false;       // one-shot: its scores depend on the budget
  int32_t sinks = 0, recent = 0;  // defaults of the tokens that are never evicted
  int32_t window = 0;             // last rows of the prompt whose queries and attention the method sees
  bool window_stays = false;      // the tokens of those rows are never evicted
  int32_t row_bytes = 0;          // bytes that the method stores for a held token besides its score

  HostedMethod() = default;
  HostedMethod(const HostedMethod&) = delete;
  HostedMethod& operator=(const HostedMethod&) = delete;
  virtual ~HostedMethod() = default;
  // Called by several threads at once. Only one thread at a time uses a session.
  virtual std::shared_ptr<HostedSession> open(const HostedPlace& place) = 0;
};

// Reads a host's description of a method: JSON with the names of the members above. A parameter has name, kind ("bool",
// "int", "float"), default and help. Throws ConfigError.
void read_description(HostedMethod& method, const std::string& facts);
// A place as JSON, for the host.
std::string place_json(const HostedPlace& place);

// Adds the method to a registry. The host must live as long as the registry. Throws ConfigError if the host asks for
// something that the engine cannot do, or if the registry has a method of that name.
void add_hosted(Registry& methods, HostedMethod& host);

}  // namespace kvreplay
