#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
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

// Where a mistake was found. Empty parts are not reported.
struct Places {
  std::set<int32_t> layers;
  std::vector<std::string> prompts;  // each once, in the order in which they were found
};

// A mistake as data. Mistakes with one rule and one remedy are one mistake with several methods, values and places.
// A sentence comes of it: "h2o and snapkv need every query, but t.h5 holds 50 of 200 (layers 0-29): record it again".
struct Refusal {
  static constexpr const char* kMethods = "{methods}";
  std::vector<NamedMethod> methods = {};  // subject; empty: the rule is the whole sentence
  std::string verb = {};                  // what the methods do: "need"; empty: the sentence is "h2o: rule"
  // {value}: "a or b"; {values}: "a and b"; {count}, {least}: of `counts`; {methods}: the methods, which are then no
  // subject; <shares|share>: the first word for one method, the second for several.
  std::string rule = {};
  std::string remedy = {};                                 // {entry}: the methods with `option`; {least} as above
  std::vector<std::string> values = {};                    // each once
  std::optional<std::pair<int64_t, int64_t>> counts = {};  // least and most
  std::pair<std::string, std::string> option = {};         // name and word
  Places places = {};
  std::unordered_set<std::string> known_values = {};  // those of `values`, once there are several

  bool empty() const { return rule.empty(); }
  std::string identity() const;      // equal for mistakes that are one
  void add(const Refusal& another);  // another mistake with this identity
  std::string text(const Wording& words) const;
};

// A mistake in a file with a group for each head. The text names one of the groups, or is about the whole file.
Refusal refusal_of_group(const std::string& text, const std::vector<std::string>& groups);

// "0, 7, 15", "0-29".
std::string numbers_text(const std::set<int32_t>& numbers);
// "a", "a and b", "a, b and c"; many: "a, b, c and 9 more".
std::string words_text(const std::vector<std::string>& words, const char* last = "and");

}  // namespace kvreplay
