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
  enum class Kind { integer, real, boolean, choice };
  std::string name;
  Kind kind = Kind::integer;
  double low = 0, high = 0;          // inclusive; integers and reals
  std::vector<std::string> choices;  // words of a choice; of an integer: a word that may stand instead
  nlohmann::json default_value;      // null: derived, see default_text
  std::string default_text;          // what `describe` shows: "4", "floor(B/2)"
  std::string help;                  // one sentence, with the unit
};

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
  void real(const char* name, double M::*member, Range range, const char* help) {
    add(name, ParameterSpec::Kind::real, range, help, "", M{}.*member);
  }
  void boolean(const char* name, bool M::*member, const char* help) {
    add(name, ParameterSpec::Kind::boolean, {0, 1}, help, "", M{}.*member);
  }
  // `E` is an enum whose values 0, 1, ... stand for the words.
  template <class E>
  void choice(const char* name, E M::*member, std::vector<std::string> words, const char* help) {
    add(name, ParameterSpec::Kind::choice, {0, 0}, help, "", words.at(size_t(M{}.*member)));
    specs.back().choices = std::move(words);
  }

 private:
  void add(const char* name, ParameterSpec::Kind kind, Range range, const char* help, const char* derived,
           nlohmann::json value) {
    const std::string text = value.is_null()     ? derived
                             : value.is_string() ? value.get<std::string>()
                                                 : value.dump();
    specs.push_back({name, kind, range.low, range.high, {}, std::move(value), text, help});
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
  void real(const char* name, double M::*member, Range, const char*) { set(name, method_.*member); }
  void boolean(const char* name, bool M::*member, const char*) { set(name, method_.*member); }
  template <class E>
  void choice(const char* name, E M::*member, const std::vector<std::string>& words, const char*) {
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
  explicit Dump(const M& method) : method_(method) {}
  nlohmann::json values = nlohmann::json::object();
  void integer(const char* name, int32_t M::*member, Range, const char*, const char* = "") {
    const int32_t value = method_.*member;
    values[name] = value == kDerived ? nlohmann::json() : nlohmann::json(value);
  }
  void integer_or_word(const char* name, int32_t M::*member, Range, const char* other, const char*) {
    const int32_t value = method_.*member;
    values[name] = value == kWord ? nlohmann::json(other) : nlohmann::json(value);
  }
  void real(const char* name, double M::*member, Range, const char*) { values[name] = method_.*member; }
  void boolean(const char* name, bool M::*member, const char*) { values[name] = method_.*member; }
  template <class E>
  void choice(const char* name, E M::*member, const std::vector<std::string>& words, const char*) {
    values[name] = words.at(size_t(method_.*member));
  }

 private:
  const M& method_;
};

}  // namespace kvreplay
