#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/token_span.hpp"

namespace kvreplay {

// Marked spans of a prompt (`replay.needles`): as the trace records them, or each of `tokens` tokens from a fraction of
// the prompt on, 0 <= at < 1.
struct Needles {
  std::vector<double> at;
  int32_t tokens = 0;
  bool recorded = false;
  bool any() const { return recorded || !at.empty(); }
  // of_trace: the recorded spans.
  std::vector<TokenSpan> spans(int32_t prompt, std::span<const TokenSpan> of_trace) const {
    std::vector<TokenSpan> spans;
    if (recorded)
      for (const TokenSpan& span : of_trace)
        spans.push_back({std::min(span.begin, prompt), std::min(span.end, prompt)});
    for (const double share : at) {
      const auto begin = int32_t(std::floor(share * prompt));
      spans.push_back({begin, int32_t(std::min<int64_t>(prompt, int64_t(begin) + tokens))});
    }
    return spans;
  }
};

// The attended share of a query's mass on marked tokens; negative if the query puts no mass there. `strip` [tokens of
// the row]: exp(l - shift), any scale. `to`: first for the union of the spans, then for each span.
template <class Real>
void needle_shares(const Real* strip, std::span<const int32_t> attended, std::span<const TokenSpan> spans, double* to) {
  std::vector<double> full(spans.size() + 1, 0.0), held(spans.size() + 1, 0.0);
  const auto count = [&](int32_t token, std::vector<double>& sums) {
    bool any = false;
    for (size_t s = 0; s < spans.size(); ++s) {
      if (!spans[s].holds(token)) continue;
      sums[s + 1] += double(strip[token]);
      any = true;
    }
    if (any) sums[0] += double(strip[token]);
  };
  int32_t last = 0;  // spans may overlap: count each token of the union once
  std::vector<TokenSpan> sorted(spans.begin(), spans.end());
  std::sort(sorted.begin(), sorted.end(), [](auto a, auto b) { return a.begin < b.begin; });
  for (const TokenSpan& span : sorted)
    for (int32_t t = std::max(last, span.begin); t < span.end; ++t) count(t, full), last = t + 1;
  for (const int32_t token : attended)
    if (token >= 0) count(token, held);
  for (size_t s = 0; s < full.size(); ++s) to[s] = full[s] > 0 ? held[s] / full[s] : -1;
}

}  // namespace kvreplay
