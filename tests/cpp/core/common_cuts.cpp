#include "core/common_cuts.hpp"

#include <catch2/catch.hpp>

// Two layers of two kv heads. Rows hold tokens 4, 6, 7 and 9; token 9 is protected. Another cut may leave different
// tokens in kv heads 0 and 1.

using namespace kvreplay;

namespace {

using Rows = std::vector<int32_t>;

std::vector<HeadScores> four_heads(double leaves) {
  constexpr double kSafe = INFINITY;
  const std::vector<int32_t> tokens{4, 6, 7, 9};
  return {{0, 0, {3, 1, 2, kSafe}, {leaves}, tokens},
          {0, 1, {0, 0, 8, kSafe}, {leaves}, tokens},
          {1, 0, {0, 4, 1, kSafe}, {leaves}, tokens},
          {1, 1, {1, 0, -9, kSafe}, {leaves}, tokens}};
}

std::vector<Rows> cut(CommonCuts::Level level, const std::vector<HeadScores>& heads) {
  CommonCuts cuts;
  cuts.level = level;
  return cuts.cut_together(heads);
}

}  // namespace

TEST_CASE("kv head h of every layer keeps the rows with the highest mean score over layers; ties go to the lower row") {
  const auto one = cut(CommonCuts::Level::head, four_heads(1)), two = cut(CommonCuts::Level::head, four_heads(2));
  CHECK(one == std::vector<Rows>{{1, 3}, {0, 3}, {1, 3}, {0, 3}});              // sums 3, 5, 3 and 1, 0, -1
  CHECK(two == std::vector<Rows>{{0, 1, 3}, {0, 1, 3}, {0, 1, 3}, {0, 1, 3}});  // two rows have sum 3: row 0 stays
}

TEST_CASE("every head of a model keeps the rows with the highest score in any head") {
  const auto one = cut(CommonCuts::Level::all, four_heads(1)), two = cut(CommonCuts::Level::all, four_heads(2));
  CHECK(one == std::vector<Rows>(4, {2, 3}));  // largest scores 3, 4, 8
  CHECK(two == std::vector<Rows>(4, {1, 2, 3}));
}

TEST_CASE("heads that should hold the same tokens and do not are named") {
  auto heads = four_heads(1);
  heads[2].tokens[0] = 5;
  CHECK_THROWS_WITH(cut(CommonCuts::Level::all, heads), Catch::Contains("layers 0 and 1 hold different tokens"));
  heads[2].tokens[0] = 4, heads[1].tokens[0] = heads[3].tokens[0] = 5;
  CHECK_NOTHROW(cut(CommonCuts::Level::head, heads));
}
