#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/serving.hpp"

namespace kvreplay {

// Pages of one cache, or of the caches that share a table, summed over the points after the prompt and after each step.
struct PageLedger {
  int64_t points = 0, resident_sum = 0, resident_peak = 0, freed_sum = 0;  // pages
  int64_t first = 0, last = 0;   // resident at the end of the prompt, and of the text
  int64_t attended_peak = 0;     // resident in a step, before it evicts; of a table that caches share
  double fragmentation_sum = 0;  // shares of the slots without a token
  int64_t moved_rows = 0;        // compact: rows whose place changed

  // pages: of the text so far. tokens, tables: tokens held, over all tables that have the resident pages.
  void add(int64_t resident, int64_t pages, int64_t tokens, int64_t tables, int32_t page) {
    if (points == 0) first = resident;
    last = resident;
    points += 1, resident_sum += resident, freed_sum += pages - resident;
    if (resident > resident_peak) resident_peak = resident;
    fragmentation_sum += resident > 0 ? 1 - double(tokens) / double(tables * page * resident) : 0;
  }
};

// Which pages of a cache hold a token. Token i lives in page floor(i / N) for good; with `compact` the tokens that stay
// move to the front at each cut.
class PageTable {
 public:
  PageTable() = default;
  // history: whether at() is needed.
  PageTable(const Pages& pages, int32_t tokens, bool history);
  bool any() const { return pages_.any(); }
  int32_t size() const { return pages_.size; }
  // Tokens up to `newest` have arrived. gone: tokens evicted since the last call. held: tokens that stay, ascending.
  void follow(int32_t newest, std::span<const int32_t> gone, std::span<const int32_t> held);
  int64_t resident() const;
  // The end of a step, or of the prompt.
  void close(int32_t newest);
  const PageLedger& ledger() const { return ledger_; }

  // Pages that any of the tables holds, point by point: a table that all kv heads of a layer share.
  static PageLedger shared(const std::vector<const PageTable*>& tables);

 private:
  Pages pages_;
  std::vector<int32_t> in_page_;  // tokens held in each page
  int32_t newest_ = -1, tokens_ = 0, pages_held_ = 0;
  PageLedger ledger_;
  bool history_ = false;
  struct Point {
    int32_t newest, tokens;
    std::vector<uint64_t> pages;  // bits
  };
  std::vector<Point> points_;
};

}  // namespace kvreplay
