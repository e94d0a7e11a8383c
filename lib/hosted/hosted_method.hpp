#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/method.hpp"
#include "core/method_context.hpp"

// Methods whose text is not part of this build, because somebody wrote them in another language. The engine replays
// them like its own: same budgets, protection, account and audit. Who hosts them implements these classes; what goes
// wrong there is a ReplayError, which fails the cell.

namespace kvreplay {

// Numbers that the engine shows for the duration of a call: float, or double where `wide`. Extents and distances in
// elements; the last axis is contiguous.
struct ShownNumbers {
  const void* data = nullptr;
  bool wide = false;
  int64_t extents[3] = {}, strides[3] = {};
};

// The prompt, at its end.
struct HostedPrompt {
  ShownNumbers keys, values;           // [kv heads, tokens, dim], [kv heads, tokens, v_dim]
  ShownNumbers queries, attention;     // of the last rows: [query heads, rows, dim], [query heads, rows, tokens]
  std::span<const int32_t> positions;  // [tokens]
  int32_t tokens = 0;
  double scale = 1;  // of the logits
};

// The rows that a cache holds in this step.
struct HostedRows {
  std::span<const int32_t> tokens;  // [rows] ascending
  std::span<double> scores;         // [rows] what the policy remembers of a token, gone with it
  bool wide = false;
  int32_t blocks = 1, dim = 0, v_dim = 0;
  std::function<void(void*to)> copy_keys, copy_values;  // [kv heads, rows, dim], in the width of the engine
};

// One cache of a method.
class HostedSession {
 public:
  virtual ~HostedSession() = default;
  // One shot: a score for each token of the prompt, of which the larger stay.
  virtual void score(const HostedPrompt& prompt, std::span<double> scores) = 0;
  // Streaming: the prompt is there; scores start at 0 and may be set.
  virtual void start(const HostedPrompt& prompt, std::span<double> scores) = 0;
  // Probabilities of this step, [query heads, rows].
  virtual void observe(const HostedRows& rows, std::span<const double> probabilities, int32_t heads) = 0;
  // Which tokens leave.
  virtual std::vector<int32_t> evict(const HostedRows& rows) = 0;
};

// Where a cache stands among those of a run.
struct HostedPlace {
  MethodContext context;
  uint32_t seed = 0, prompt = 0, layer = 0, kv_head = 0;
  int32_t first_head = 0;  // of its query heads, in the stream
  std::string params;      // `sinks`, `recent` and the method's own, as canonical JSON
  bool audit = false;
};

class HostedMethod {
 public:
  struct Parameter {
    std::string name, help;
    ParameterSpec::Kind kind = ParameterSpec::Kind::real;  // integer, real or boolean
    double value = 0;                                      // by default
  };
  std::string name, title, source;
  std::string identity;  // hash of its text: another text is another method
  std::vector<Parameter> parameters;
  bool streams = false;  // else one shot
  bool observes = false, random = false;
  bool sees_budget = false;       // one shot: its scores are others at another budget
  int32_t sinks = 0, recent = 0;  // tokens that always stay, by default
  int32_t window = 0;             // last rows of the prompt whose queries and attention it sees
  bool window_stays = false;      // and whose tokens stay
  int32_t row_bytes = 0;          // what it remembers of a held token besides the score

  HostedMethod() = default;
  HostedMethod(const HostedMethod&) = delete;
  HostedMethod& operator=(const HostedMethod&) = delete;
  virtual ~HostedMethod() = default;
  // From several threads at once; a session is used by one thread at a time.
  virtual std::shared_ptr<HostedSession> open(const HostedPlace& place) = 0;
};

// What a host says of a method, JSON with the names of the members above, a parameter's being name, kind ("bool",
// "int", "float"), default and help. Throws ConfigError.
void take_facts(HostedMethod& method, const std::string& facts);
// A place as JSON, for the host.
std::string place_json(const HostedPlace& place);

// Makes it an entry of a registry. The host outlives it. Throws ConfigError where the host asks for what no entry can
// be, or where the registry has its name.
void add_hosted(Registry& methods, HostedMethod& host);

}  // namespace kvreplay
