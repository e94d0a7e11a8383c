#include "sizing/share_search.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <set>

namespace kvreplay {
namespace {

using Size = std::function<std::optional<double>(int32_t)>;

// Answers the search's questions until it is done. Returns the number of budgets it tried.
size_t tried(ShareSearch& search, const Size& size, double share, int32_t near = 0) {
  std::set<int32_t> all;
  for (auto budgets = search.next(share, near); !budgets.empty(); budgets = search.next(share, near))
    for (const int32_t tokens : budgets) {
      REQUIRE(all.insert(tokens).second);
      search.add(tokens, size(tokens));
    }
  return all.size();
}

std::optional<int32_t> largest(const Size& size, double share, int32_t least, int32_t most) {
  std::optional<int32_t> best;
  for (int32_t tokens = least; tokens <= most; ++tokens)
    if (const auto taken = size(tokens); taken && *taken <= share) best = tokens;
  return best;
}

}  // namespace

TEST_CASE("A search for a share ends at the largest budget that fits") {
  const std::vector<Size> rising = {
      [](int32_t b) { return b / 1000.0; },
      [](int32_t b) { return 0.02 + b / 900.0; },
      [](int32_t b) { return (b / 16) * 16 / 1000.0; },             // in chunks
      [](int32_t b) { return b < 300 ? b / 3000.0 : b / 1000.0; },  // a step
      [](int32_t b) { return 0.3 + b * b / 2e6; },                  // a tail, and more than a line
      [](int32_t b) { return std::min(0.5, b / 1000.0); },          // flat after the prompt
  };
  for (const Size& size : rising)
    for (const double share : {0.001, 0.05, 0.1, 0.29, 0.4, 0.5, 0.999, 1.0}) {
      ShareSearch search(1, 1000, 0);
      CHECK(tried(search, size, share) < 40);
      CHECK(search.answer(share) == largest(size, share, 1, 1000));
      ShareSearch distant_start(1, 1000, 0);
      (void)tried(distant_start, size, share, 137);
      CHECK(distant_start.answer(share) == largest(size, share, 1, 1000));
    }
}

TEST_CASE("A search that starts at another search's result tries two budgets") {
  ShareSearch search(1, 1000, 0);
  CHECK(tried(
            search, [](int32_t b) { return b / 1000.0; }, 0.25, 250) == 2);
  CHECK(search.answer(0.25) == 250);
}

TEST_CASE("Sizes may fall where a block closes, so a search looks two blocks ahead") {
  const Size size = [](int32_t b) { return (b / 32 * 8 + b % 32) / 1000.0; };
  ShareSearch search(1, 400, 32);
  (void)tried(search, size, 0.05);
  const auto found = search.answer(0.05);
  REQUIRE(found);
  CHECK(*size(*found) <= 0.05);
  CHECK(*size(*found + 1) > 0.05);
  CHECK(*found >= 128);  // a search that trusts the first block ends at 50
}

TEST_CASE("A share below every size has no answer and a floor") {
  ShareSearch search(8, 1000, 0);
  (void)tried(
      search, [](int32_t b) { return 0.34 + b / 1e5; }, 0.1);
  CHECK(search.answer(0.1) == std::nullopt);
  CHECK(search.floor() == 0.34 + 8 / 1e5);
}

TEST_CASE("Budgets that cannot be replayed are skipped") {
  const Size size = [](int32_t b) { return b < 37 ? std::nullopt : std::optional(b / 1000.0); };
  for (const double share : {0.02, 0.036, 0.037, 0.05, 0.7}) {
    ShareSearch search(1, 1000, 0);
    (void)tried(search, size, share);
    CHECK(search.answer(share) == largest(size, share, 1, 1000));
    if (share < 0.037) CHECK(search.floor() == 0.037);
  }
  ShareSearch never(1, 1000, 0);
  (void)tried(
      never, [](int32_t) { return std::nullopt; }, 0.5);
  CHECK(never.answer(0.5) == std::nullopt);
  CHECK(never.floor() == std::nullopt);
}

}  // namespace kvreplay
