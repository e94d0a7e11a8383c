#include "caches/page_table.hpp"

#include <algorithm>
#include <bit>

namespace kvreplay {

PageTable::PageTable(const Pages& pages, int32_t tokens, bool history) : pages_(pages), history_(history) {
  if (pages.any()) in_page_.assign(size_t((tokens + pages.size - 1) / pages.size), 0);
}

void PageTable::follow(int32_t newest, std::span<const int32_t> gone, std::span<const int32_t> held) {
  for (; newest_ < newest; ++tokens_)
    if (in_page_[size_t(++newest_ / pages_.size)]++ == 0) ++pages_held_;
  for (const int32_t token : gone)
    if (--in_page_[size_t(token / pages_.size)] == 0) --pages_held_;
  tokens_ -= int32_t(gone.size());
  if (!pages_.compact || gone.empty()) return;
  const int32_t first = *std::min_element(gone.begin(), gone.end());
  ledger_.moved_rows += held.end() - std::upper_bound(held.begin(), held.end(), first);
}

int64_t PageTable::resident() const { return pages_.compact ? (tokens_ + pages_.size - 1) / pages_.size : pages_held_; }

void PageTable::close(int32_t newest) {
  ledger_.add(resident(), newest / pages_.size + 1, tokens_, 1, pages_.size);
  if (!history_) return;
  Point point{newest, tokens_, std::vector<uint64_t>((in_page_.size() + 63) / 64, 0)};
  for (size_t p = 0; p < in_page_.size(); ++p)
    if (in_page_[p] > 0) point.pages[p / 64] |= uint64_t{1} << (p % 64);
  points_.push_back(std::move(point));
}

PageLedger PageTable::shared(const std::vector<const PageTable*>& tables) {
  PageLedger all;
  const PageTable& first = *tables.front();
  std::vector<uint64_t> before;
  for (size_t at = 0; at < first.points_.size(); ++at) {
    std::vector<uint64_t> held(first.points_[at].pages.size(), 0);
    int64_t tokens = 0, resident = 0;
    const size_t newest = size_t(first.points_[at].newest / first.size());
    const bool opens = at > 0 && (before[newest / 64] >> (newest % 64) & 1) == 0;
    const int64_t attended = all.last + (opens ? 1 : 0);
    for (const PageTable* table : tables) {
      const Point& point = table->points_[at];
      tokens += point.tokens;
      for (size_t i = 0; i < held.size(); ++i) held[i] |= point.pages[i];
    }
    for (const uint64_t bits : held) resident += std::popcount(bits);
    all.attended_peak = std::max({all.attended_peak, attended, resident});
    before = held;
    all.add(resident, first.points_[at].newest / first.size() + 1, tokens, int64_t(tables.size()), first.size());
  }
  return all;
}

}  // namespace kvreplay
