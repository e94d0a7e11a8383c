#pragma once
#include "replay/policy_traits.hpp"

namespace kvreplay {

// How who has nothing but the lists finds out what a step attended to (docs/formats.md, kept.h5).
struct ListReading {
  bool attends = false;  // to the list of its own step, rather than to the one before it and its token
  bool partial = false;  // the lists say too little
};

// The token of a step joins with weight 1, unless the policy's append() gives it another.
template <class P>
bool joins_plainly(const Layout& own) {
  return !Appends<P, float> || !own.weights;
}
// What stands when a step attends still stands when it ends: nothing leaves afterwards, no weight changes.
template <class P>
bool ends_as_attended(const Layout& own, const CommonOptions& options) {
  if (options.phase == Phase::oneshot || (Observes<P, float> && own.weights)) return false;
  return options.order == Order::evict_then_attend || (Appends<P, float> && !Evicts<P, float>);
}

// What follows from a policy's text, the memory that it asked for, and its axes. Rows that it writes, or
// weighs without reading them, turn up during the replay.
template <class P>
ListReading reading_of(const P& policy, const Layout& own, const CommonOptions& options) {
  ListReading r;
  r.attends = !traits::chooses(policy) && ends_as_attended<P>(own, options);
  const bool weighs_chosen = traits::chooses(policy) && own.weights;
  const bool joins_unknown = !traits::chooses(policy) && !r.attends && !joins_plainly<P>(own);
  // Rows of one token that were coded in different blocks are not alike.
  const bool unlike_rows = own.extra_rows > 0 && options.row_format.by_block();
  r.partial = traits::changes_logits(policy) || weighs_chosen || joins_unknown || unlike_rows;
  return r;
}

}  // namespace kvreplay
