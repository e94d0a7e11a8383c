#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/method_info.hpp"

// Each parameter of a method is declared once, in the method's declare(), and that line feeds the
// parser, the range checks, `kvreplay describe`, the docs table, the sweep axes and the cell's key.

namespace kvreplay {

struct ParameterSpec {
  enum class Kind { integer, real, boolean, choice, layers, rows, scorer, file };
  std::string name;
  Kind kind = Kind::integer;
  double low = 0, high = 0;  // inclusive; integers and reals
  // Words of a choice; of a number: words that may stand instead; of a scorer: its names.
  std::vector<std::string> choices;
  nlohmann::json default_value;                         // null: derived, see default_text
  std::string default_text;                             // what `describe` shows: "4", "floor(B/2)"
  std::string help;                                     // one sentence, with the unit
  std::vector<std::vector<ParameterSpec>> nested = {};  // of a scorer: the parameters of each choice
};

// A value of kind scorer is a name, or {"name": ..., parameters}; a set of layers is a list of numbers; rows
// are "full", "decode_only" or "last:w".
inline nlohmann::json layers_json(const LayerSet& layers) {
  nlohmann::json list = nlohmann::json::array();
  for (int32_t layer = 0; layer < LayerSet::kMost; ++layer)
    if (layers.has(layer)) list.push_back(layer);
  return list;
}
inline nlohmann::json rows_json(int32_t rows) {
  if (rows == kAllRows) return "full";
  return rows == kDecodeRows ? nlohmann::json("decode_only") : nlohmann::json("last:" + std::to_string(rows));
}
inline int32_t rows_from_json(const std::string& text) {
  if (text == "full") return kAllRows;
  return text == "decode_only" ? kDecodeRows : int32_t(std::stol(text.substr(5)));
}

// A file as results show it: its name alone, so that it is the same wherever it lies.
inline nlohmann::json file_json(const nlohmann::json& path) {
  if (!path.is_string()) return path;
  const std::string text = path.get<std::string>();
  return text.substr(text.rfind('/') + 1);
}

// A word of a choice; null where a variant or the budget decides.
nlohmann::json word_json(const std::vector<std::string>& words, size_t which);

// declare(d) of a method calls these, one line a parameter. The default is the member's initialiser.
// Three visitors exist: Describe (specs), Assign (json -> members), Dump (members -> json).
template <class M>
class Describe {
 public:
  std::vector<ParameterSpec> specs;
  void integer(const char* name, int32_t M::*member, Range range, const char* help,
               const char* derived = "") {
    const int32_t value = M{}.*member;
    add(name, ParameterSpec::Kind::integer, range, help, derived,
        value == kDerived ? nlohmann::json() : nlohmann::json(value));
  }
  // An integer, or one word instead (ParameterSpec::choices holds it).
  void integer_or_word(const char* name, int32_t M::*member, Range range, const char* other,
                       const char* help) {
    integer(name, member, range, help);
    specs.back().choices = {other};
  }
  void real(const char* name, double M::*member, Range range, const char* help, const char* derived = "") {
    const double value = M{}.*member;
    add(name, ParameterSpec::Kind::real, range, help, derived,
        value == kUnset ? nlohmann::json() : nlohmann::json(value));
  }
  void real_or_word(const char* name, double M::*member, Range range, const char* other, const char* help,
                    const char* derived = "") {
    real(name, member, range, help, derived);
    specs.back().choices = {other};
  }
  void layers(const char* name, LayerSet M::*member, const char* help) {
    add(name, ParameterSpec::Kind::layers, {0, LayerSet::kMost - 1}, help, "", layers_json(M{}.*member));
  }
  void rows(const char* name, int32_t M::*member, const char* help) {
    add(name, ParameterSpec::Kind::rows, {1, kManyTokens}, help, "", rows_json(M{}.*member));
    specs.back().choices = {"full", "decode_only", "last:w"};
  }
  // A path, relative to the configuration. The policy does not see it.
  void file(const char* name, const char* help) {
    add(name, ParameterSpec::Kind::file, {0, 0}, help, "none: give a file", nullptr);
  }
  template <class S>
  void scorer(const char* name, S M::*member, const char* help) {
    S any = M{}.*member;
    add(name, ParameterSpec::Kind::scorer, {0, 0}, help, "", any.name());
    for (int32_t kind = 0; kind < S::kinds; ++kind) {
      any.kind = kind;
      specs.back().choices.push_back(any.name());
      any.visit([&]<class P>(const P&) {
        Describe<P> inner;
        P::declare(inner);
        specs.back().nested.push_back(std::move(inner.specs));
      });
    }
  }
  void boolean(const char* name, bool M::*member, const char* help) {
    add(name, ParameterSpec::Kind::boolean, {0, 1}, help, "", M{}.*member);
  }
  // `E` is an enum whose values 0, 1, ... stand for the words; the value after them is derived.
  template <class E>
  void choice(const char* name, E M::*member, std::vector<std::string> words, const char* help,
              const char* derived = "") {
    add(name, ParameterSpec::Kind::choice, {0, 0}, help, derived, word_json(words, size_t(M{}.*member)));
    specs.back().choices = std::move(words);
  }

 private:
  void add(const char* name, ParameterSpec::Kind kind, Range range, const char* help, const char* derived,
           nlohmann::json value) {
    const std::string text = value.is_null()     ? derived
                             : value.is_string() ? value.get<std::string>()
                                                 : value.dump();
    specs.push_back({name, kind, range.low, range.high, {}, std::move(value), text, help, {}});
  }
};

template <class M>
class Assign {  // json values that are present and not null go to the members; the parser has checked types
                // and ranges
 public:
  Assign(M& method, const nlohmann::json& values) : method_(method), values_(values) {}
  void integer(const char* name, int32_t M::*member, Range, const char*, const char* = "") {
    set(name, method_.*member);
  }
  void integer_or_word(const char* name, int32_t M::*member, Range, const char*, const char*) {
    if (has(name) && values_.at(name).is_string()) method_.*member = kWord;
    else set(name, method_.*member);
  }
  void real(const char* name, double M::*member, Range, const char*, const char* = "") {
    set(name, method_.*member);
  }
  void real_or_word(const char* name, double M::*member, Range, const char*, const char*, const char* = "") {
    if (has(name) && values_.at(name).is_string()) method_.*member = kRealWord;
    else set(name, method_.*member);
  }
  void layers(const char* name, LayerSet M::*member, const char*) {
    if (!has(name)) return;
    method_.*member = {};
    for (const auto& layer : values_.at(name)) (method_.*member).add(layer.template get<int32_t>());
  }
  void rows(const char* name, int32_t M::*member, const char*) {
    if (has(name)) method_.*member = rows_from_json(values_.at(name).template get<std::string>());
  }
  void file(const char*, const char*) {}
  template <class S>
  void scorer(const char* name, S M::*member, const char*) {
    if (!has(name)) return;
    const nlohmann::json& given = values_.at(name);
    const std::string wanted = (given.is_string() ? given : given.at("name")).template get<std::string>();
    S& any = method_.*member;
    for (any.kind = 0; any.kind + 1 < S::kinds && any.name() != wanted;) ++any.kind;
    const nlohmann::json none = nlohmann::json::object();
    any.visit([&]<class P>(P& policy) {
      Assign<P> inner(policy, given.is_string() ? none : given);
      P::declare(inner);
    });
  }
  void boolean(const char* name, bool M::*member, const char*) { set(name, method_.*member); }
  template <class E>
  void choice(const char* name, E M::*member, const std::vector<std::string>& words, const char*,
              const char* = "") {
    if (!has(name)) return;
    const std::string word = values_.at(name).template get<std::string>();
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] == word) method_.*member = E(i);
  }

 private:
  bool has(const char* name) const { return values_.contains(name) && !values_.at(name).is_null(); }
  template <class T>
  void set(const char* name, T& to) {
    if (has(name)) to = values_.at(name).template get<T>();
  }
  M& method_;
  const nlohmann::json& values_;
};

template <class M>
class Dump {  // members -> json; a derived integer that nothing has resolved yet is null
 public:
  // given: where files stand, which no member holds.
  explicit Dump(const M& method, const nlohmann::json* given = nullptr) : method_(method), given_(given) {}
  nlohmann::json values = nlohmann::json::object();
  void integer(const char* name, int32_t M::*member, Range, const char*, const char* = "") {
    const int32_t value = method_.*member;
    values[name] = value == kDerived ? nlohmann::json() : nlohmann::json(value);
  }
  void integer_or_word(const char* name, int32_t M::*member, Range, const char* other, const char*) {
    const int32_t value = method_.*member;
    values[name] = value == kWord ? nlohmann::json(other) : nlohmann::json(value);
  }
  void real(const char* name, double M::*member, Range, const char*, const char* = "") {
    const double value = method_.*member;
    values[name] = value == kUnset ? nlohmann::json() : nlohmann::json(value);
  }
  void real_or_word(const char* name, double M::*member, Range, const char* other, const char*,
                    const char* = "") {
    const double value = method_.*member;
    values[name] = value == kRealWord ? nlohmann::json(other) : nlohmann::json(value);
    if (value == kUnset) values[name] = nullptr;
  }
  void layers(const char* name, LayerSet M::*member, const char*) {
    values[name] = layers_json(method_.*member);
  }
  void rows(const char* name, int32_t M::*member, const char*) { values[name] = rows_json(method_.*member); }
  void file(const char* name, const char*) {
    values[name] =
        given_ != nullptr && given_->contains(name) ? file_json(given_->at(name)) : nlohmann::json();
  }
  template <class S>
  void scorer(const char* name, S M::*member, const char*) {
    S any = method_.*member;
    any.visit([&]<class P>(P& policy) {
      Dump<P> inner(policy);
      P::declare(inner);
      values[name] = std::move(inner.values);
    });
    values[name]["name"] = any.name();
  }
  void boolean(const char* name, bool M::*member, const char*) { values[name] = method_.*member; }
  template <class E>
  void choice(const char* name, E M::*member, const std::vector<std::string>& words, const char*,
              const char* = "") {
    values[name] = word_json(words, size_t(method_.*member));
  }

 private:
  const M& method_;
  const nlohmann::json* given_;
};

}  // namespace kvreplay
