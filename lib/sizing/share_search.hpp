#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace kvreplay {

// Searches the largest budget whose size does not exceed a share. The caller measures the sizes that the search asks
// for. Sizes mostly rise with the budget, so the search ends where a budget fits and the next does not. With formats
// that code rows in blocks, the size drops where a block closes: the search then looks two blocks ahead.
class ShareSearch {
 public:
  // least, most: range of budgets in tokens. block: rows that are coded together, or 0.
  ShareSearch(int32_t least, int32_t most, int32_t block) : least_(least), most_(most), block_(block) {}

  // Adds the size of a cache of so many tokens, as a share of the full one; nullopt: it cannot be replayed.
  void add(int32_t tokens, std::optional<double> share) { tried_[tokens] = share; }
  // Budgets to try next, all untried; empty: the search is finished. near: the answer of a similar search, or 0.
  std::vector<int32_t> next(double share, int32_t near = 0) const;
  // The budget that is tried first.
  int32_t guess(double share) const;
  // The largest tried budget that fits.
  std::optional<int32_t> answer(double share) const;
  // The smallest share that was measured.
  std::optional<double> floor() const;
  int32_t most() const { return most_; }

 private:
  using Tried = std::map<int32_t, std::optional<double>>;
  bool fits(const Tried::value_type& one, double share) const { return one.second && *one.second <= share; }
  std::vector<int32_t> first(double share, int32_t near) const;
  std::vector<int32_t> above(Tried::const_iterator fitting, double share) const;
  std::vector<int32_t> between(const Tried::value_type& fitting, const Tried::value_type& beyond, double share) const;
  std::vector<int32_t> below(double share) const;
  std::vector<int32_t> ahead(int32_t fitting) const;
  std::vector<int32_t> untried(const std::vector<int64_t>& budgets) const;

  int32_t least_, most_, block_;
  Tried tried_;
};

}  // namespace kvreplay
