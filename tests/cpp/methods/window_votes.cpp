#include <algorithm>
#include <cmath>

#include "hand_streams.hpp"

// SnapKV with another window, by hand: one dimension and keys ln w, so a query of 1 attends in proportion to w and a
// query of -1 in proportion to 1/w.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;
using Json = nlohmann::json;

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const Json& params) {
  CommonOptions options = default_options(method, params);
  options.positions = Positions::original;  // these streams have no rotary embedding
  const CellResult r = replay(s, {make_cell(method, budget, {s.tokens, s.prompt, 1, 1, 1}, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}
Tokens kept(const HeadStream<double>& s, const std::string& method, int32_t budget, const Json& params) {
  return kept_list(run(s, method, budget, params), 0);
}
MethodContext with_question(int32_t tokens) {
  MethodContext context;
  context.tokens = 90, context.prompt_tokens = 60, context.question_tokens = tokens;
  context.budget = {40, 40};
  return context;
}

}  // namespace

// Rows 2 and 3 see 3 and 4 keys: x = (1/7, 4/7) and (4/9, 1/9). Times the number of keys they add up to (2.21, 2.16),
// unscaled to (.59, .68).
TEST_CASE("FINCH multiplies a row's probabilities by the keys that it sees", "[hand]") {
  auto s = weighted_stream({2, .5, 1, 1, 1}, 4);
  s.queries[2] = -1;
  CHECK(kept(s, "snapkv", 3, {{"window", 2}, {"kernel", 1}}) == Tokens{1, 2, 3});
  CHECK(kept(s, "finch", 3, {{"window", 2}}) == Tokens{0, 2, 3});
}

TEST_CASE("FINCH's chunks keep equal shares, and the question stays", "[hand]") {
  const auto s = weighted_stream({9, 8, 7, 6, 1, 1}, 5);
  CHECK(kept(s, "finch", 3, {{"window", 1}}) == Tokens{0, 1, 4});
  CHECK(kept(s, "finch", 3, {{"window", 1}, {"chunks", 2}}) == Tokens{0, 2, 4});
  CHECK(kept(s, "finch", 4, {{"window", 1}, {"chunks", 2}}) == Tokens{0, 2, 3, 4});
  CHECK(kept(s, "finch", 4, {{"window", 1}, {"chunks", 9}}).size() == 4);
  CHECK(kept(s, "finch", 2, {{"window", 3}, {"chunks", 2}}) == Tokens{3, 4});
}

TEST_CASE("FINCH's window is the question if the trace marks it", "[hand]") {
  const auto window = [](const Json& params, int32_t question) {
    return resolved_params("finch", params, with_question(question))["window"].get<int32_t>();
  };
  CHECK(window({{"window", "question"}}, 7) == 7);
  CHECK(window(Json::object(), 7) == 7);
  CHECK(window({{"window", 5}}, 7) == 5);
  CHECK(window(Json::object(), 0) == 32);
  CHECK_THROWS_WITH(window({{"window", "question"}}, 0), Catch::Contains("question_from"));
}

TEST_CASE("LAQ keeps the tokens that the next rows attend to, and is not measured on these rows", "[hand]") {
  auto s = weighted_stream({4, 3, 2, 1, 1, 1, 1}, 4);
  s.queries[4] = s.queries[5] = -1;
  const Json two{{"lookahead", 2}, {"kernel", 1}};
  const CellResult r = run(s, "laq", 2, two);
  CHECK(kept_list(r, 0) == Tokens{2, 3});
  CHECK(r.rows == Tokens{6});
  CHECK(r.n_queries == 1);
  CHECK(r.measures.extras.at("sees_future") == 1);
  s.queries[4] = 1, s.queries[5] = 1, s.queries[6] = -1;  // a row that it does not see
  CHECK(kept(s, "laq", 2, two) == Tokens{0, 1});
}

// x of row 4 over the prompt is 4, 3, 2, 1 of 11, and the newest key has the rest; row 5's is of 12.
TEST_CASE("LAQ's votes are probabilities over the prompt and the keys since then", "[hand]") {
  auto s = weighted_stream({4, 3, 2, 1, 1, 1, 1}, 4);
  s.keys[4] = s.keys[5] = 5;  // takes nearly all of row 5 and of row 4
  s.queries[5] = -1;          // but row 5 turns away from it
  CHECK(kept(s, "laq", 2, {{"lookahead", 2}, {"kernel", 1}}) == Tokens{2, 3});
}

// The prompt is 4, 3, 2, 1. A query of 1 votes (.4, .3, .2, .1), a query of -1 (.12, .16, .24, .48), both together
// (.52, .46, .44, .58).
TEST_CASE("LAQ's generated rows vote only over the prompt's tokens, and every row is measured", "[hand]") {
  auto s = weighted_stream({4, 3, 2, 1, 1, 1, 1}, 4);
  s.keys[4] = s.keys[5] = 5;  // later keys take no part
  s.queries[4] = s.queries[5] = -1;
  s.lookahead_queries = {1, -1}, s.lookahead_rows = 2;
  const auto rows = [](int32_t lookahead) {
    return Json{{"generated", true}, {"lookahead", lookahead}, {"kernel", 1}};
  };
  CHECK(kept(s, "laq", 2, rows(1)) == Tokens{0, 1});
  const CellResult r = run(s, "laq", 2, rows(2));
  CHECK(kept_list(r, 0) == Tokens{0, 3});
  CHECK(r.rows == Tokens{4, 5, 6});
  CHECK(r.measures.extras.count("sees_future") == 0);
  RunOptions audit;
  audit.audit = true;
  CommonOptions options = default_options("laq", rows(2));
  options.positions = Positions::original;
  const Cell cell = make_cell("laq", 2, {s.tokens, s.prompt, 1, 1, 1}, rows(2), options);
  CHECK(kept_list(replay(s, {cell}, audit).only(), 0) == Tokens{0, 3});
  // A sink of weight 10: (.2, .15, .1, .05) and (.021, .028, .041, .083).
  s.sink_logits = {std::log(10.0)};
  CHECK(kept(s, "laq", 2, rows(2)) == Tokens{0, 1});
}

// The second head's row votes (.04, .08, .18, .70) with a query of -2, (.64, .27, .08, .01) with a query of 3.
TEST_CASE("LAQ adds the votes of a group's generated rows, each head with its own queries", "[hand]") {
  auto s = weighted_stream({4, 3, 2, 1, 1, 1}, 4, 2);
  s.lookahead_queries = {1, -2}, s.lookahead_rows = 1;
  const Json one{{"generated", true}, {"lookahead", 1}, {"kernel", 1}};
  CHECK(kept(s, "laq", 2, one) == Tokens{0, 3});
  s.lookahead_queries = {1, 3};
  CHECK(kept(s, "laq", 2, one) == Tokens{0, 1});
  s.rule.scale = -1;
  CHECK(kept(s, "laq", 2, one) == Tokens{2, 3});
}

TEST_CASE("LAQ with generated rows needs no row after the prompt", "[hand]") {
  MethodContext context = with_question(0);
  context.tokens = context.prompt_tokens + 1;
  CHECK(resolved_params("laq", {{"generated", true}}, context)["lookahead"] == 8);
}

TEST_CASE("LAQ refuses a trace without a row to measure", "[hand]") {
  MethodContext context = with_question(0);
  context.tokens = context.prompt_tokens + 9;
  CHECK(resolved_params("laq", Json::object(), context)["lookahead"] == 8);
  context.tokens -= 1;
  CHECK_THROWS_WITH(resolved_params("laq", Json::object(), context), Catch::Contains("at least 9"));
}
