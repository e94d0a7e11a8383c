#include <algorithm>

#include "hand_streams.hpp"

// InertiaKV and DMS: numbers small enough to check by hand.

using namespace kvreplay;
using namespace kvreplay::test;
using nlohmann::json;

namespace {

using Tokens = std::vector<int32_t>;

std::vector<Tokens> kept(const HeadStream<double>& s, const std::string& method, std::optional<int32_t> budget,
                         const json& params) {
  const StreamShape shape{s.tokens, s.prompt, 1, 1, 1};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, default_options(method, params))}).only();
  REQUIRE(r.ok);
  std::vector<Tokens> all;
  for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) all.push_back(kept_list(r, i));
  return all;
}

// The prompt's last row gives (.8, .2). Row 2 gives (1, 4, 2) / 7 = (.143, .571, .286).
HeadStream<double> turning() {
  HeadStream<double> s = weighted_stream({4, 1, 2}, 2);
  s.queries.back() = -1;
  return s;
}

}  // namespace

TEST_CASE("InertiaKV evicts by a moving average, and a new token starts at its own probability", "[stream]") {
  const auto last = [](double alpha) { return kept(turning(), "inertiakv", 2, {{"alpha", alpha}}).at(1); };
  CHECK(last(.8) == Tokens{0, 2});  // (.669, .274, .286)
  CHECK(last(.5) == Tokens{0, 1});  // (.471, .386, .286)
  CHECK(last(0) == Tokens{1, 2});
  CHECK(kept(turning(), "tova", 2, json::object()).at(1) == Tokens{1, 2});
}

// After row 4: (.2, .3, .4) of tokens 1 to 3, and .1 of token 4.
TEST_CASE("InertiaKV keeps tokens without a value while one with a value is held", "[stream]") {
  const auto s = weighted_stream({1, 2, 3, 4, 1, 1, 1, 1, 1}, 4);
  CHECK(kept(s, "inertiakv", 3, {{"refresh", 0}}) ==
        std::vector<Tokens>{{1, 2, 3}, {1, 2, 3}, {2, 3, 5}, {3, 5, 6}, {5, 6, 7}, {6, 7, 8}});
  // Row 6 is computed: tokens 5 and 6 both start at 1/9.
  CHECK(kept(s, "inertiakv", 3, {{"refresh", 2}}).at(3) == Tokens{2, 3, 5});
}

TEST_CASE("InertiaKV refuses an average that no row enters", "[stream]") {
  CHECK_THROWS_AS(make_cell("inertiakv", 9, {}, {{"alpha", 1.0}}), ParameterError);
}

TEST_CASE("DMS judges a token once, when it leaves the window", "[stream]") {
  const auto s = stream_of_keys({1, 3, 2, 5, 1}, 4);
  const auto read = [&](const json& params) { return kept(s, "dms", std::nullopt, params); };
  CHECK(read({{"threshold", -2.5}, {"window", 1}}) == std::vector<Tokens>{{0, 2, 3}, {0, 2, 4}});
  CHECK(read({{"threshold", -2.5}, {"window", 2}}) == std::vector<Tokens>{{0, 2, 3}, {0, 2, 3, 4}});
  // Values are the tokens' indices: 0, 1/3, 1, 3/5.
  CHECK(read({{"scorer", "vk_ratio"}, {"threshold", .5}, {"window", 1}}) == std::vector<Tokens>{{2, 3}, {2, 3, 4}});
  // All queries are 1, and so is their direction.
  CHECK(read({{"scorer", "qfilters"}, {"threshold", 2.5}, {"window", 1}}) == std::vector<Tokens>{{1, 3}, {1, 3, 4}});
  CHECK(read({{"threshold", -2.5}, {"window", 1}, {"decode", false}}).at(0) == Tokens{0, 2, 3});
}

TEST_CASE("DMS has no threshold that fits every model", "[stream]") {
  CHECK_THROWS_AS(make_cell("dms", std::nullopt, {}), ParameterError);
  CHECK_THROWS_AS(make_cell("dms", std::nullopt, {}, {{"threshold", -1.0}, {"decode", false}}), ParameterError);
}
