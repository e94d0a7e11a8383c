#pragma once
#include <algorithm>
#include <map>
#include <span>

#include "core/cache.hpp"
#include "replay/lane.hpp"

namespace kvreplay {

// Every resident token once, ascending; its weights summed over the rows that hold it.
template <class Real>
void list_rows(std::span<const int32_t> tokens, std::span<const Real> num, std::span<const Real> den,
               LaneLists& lists) {
  std::map<int32_t, std::pair<double, double>> weights;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= 0) {
      std::pair<double, double>& w = weights[tokens[i]];
      if (!num.empty()) w.first += double(num[i]), w.second += double(den[i]);
    }
  for (const auto& [token, w] : weights) {
    lists.kept.flat.push_back(token);
    if (!num.empty()) lists.num.push_back(w.first), lists.den.push_back(w.second);
  }
  lists.kept.off.push_back(int64_t(lists.kept.flat.size()));
}
template <class Real>
void list_kept(const BasicCache<Real>& cache, LaneLists& lists) {
  list_rows(cache.tokens(), cache.nums(), cache.dens(), lists);
}

// The same from what a chain left: every step from number `from` on, or that one alone.
inline void list_kept(const ChainRecord& record, int32_t from, bool every, LaneLists& lists) {
  const ChainRecord::Rows& rows = record.rows;
  const size_t first = size_t(std::max(0, from)), steps = record.steps.size();
  for (size_t i = first; i < (every ? steps : std::min(steps, first + 1)); ++i) {
    const size_t begin = size_t(rows.tokens.off[i]), count = size_t(rows.tokens.off[i + 1]) - begin;
    const auto part = [&](const auto& of) {
      return of.empty() ? std::span(of) : std::span(of).subspan(begin, count);
    };
    list_rows(part(rows.tokens.flat), part(rows.num), part(rows.den), lists);
  }
}

// What one query head reads of the cache in a step.
template <class Real>
void list_attended(const BasicCache<Real>& cache, const uint8_t* chosen, std::span<const int32_t> tokens,
                   size_t head, LaneLists& lists) {
  TokenLists& to = lists.attended[head];
  to.flat.insert(to.flat.end(), tokens.begin(), tokens.end());
  to.off.push_back(int64_t(to.flat.size()));
  const uint8_t* const end = chosen + cache.size();
  if (std::find(chosen, end, kWeighed) != end) lists.reading.partial = true;
}

// The tokens that a row of C_t attends to, each once. `split`: several rows may hold one token. `scratch`
// holds the answer unless it is the cache's own list.
template <class Real>
std::span<const int32_t> attended_tokens(const BasicCache<Real>& cache, const uint8_t* chosen, bool split,
                                         std::vector<int32_t>& scratch) {
  if (chosen == nullptr && !split) return cache.tokens();
  scratch.clear();
  for (int32_t i = 0; i < cache.size(); ++i) {
    const bool counts = cache.num(i) != 0 || cache.den(i) != 0;
    if (cache.token(i) >= 0 && counts && (chosen == nullptr || chosen[i] == kRead))
      scratch.push_back(cache.token(i));
  }
  if (!split) return scratch;
  std::sort(scratch.begin(), scratch.end());
  scratch.erase(std::unique(scratch.begin(), scratch.end()), scratch.end());
  return scratch;
}

}  // namespace kvreplay
