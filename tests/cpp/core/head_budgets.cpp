#include "core/share.hpp"

#include <catch2/catch.hpp>

// Budgets of heads from their scores, by hand.

using namespace kvreplay;

namespace {

using Tokens = std::vector<int32_t>;

}  // namespace

TEST_CASE("tokens left by rounding down go to the largest remainders, ties to the lower head", "[alloc]") {
  CHECK(largest_remainder({1.5, 1.5, 2.0}, 5, 9) == Tokens{2, 1, 2});
  CHECK(largest_remainder({1.2, 1.3, 2.5}, 5, 9) == Tokens{1, 1, 3});
  // 100/3 and 1/3 have equal remainders, though not in the last bits.
  CHECK(largest_remainder({1.0 / 3, 100.0 / 3, 7.0 / 3}, 36, 99) == Tokens{1, 33, 2});
  // A share that is an integer up to rounding errors counts as an integer.
  CHECK(largest_remainder({3 - 1e-12, 2.5, 2.5}, 8, 9) == Tokens{3, 3, 2});
}

TEST_CASE("no head gets more than its maximum", "[alloc]") {
  CHECK(largest_remainder({4.0, 1.0, 1.0}, 8, 4) == Tokens{4, 2, 2});
  CHECK(largest_remainder({4.0, 4.0}, 9, 4) == Tokens{4, 4});
}

TEST_CASE("heads that do not stream share the tokens that streaming heads leave", "[alloc]") {
  CHECK(duo_tokens({false, true, true, false}, 10, 7, 99) == Tokens{13, 7, 7, 13});
  CHECK(duo_tokens({false, true, false}, 10, 7, 99) == Tokens{12, 7, 11});
  CHECK(duo_tokens({false, true, false}, 10, 7, 11) == Tokens{11, 7, 11});
  CHECK(duo_tokens({true, true}, 10, 7, 99) == Tokens{7, 7});
  CHECK(duo_tokens({true, false}, 10, 19, 99) == Tokens{19, 1});
  CHECK(duo_tokens({true, false}, 10, 20, 99).empty());
}

TEST_CASE("whole heads are kept in the order of their scores until the budget is spent", "[alloc]") {
  // 4 heads at 10 tokens: the ends take 4 per head, 24 tokens remain, and a whole head takes 16 more.
  CHECK(whole_heads({0.1, 0.9, 0.5, 0.3}, 10, 4, 20) == Tokens{4, 20, 4, 4});
  CHECK(whole_heads({0.1, 0.9, 0.5, 0.3}, 12, 4, 20) == Tokens{4, 20, 20, 4});
  CHECK(whole_heads({0.5, 0.5, 0.5, 0.5}, 12, 4, 20) == Tokens{20, 20, 4, 4});
  CHECK(whole_heads({0.1, 0.9}, 4, 4, 20) == Tokens{4, 4});
  CHECK(whole_heads({0.1, 0.9}, 20, 4, 20) == Tokens{20, 20});
}

TEST_CASE("HeadKV adds a share of the pool to an equal part", "[alloc]") {
  // b = 60: 50 per head form a pool of 100; each head gets 10, plus 75 or 25.
  CHECK(headkv_tokens({3, 1}, 68, 8, 1.2, 1) == Tokens{93, 43});
  CHECK(headkv_tokens({3, 1}, 68, 8, 1.2, 2) == Tokens{108, 28});
  // 7.5 is rounded to even, which is up: 31 tokens instead of 30.
  CHECK(headkv_tokens({1, 1, 2}, 10, 0, 1, 1) == Tokens{8, 8, 15});
}
