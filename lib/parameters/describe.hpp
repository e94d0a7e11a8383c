#pragma once
#include <initializer_list>
#include <span>

#include "core/method_info.hpp"
#include "parameters/parameter.hpp"

// declare(d) of a method or of a row format calls one function of Describe per parameter. The default is the member's
// initialiser.

namespace kvreplay {

// Declaration of one parameter, with the offset of its member, which holds the default.
struct Declared {
  const char* name;
  size_t offset;
  const char* help;
  const char* derived = "";  // how the default is derived; "" if it is a constant
};

class Describer {
 public:
  explicit Describer(const void* policy) : policy_(static_cast<const std::byte*>(policy)) {}
  void add(ParameterSpec::Kind kind, const Declared& d, Range range, std::vector<std::string> choices = {});
  void add_scorer(const Declared& d);
  void add_choice(const char* name, std::vector<ParameterSpec> nested);  // for the scorer that was added last
  // Returns all parameters with their defaults; call once, after the last add().
  std::vector<ParameterSpec> take();

 private:
  const std::byte* policy_;
  std::vector<ParameterSpec> specs_;
};

template <class M>
class Describe {
  using Kind = ParameterSpec::Kind;

 public:
  // policy: the whole policy, of which `m` is all or a part.
  Describe(Describer& to, const M& m, const void* policy, bool whole = true)
      : to_(to), m_(m), policy_(policy), whole_(whole) {}

  void integer(const char* name, int32_t M::*member, Range range, const char* help, const char* derived = "") {
    to_.add(Kind::integer, {name, at(m_.*member), help, derived}, range);
  }
  // A number, or one word instead.
  void integer_or_word(const char* name, int32_t M::*member, Range range, const char* other, const char* help,
                       const char* derived = "") {
    to_.add(Kind::integer, {name, at(m_.*member), help, derived}, range, {other});
  }
  void real(const char* name, double M::*member, Range range, const char* help, const char* derived = "") {
    to_.add(Kind::real, {name, at(m_.*member), help, derived}, range);
  }
  void real_or_word(const char* name, double M::*member, Range range, const char* other, const char* help,
                    const char* derived = "") {
    to_.add(Kind::real, {name, at(m_.*member), help, derived}, range, {other});
  }
  // A number, or one of two words (kRealWord, kSecondRealWord).
  void real_or_words(const char* name, double M::*member, Range range, std::vector<std::string> words,
                     const char* help) {
    to_.add(Kind::real, {name, at(m_.*member), help}, range, std::move(words));
  }
  void integers(const char* name, IntegerList M::*member, Range range, const char* help) {
    to_.add(Kind::integers, {name, at(m_.*member), help}, range);
  }
  void boolean(const char* name, bool M::*member, const char* help) {
    to_.add(Kind::boolean, {name, at(m_.*member), help}, {0, 1});
  }
  void layers(const char* name, LayerSet M::*member, const char* help) {
    to_.add(Kind::layers, {name, at(m_.*member), help}, {0, LayerSet::kMost - 1});
  }
  void rows(const char* name, int32_t M::*member, const char* help) {
    to_.add(Kind::rows, {name, at(m_.*member), help}, {1, kManyTokens}, {"full", "decode_only", "last:w"});
  }
  // A path, relative to the configuration. The policy does not see it.
  void file(const char* name, const char* help, const char* derived = "none: give a file") {
    to_.add(Kind::file, {name, 0, help, derived}, {0, 0});
  }
  // Selects the queries behind the statistics of Prompt::mean_query() and its neighbours. The policy does not see it. A
  // scorer that another method wraps is calibrated on the replayed prompt.
  void calibration(const char* help) {
    if (whole_)
      to_.add(Kind::calibration, {"calibration", 0, help}, {0, 0}, {"self", "others", "prompt:ID", "file:PATH"});
  }
  // `E` is an enum whose values 0, 1, ... correspond to the words; the value after them means that the default is
  // derived.
  template <class E>
  void choice(const char* name, E M::*member, std::initializer_list<const char*> words, const char* help,
              const char* derived = "") {
    choice(name, member, std::span(words.begin(), words.size()), help, derived);
  }
  template <class E>
  void choice(const char* name, E M::*member, std::span<const char* const> words, const char* help,
              const char* derived = "") {
    static_assert(sizeof(E) == sizeof(int32_t));
    to_.add(Kind::choice, {name, at(m_.*member), help, derived}, {0, 0}, {words.begin(), words.end()});
  }
  // A scorer inside the method (core/selecting.hpp).
  template <class S>
  void scorer(const char* name, S M::*member, const char* help) {
    const S& own = m_.*member;
    to_.add_scorer({name, at(own.kind), help});
    S any = own;
    for (any.kind = 0; any.kind < S::kinds; ++any.kind)
      any.visit([&]<class P>(const P& p) {
        const auto* there = reinterpret_cast<const std::byte*>(&own) + (address(p) - address(any));
        Describer inner(policy_);
        Describe<P> d(inner, *reinterpret_cast<const P*>(there), policy_, false);
        P::declare(d);
        to_.add_choice(P::info.name, inner.take());
      });
  }

 private:
  static const std::byte* address(const auto& x) { return reinterpret_cast<const std::byte*>(&x); }
  size_t at(const auto& x) const { return size_t(address(x) - static_cast<const std::byte*>(policy_)); }
  Describer& to_;
  const M& m_;
  const void* policy_;
  bool whole_;
};

}  // namespace kvreplay
