#pragma once
#include <algorithm>
#include <vector>

#include "core/cut_plan.hpp"
#include "core/select.hpp"

namespace kvreplay {

// A page that holds tokens: rows first .. last - 1 of the cache.
struct HeldPage {
  int32_t number, first, last;
  bool full, is_safe = false, of_prompt = false;  // is_safe: holds a protected token
  bool stays = false;
  bool counts() const { return full && !of_prompt; }  // inside the budget
  bool is_open() const { return counts() && !is_safe; }
};

// The pages of a cache of which only whole pages leave: page g holds the tokens g N .. g N + N - 1.
class HeldPages {
 public:
  // protect: rows that stay, and with them their pages. kept_prompt: a page with one of these first tokens stays, and
  // counts beside the budget.
  template <Cache C>
  HeldPages(const C& cache, int32_t size, Protect protect, int32_t kept_prompt) {
    const int32_t n = cache.size(), newest = n > 0 ? cache.token(n - 1) : -1;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t token = cache.token(i), number = token / size;
      if (pages_.empty() || pages_.back().number != number)
        pages_.push_back({number, i, i, (number + 1) * size <= newest + 1});
      HeldPage& page = pages_.back();
      page.last = i + 1;
      page.of_prompt = page.of_prompt || token < kept_prompt;
      page.is_safe = page.is_safe || token < protect.sinks || i >= n - std::max(protect.recent, 1);
    }
  }
  std::vector<HeldPage>& all() { return pages_; }
  // Full pages that count inside the budget.
  int32_t full() const {
    return int32_t(std::count_if(pages_.begin(), pages_.end(), [](const HeldPage& p) { return p.counts(); }));
  }
  // Decides which pages stay: the protected and the best others, until `left` of those that count do.
  template <Team T, class F>
  void choose(const T& team, int32_t left, F score) {
    std::vector<HeldPage*> open;
    for (HeldPage& page : pages_) {
      page.stays = !page.is_open();
      if (page.is_open()) open.push_back(&page);
      else if (page.counts()) --left;
    }
    choose_top(
        team, int32_t(open.size()), std::max(left, 0), [&](int32_t i) { return score(*open[size_t(i)]); },
        [&](int32_t i, bool yes) { open[size_t(i)]->stays = yes; });
  }
  template <Team T, Cache C>
  void retain(const T& team, C& cache) const {
    for (const HeldPage& page : pages_)
      for (int32_t i = page.first; i < page.last; ++i) cache.mark(i) = page.stays ? 1 : 0;
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
  }

 private:
  std::vector<HeldPage> pages_;
};

// A page's score, from score(row) of its rows.
template <class F>
double page_score(Pages::Score how, int32_t first, int32_t last, F score) {
  double all = score(first);
  for (int32_t i = first + 1; i < last; ++i) {
    const double x = score(i);
    all = how == Pages::Score::max ? (x > all ? x : all) : all + x;
  }
  return how == Pages::Score::mean ? all / (last - first) : all;
}

// The cut of `evict: page`. m: tokens that may stay.
template <Team T, Cache C, class F>
void cut_pages(const T& team, C& cache, const CutPlan& plan, Protect protect, int32_t m, F score) {
  const Pages& options = plan.options.pages;
  HeldPages pages(cache, options.size, protect, plan.options.keep_prompt ? plan.prompt : 0);
  const int32_t left = plan.pages(m);
  if (pages.full() <= left) return;
  const auto own = [&](const HeldPage& g) { return page_score(options.score, g.first, g.last, score); };
  if (const PageBoard board = cache.page_board(); board.sums != nullptr) {
    *board.cut = {true, protect.sinks, protect.recent, plan.options.keep_prompt ? plan.prompt : 0, left};
    for (const HeldPage& g : pages.all())
      if (g.full) board.sums[g.number] += own(g);
    return;
  }
  pages.choose(team, left, own);
  pages.retain(team, cache);
}

}  // namespace kvreplay
