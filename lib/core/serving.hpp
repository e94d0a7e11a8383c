#pragma once
#include <cstdint>

#include "core/platform.hpp"

namespace kvreplay {

// How serving engines evict: options that combine with every method whose cut keeps the protected tokens and the best
// others by one score per token (MethodInfo::selects).

// The cache in pages of consecutive tokens, as paged engines store it.
struct Pages {
  enum class Evict { token, page };     // token: a page is freed once it is empty; page: only whole pages leave
  enum class Score { mean, sum, max };  // evict page: a page's score, from those of its tokens
  enum class Heads { own, tied };       // own: each kv head has a page table; tied: one for all kv heads of the layer
  int32_t size = 0;                     // tokens a page; 0: no pages
  Evict evict = Evict::token;
  Score score = Score::mean;
  Heads heads = Heads::own;
  bool compact = false;    // evict token: the tokens that stay move to the front of the table at each cut
  bool in_budget = false;  // evict page: the page that is being filled counts inside the budget

  KVR_FN bool any() const { return size > 0; }
  KVR_FN bool whole() const { return any() && evict == Evict::page; }  // pages leave as a whole
  KVR_FN bool tied() const { return any() && heads == Heads::tied; }
  KVR_FN bool share_a_table() const { return tied() && !whole(); }  // each kv head decides alone
  bool operator==(const Pages&) const = default;
};

// When a method cuts, and which tokens compete.
struct Serving {
  int32_t cut_every = 0;       // decode steps between two cuts; 0: as the method does
  bool cut_in_budget = false;  // the tokens that wait for a cut count inside the budget
  bool keep_prompt = false;    // the prompt stays, and the budget counts later tokens
  bool recut = false;          // with turns: a cut follows each input, and no other step
  int32_t prefill_chunk = 0;   // prompt tokens that arrive together, each time followed by a cut; 0: all at once
  Pages pages;
  bool cuts_again() const { return cut_every > 0 || recut; }
  bool operator==(const Serving&) const = default;
};

// A budget that grows with the text: max(floor, ceil(ratio * tokens seen)).
struct Growth {
  double ratio = 0;  // 0: the budget is fixed
  int32_t floor = 1;
  KVR_FN bool any() const { return ratio > 0; }
  bool operator==(const Growth&) const = default;
};

}  // namespace kvreplay
