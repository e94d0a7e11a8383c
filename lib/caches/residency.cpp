#include "caches/residency.hpp"

#include <algorithm>

namespace kvreplay {

void Residency::add(int32_t token, int32_t until, double num, double den) {
  if (until <= token) return;  // evicted before it was attended to
  const Run run{token, token + 1, until, num, den};
  const bool joins =
      !runs.empty() && run.plain() && runs.back().plain() && runs.back().last == token && runs.back().until == until;
  if (joins) runs.back().last = token + 1;
  else runs.push_back(run);
}

void Residency::list(const std::vector<int32_t>& held, std::vector<Eviction>& evicted, int32_t prompt) {
  runs.clear();
  std::sort(evicted.begin(), evicted.end());
  auto next = evicted.begin();
  const auto until = [&](int32_t token) {  // of ascending tokens
    while (next != evicted.end() && next->token < token) ++next;
    return next != evicted.end() && next->token == token ? next->until : kStays;
  };
  for (const int32_t token : held)
    if (!later || token < prompt) add(token, until(token));
  for (int32_t t = begin; t < end && !(later && t >= prompt); ++t) add(t, until(t));
}

bool Residency::everything(int32_t prompt) const {
  if (!later || runs.size() != 1) return false;
  const Run& run = runs.front();
  return run.first == 0 && run.last == std::min(prompt, end) && run.plain() && run.until == kStays;
}

}  // namespace kvreplay
