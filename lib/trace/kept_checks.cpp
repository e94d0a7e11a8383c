#include "trace/kept_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/errors.hpp"

namespace kvreplay {
namespace {

class ListChecks {
 public:
  ListChecks(const KeptLists& lists, const KeptScope& scope, const std::string& where)
      : lists_(lists), scope_(scope), where_(where) {}

  void all() const {
    const int32_t each = count_of_each();
    for (int32_t i = 0; i < lists_.count(); ++i) {
      const int32_t step = i % each, newest = scope_.extent.prompt_tokens - 1 + step;
      check_order(i, newest);
      if (step > 0) check_returns(i, newest);
      check_size(i, newest);
      check_weights(i);
    }
  }

 private:
  using List = std::span<const int32_t>;
  List list(int32_t i) const {
    return List(lists_.tokens)
        .subspan(size_t(lists_.off[size_t(i)]), size_t(lists_.off[size_t(i) + 1] - lists_.off[size_t(i)]));
  }
  // e.g. "list 3 (after token 770)"
  std::string name(int32_t i, int32_t newest) const { return fmt::format("list {} (after token {})", i, newest); }
  [[noreturn]] void fail(const std::string& what) const { throw ConfigError(fmt::format("{}: {}", where_, what)); }

  // Number of lists per cache: one after the prompt, and for streaming methods one after every later step.
  int32_t count_of_each() const {
    const int32_t every = 1 + scope_.extent.tokens - scope_.extent.prompt_tokens, each = lists_.oneshot ? 1 : every;
    const std::string caches =
        scope_.caches > 1 ? fmt::format(", for each of {} query heads (gqa.level: query)", scope_.caches) : "";
    if (lists_.count() != each * scope_.caches)
      fail(fmt::format(
          "kept_off makes {} lists, but a prompt of {} tokens and {} later ones need {}{}{}: write "
          "the list after the prompt alone (oneshot = 1), or that and one after every later token",
          lists_.count(), scope_.extent.prompt_tokens, scope_.extent.tokens - scope_.extent.prompt_tokens,
          lists_.oneshot ? "1" : fmt::format("1 or {}", every), caches, lists_.oneshot ? " (oneshot is 1)" : ""));
    return each;
  }

  void check_order(int32_t i, int32_t newest) const {
    const List now = list(i);
    for (size_t j = 0; j < now.size(); ++j) {
      if (now[j] < 0 || now[j] > newest)
        fail(fmt::format(
            "kept_flat: {} holds {}, but only tokens 0 to {} exist by then{}", name(i, newest), now[j], newest,
            now[j] >= scope_.extent.tokens
                ? fmt::format("; the trace has {}: do the lists belong to another trace?", scope_.extent.tokens)
                : ": a list may not know the future"));
      if (j > 0 && now[j] <= now[j - 1])
        fail(fmt::format("kept_flat: {} holds {} behind {}: write every token once, in ascending order",
                         name(i, newest), now[j], now[j - 1]));
    }
  }

  // First token that a query behind `newest` can see; tokens outside the window need no check.
  int32_t oldest(int32_t newest) const { return scope_.window > 0 ? std::max(0, newest - scope_.window + 1) : 0; }

  // An evicted token must not return. Both lists ascend.
  void check_returns(int32_t i, int32_t newest) const {
    const List before = list(i - 1);
    auto held = before.begin();
    for (const int32_t token : list(i)) {
      held = std::find_if(held, before.end(), [&](int32_t other) { return other >= token; });
      const bool stayed = held != before.end() && *held == token;
      if (!stayed && token != newest && token >= oldest(newest))
        fail(
            fmt::format("kept_flat: {} holds {}, which list {} does not: an evicted token cannot return. "
                        "Lists say what is stored, not what a step reads",
                        name(i, newest), token, i - 1));
    }
  }

  void check_size(int32_t i, int32_t newest) const {
    const int32_t first = oldest(newest);
    const List now = list(i);
    const int64_t held = std::count_if(now.begin(), now.end(), [&](int32_t token) { return token >= first; });
    if (scope_.most > 0 && held > scope_.most)
      fail(
          fmt::format("kept_flat: {} holds {} tokens, more than the budget of {}: raise budget, leave it out, or "
                      "list fewer",
                      name(i, newest), held, scope_.most));
  }

  void check_weights(int32_t i) const {
    if (lists_.num.empty()) return;
    const int64_t begin = lists_.off[size_t(i)], end = lists_.off[size_t(i) + 1];
    double sum = 0;
    for (int64_t at = begin; at < end; ++at) {
      const double num = lists_.num[size_t(at)], den = lists_.den[size_t(at)];
      if (!std::isfinite(num)) fail(fmt::format("num: holds {} at {}: weights are finite", num, at));
      if (!(std::isfinite(den) && den >= 0))
        fail(fmt::format("den: holds {} at {}: weights of the denominator are finite and not negative", den, at));
      sum += den;
    }
    if (begin < end && !(sum > 0))
      fail(fmt::format("den: list {} has weights that sum to 0: leave the list empty, or give some token a weight", i));
  }

  const KeptLists& lists_;
  const KeptScope& scope_;
  const std::string& where_;
};

}  // namespace

void check_kept_lists(const KeptLists& lists, const KeptScope& scope, const std::string& where) {
  ListChecks(lists, scope, where).all();
}

}  // namespace kvreplay
