#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvreplay {

// The tokens that a cache holds in the rows of tokens begin..end-1, and until when. For a cache whose rows are
// unmodified tokens of the trace, an evaluator needs nothing else.
struct Residency {
  static constexpr int32_t kStays = std::numeric_limits<int32_t>::max();
  // Tokens first..last-1. The rows of tokens max(first.., begin)..until-1 attend to them (a row sees no token later
  // than its own), with these weights in numerator and denominator.
  struct Run {
    int32_t first, last, until = kStays;
    double num = 1, den = 1;
    bool plain() const { return num == 1 && den == 1; }
  };
  int32_t begin = 0, end = 0;
  std::vector<Run> runs;       // ascending; includes tokens that arrive, unless `later` covers them
  bool later = false;          // every token after the prompt is held from its own row on, at weight 1
  std::vector<int32_t> sizes;  // [end - begin] number of tokens that the row attends to

  struct Eviction {
    int32_t token, until;  // until: the first row that does not see the token
    auto operator<=>(const Eviction&) const = default;
  };
  // Appends tokens first..last-1. Consecutive tokens with the same end and weight 1 form one run.
  void add(int32_t first, int32_t last, int32_t until, double num = 1, double den = 1);
  // Builds the list from the tokens held when token `begin` arrived, and the evictions since then (or more), both by
  // token. prompt: prompt length.
  void list(const std::vector<int32_t>& held, const std::vector<Eviction>& evicted, int32_t prompt);
  // True if the cache holds the whole prompt, as far as it has arrived, and every later token, all at weight 1.
  bool everything(int32_t prompt) const;

  int32_t attended(int32_t token) const { return sizes[std::size_t(token - begin)]; }
  bool weighted() const {
    for (const Run& run : runs)
      if (!run.plain()) return true;
    return false;
  }
  // Calls f(first, last, num, den) for runs of tokens that the row of token t attends to, each token once. prompt:
  // prompt length.
  template <class F>
  void each_run(int32_t t, int32_t prompt, F f) const {
    for (const Run& run : runs)
      if (run.first <= t && t < run.until) f(run.first, run.last <= t ? run.last : t + 1, run.num, run.den);
    if (later && prompt <= t) f(prompt, t + 1, 1.0, 1.0);
  }
};

}  // namespace kvreplay
