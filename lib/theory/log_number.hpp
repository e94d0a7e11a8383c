#pragma once
#include <cmath>
#include <compare>
#include <limits>
#include <optional>

namespace kvreplay::theory {

// A number of at least 0 together with its natural logarithm: theorems require sizes such as exp(150), and errors such
// as exp(-800), that a double cannot hold.
class LogNumber {
 public:
  LogNumber(double value) : value_(value), ln_(std::log(value)) {}  // value >= 0
  static LogNumber exp(double ln) { return {std::exp(ln), ln}; }

  double ln() const { return ln_; }
  // The nearest double; infinity or 0 if the number is out of range.
  double nearest() const { return value_; }
  bool exact_zero() const { return ln_ == -std::numeric_limits<double>::infinity(); }
  double log10() const { return representable() ? std::log10(value_) : ln_ / std::log(10.0); }  // -inf for 0
  // As a plain number: only below 10^15, where integers are exact, and above 10^-300.
  std::optional<double> plain() const {
    if (exact_zero()) return 0;
    return representable() && value_ < 1e15 ? std::optional(value_) : std::nullopt;
  }
  // Rounds up to the next integer; from 10^15 on the number is returned unchanged.
  LogNumber ceil() const { return value_ < 1e15 ? LogNumber(std::ceil(value_)) : *this; }

  friend LogNumber operator*(LogNumber a, LogNumber b) {
    const double product = a.value_ * b.value_;
    if (a.exact_zero() || b.exact_zero()) return 0;
    const LogNumber x{product, a.ln_ + b.ln_};
    return std::isnormal(product) ? x : exp(x.ln_);
  }
  friend LogNumber operator/(LogNumber a, LogNumber b) {
    const double ratio = a.value_ / b.value_;
    const LogNumber x{ratio, a.ln_ - b.ln_};
    return std::isnormal(ratio) ? x : exp(x.ln_);
  }
  friend LogNumber operator+(LogNumber a, LogNumber b) {
    if (a.ln_ < b.ln_) return b + a;
    if (b.exact_zero()) return a;
    return {a.value_ + b.value_, a.ln_ + std::log1p(std::exp(b.ln_ - a.ln_))};
  }
  friend std::partial_ordering operator<=>(LogNumber a, LogNumber b) {
    return a.representable() && b.representable() ? a.value_ <=> b.value_ : a.ln_ <=> b.ln_;
  }

 private:
  LogNumber(double value, double ln) : value_(value), ln_(ln) {}
  bool representable() const { return value_ > 1e-300 && std::isfinite(value_); }

  double value_, ln_;
};

}  // namespace kvreplay::theory
