#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

// BUZZ, Zhao et al. 2024, Theorem 3.1 and Remarks 1 and 2, in whole tokens with the released code's ceilings (the
// paper's floors are a misprint, as is a factor 2 in its recursion).

namespace kvreplay::theory {

// Recommended ratio of the parameters: T/w = (s^2 + 1)/(s + 1) for odd s, s - 1 for even s.
inline double buzz_threshold_to_window(double s) { return int64_t(s) % 2 != 0 ? (s * s + 1) / (s + 1) : s - 1; }
// The largest window of `room` = w + T tokens for which the rule holds: floor(room/(1 + T/w)).
inline int64_t buzz_window(int64_t room, int64_t s) { return s % 2 != 0 ? room * (s + 1) / (s * s + s + 2) : room / s; }

struct Buzz {
  int64_t sinks, window, threshold;  // k, w, T
  int64_t fires_at;                  // X, the length of the middle at a pass
  int64_t old_step, new_step;        // shat, s: a pass keeps one of this many tokens

  enum class Variant { reference, paper };  // fires above T, or at it
  static Buzz of(int64_t k, int64_t w, int64_t s, int64_t T, Variant variant) {
    return {k, w, T, T + (variant == Variant::reference ? 1 : 0), (s + 1) / 2, s};
  }
  // s <= 2: shat = 1, so the number of old tokens never falls.
  bool bounded() const { return old_step > 1; }
  int64_t first_pass() const { return ceil_div(fires_at, new_step); }  // a_1
  // Tokens that a pass leaves of a middle of which the previous pass kept `a`: ceil(a/shat) + ceil((X - a)/s). If the
  // previous pass left X or more, the next token starts the next pass.
  int64_t next_pass(int64_t a) const {
    return ceil_div(a, old_step) + ceil_div(std::max(fires_at - a, int64_t{1}), new_step);
  }
  // The end of the recursion: a fixed point (low = high), or a short cycle. Needs bounded().
  struct Limit {
    int64_t low, high;
  };
  Limit limit() const {
    std::vector<int64_t> seen;
    int64_t a = first_pass();
    auto again = seen.end();
    for (; (again = std::find(seen.begin(), seen.end(), a)) == seen.end(); a = next_pass(a)) seen.push_back(a);
    const auto [low, high] = std::minmax_element(again, seen.end());
    return {*low, *high};
  }
  // Without ceilings: a* = T/(s (1 - 1/shat + 1/s)) = T (s+1)/(s^2+1) for odd s, T/(s-1) for even s.
  double fixed_point() const {
    const double shat = double(old_step), s = double(new_step);
    return double(threshold) / (s * (1 - 1 / shat + 1 / s));
  }
  double low_point() const { return double(sinks + window) + fixed_point() + 1; }  // attended tokens, approximately
  double mean_size() const { return double(sinks + window) + (fixed_point() + double(threshold)) / 2; }

  // One pass over a prompt of P tokens leaves k + w + ceil((P - k - w)/s); a shorter prompt is left unchanged.
  int64_t after_prompt(int64_t P) const {
    const int64_t middle = P - sinks - window;
    return middle < fires_at ? P : sinks + window + ceil_div(middle, new_step);
  }
  // Upper bounds: k + w + X - 1 tokens after a step, or the tokens left by a single pass over the prompt; one more
  // while attending. A middle of two exceeds a threshold of one, but no pass makes it smaller.
  int64_t peak_kept(std::optional<int64_t> prompt = {}) const {
    const int64_t steady = sinks + window + std::max(fires_at - 1, int64_t{2});
    return prompt ? std::max(steady, after_prompt(*prompt)) : steady;
  }
  int64_t peak_attended(std::optional<int64_t> prompt = {}) const { return peak_kept(prompt) + 1; }

 private:
  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
};

}  // namespace kvreplay::theory
