#include "caches/residency.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

// Number of consecutive tokens from index `at` on. tokens ascend, so a run ends where a token exceeds its expected
// value.
int32_t neighbours(const std::vector<int32_t>& tokens, size_t at) {
  constexpr size_t kStride = 64;
  const auto joined = [&](size_t to) { return to < tokens.size() && size_t(tokens[to] - tokens[at]) == to - at; };
  size_t last = at;
  while (joined(last + kStride)) last += kStride;
  while (joined(last + 1)) ++last;
  return int32_t(last - at) + 1;
}

}  // namespace

void Residency::add(int32_t first, int32_t last, int32_t until, double num, double den) {
  if (until <= first) return;  // evicted before any row attended to it
  const Run run{first, last, until, num, den};
  const bool joins =
      !runs.empty() && run.plain() && runs.back().plain() && runs.back().last == first && runs.back().until == until;
  if (joins) runs.back().last = last;
  else runs.push_back(run);
}

void Residency::list(const std::vector<int32_t>& held, const std::vector<Eviction>& evicted, int32_t prompt) {
  runs.clear();
  auto next = evicted.begin();
  const auto add_neighbours = [&](int32_t first, int32_t last) {
    while (first < last) {
      while (next != evicted.end() && next->token < first) ++next;
      const bool leaves = next != evicted.end() && next->token == first;
      const int32_t behind = leaves ? first + 1 : next == evicted.end() ? last : std::min(last, next->token);
      add(first, behind, leaves ? next->until : kStays);
      first = behind;
    }
  };
  const int32_t listed = later ? std::min(prompt, end) : end;  // tokens that `later` does not cover
  for (size_t at = 0; at < held.size() && held[at] < listed;) {
    const int32_t count = neighbours(held, at);
    add_neighbours(held[at], std::min(held[at] + count, listed));
    at += size_t(count);
  }
  add_neighbours(begin, listed);
}

bool Residency::everything(int32_t prompt) const {
  if (!later || runs.size() != 1) return false;
  const Run& run = runs.front();
  return run.first == 0 && run.last == std::min(prompt, end) && run.plain() && run.until == kStays;
}

}  // namespace kvreplay
