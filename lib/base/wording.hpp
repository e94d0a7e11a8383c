#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace kvreplay {

// A method of a configuration, and its place in the list of methods, from 0.
struct NamedMethod {
  std::string name;
  size_t entry = 0;
  bool operator==(const NamedMethod&) const = default;
};

// How a front door writes what its callers write: keys, settings, methods, commands. Messages take these words from
// here, so that a remedy can be typed as it stands. This class has the words of configuration files.
class Wording {
 public:
  virtual ~Wording() = default;

  // The name of a key: "replay.prefill" is replay.prefill in a file, --prefill, or the argument prefill.
  virtual std::string key(const std::string& place) const;
  // A setting as it is written. value: JSON. `replay: {prompt: cut}`, --set replay.prompt=cut, prompt="cut".
  virtual std::string setting(const std::string& place, const std::string& value) const;
  // A setting inside a sentence: `replay.prompt: cut`.
  virtual std::string mention(const std::string& place, const std::string& value) const;
  // An option of a method or of a row format: `phase: stream`, "phase": "stream".
  virtual std::string option(const std::string& name, const std::string& word) const;
  // Methods with one option more: `{name: h2o, phase: stream}`.
  virtual std::string entries(const std::vector<NamedMethod>& methods, const std::string& name,
                              const std::string& word) const;
  // A value. json: may hold dots for what is left out, as in {"name": "h2o", ...}.
  virtual std::string literal(const std::string& json) const;

  virtual std::string list(const std::string& what) const;           // kvreplay list methods
  virtual std::string description(const std::string& method) const;  // kvreplay describe h2o
  virtual std::string belongs(const std::string& section, const std::string& key) const;
  virtual std::string budgets() const;                        // where budgets are written
  virtual bool percent() const;                               // whether shares of the cache are written as 20%
  virtual std::string share(double share) const;              // a share of the cache
  virtual std::string folder() const;                         // what relative paths are relative to
  virtual std::string map() const;                            // a map
  virtual std::string truths() const;                         // true or false
  virtual std::string source(const std::string& path) const;  // a trace: t.h5, the arrays
  // A trace and what it does, in third person. verb: "hold", "lack". `t.h5 holds`.
  virtual std::string trace(const std::string& path, const std::string& verb) const;
  // What gives a trace every query row, or its rotary embedding.
  virtual std::string every_query(const std::string& path) const;
  virtual std::string rope(const std::string& path) const;

 protected:
  static constexpr size_t kMostEntries = 3;  // methods that entries() writes out
};

const Wording& file_wording();

// "need" -> "needs", "have" -> "has".
std::string third_person(const std::string& verb);
// A JSON text without quotes: a YAML text, if its strings are plain words.
std::string without_quotes(std::string json);

}  // namespace kvreplay
