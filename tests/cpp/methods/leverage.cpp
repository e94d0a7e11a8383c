#include "methods/parts/leverage.hpp"

#include "allocation/shared_budgets.hpp"
#include "hand_streams.hpp"
#include "methods/compactor.hpp"

// Leverage, main directions and the methods built on them, by hand: one dimension, no rotation; the value of token i
// is i.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr SerialTeam kTeam;
using Tokens = std::vector<int32_t>;

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const nlohmann::json& params,
               Phase phase = Phase::oneshot) {
  CommonOptions options = default_options(method);
  options.phase = phase;
  const StreamShape shape{s.tokens, s.prompt, 1, 1, s.shape.heads};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}
Tokens kept(const HeadStream<double>& s, const std::string& method, int32_t budget, const nlohmann::json& params) {
  return kept_list(run(s, method, budget, params), 0);
}
std::vector<double> direction(std::vector<double> a, int32_t n) {
  std::vector<double> power(a.size()), x(size_t(n), 7);
  first_eigenvector(kTeam, a, n, power, x);
  return x;
}
// The scores that a head of Compactor reports for tokens with these numbers.
HeadScores head_with_scores(std::vector<double> lev, const std::vector<double>& att) {
  Compactor head;
  head.tokens = head.rows = int32_t(lev.size());
  lev.insert(lev.end(), att.begin(), att.end());
  head.state = lev;
  HeadScores said;
  head.head_scores(said.extras);
  return said;
}

}  // namespace

TEST_CASE("the first eigenvector is found from powers, its largest number positive", "[linear]") {
  const double half = std::sqrt(0.5);
  for (const double x : direction({2, 1, 1, 2}, 2)) CHECK(x == Approx(half).epsilon(1e-12));
  const std::vector<double> skewed = direction({1, -1e-3, -1e-3, 1 + 1e-6}, 2);  // eigenvalues .999 and 1.001
  CHECK(std::fabs(skewed[0] + skewed[1]) < 1e-3);
  CHECK(skewed[1] > 0);
  CHECK(direction({0, 0, 0, 0}, 2) == std::vector<double>{0, 0});
  const std::vector<double> any = direction({3, 0, 0, 3}, 2);  // every direction is an eigenvector
  CHECK(any[0] * any[0] + any[1] * any[1] == Approx(1));
}

TEST_CASE("leverage of (1, 0), (-1, 0), (0, 0) with a ridge of 1e-2 is 1/2.01, 1/2.01, 0", "[leverage]") {
  const double x[3][2] = {{1, 0}, {-1, 0}, {0, 0}};
  std::vector<double> memory(size_t(Leverage::doubles(2))), found(3);
  Carver cut{memory.data()};
  const Leverage points = Leverage::carve(cut, 2);
  points.find(
      kTeam, 3, 1e-2, [](int32_t) { return 1.0; },
      [&](int32_t i) { points.point[0] = x[i][0], points.point[1] = x[i][1]; },
      [&](int32_t i, double leverage) { found[size_t(i)] = leverage; });
  CHECK(found[0] == Approx(1 / 2.01).epsilon(1e-14));
  CHECK(found[1] == found[0]);
  CHECK(found[2] == 0);
}

TEST_CASE("Compactor's leverage keeps keys far from the mean key", "[compactor]") {
  const auto s = stream_of_keys({0, 1, -3, 1, 1, 9}, 5);  // the prompt's keys have mean 0
  const nlohmann::json params{{"sinks", 0}, {"recent", 0}, {"sketch", 0}, {"blend", 1e6}};
  CHECK(kept(s, "compactor", 1, params) == Tokens{2});
  CHECK(kept(s, "compactor", 4, params) == Tokens{1, 2, 3, 4});
}

// With equal keys every token receives attention 1, times its value, averaged with its neighbours.
TEST_CASE("Compactor's attention has no mask and ends with the protected tokens", "[compactor]") {
  const auto s = stream_of_keys({0, 0, 0, 0, 0, 0, 9}, 6);
  nlohmann::json params{{"sinks", 0}, {"recent", 0}, {"sketch", 0}, {"blend", 0}};
  CHECK(kept(s, "compactor", 2, params) == Tokens{3, 4});  // 1/3, 1, 2, 3, 4, 3: the lower index of the tie
  params["recent"] = 1;
  CHECK(kept(s, "compactor", 2, params) == Tokens{3, 5});  // token 4 has lost a neighbour: 7/3
}

// Chunks {0, 1}, {2, 3}, {4}: keys 0 and ln 3 receive 1/2 and 3/2, a single token 1.
TEST_CASE("Compactor's chunks are counted from the first token, and the last one may be shorter", "[compactor]") {
  const auto s = weighted_stream({1, 3, 1, 3, 1, 1}, 5);
  const nlohmann::json params{{"sinks", 0}, {"recent", 0}, {"sketch", 0}, {"blend", 0}, {"chunk", 2}};
  CHECK(kept(s, "compactor", 1, params) == Tokens{3});     // (1 + 4.5 + 4) / 3
  CHECK(kept(s, "compactor", 2, params) == Tokens{3, 4});  // (4.5 + 4) / 3, before (1.5 + 1 + 4.5) / 3
}

TEST_CASE("heads of a layer exchange the sums for the layer's standard deviations", "[compactor]") {
  const HeadScores a = head_with_scores({0, 2}, {1, 1}), b = head_with_scores({4}, {1});
  CHECK(a.extras == std::vector<double>{2, 1, 2, 1, 0});
  Compactor head;
  head.hear({a, b});
  CHECK(head.leverage_spread == Approx(2));  // the standard deviation of 0, 2, 4
  CHECK(head.attention_spread == Compactor::kLeastSpread);
  Compactor other;
  other.hear({b, a});
  CHECK(other.leverage_spread == Approx(head.leverage_spread));
}

// Two heads of a layer; one is replayed.
TEST_CASE("a head gets the scores of the whole layer before its replay, whatever the budget and threads",
          "[compactor]") {
  const StreamShape shape;
  const auto load = [&](const HeadRequest& request) {
    return make_stream<double>(shape, 1, request.place.kv_head == 0 ? Look::gaussian : Look::clustered);
  };
  const HeadSource<double> source{load, [](size_t, const std::string&) { return std::vector<Place>{{0, "", 0, 2}}; }};
  const nlohmann::json params{{"sketch", 0}};
  const auto heard = [&](int jobs) {
    std::vector<Cell> cells;
    for (const int32_t budget : {16, 40, shape.prompt})
      cells.push_back(make_cell("compactor", budget, shape, params, default_options("compactor")));
    const std::string before = cells[0].variant->params;
    SharingOptions options;
    options.jobs = jobs;
    CHECK(share_budgets<double>(cells, options, source).empty());
    CHECK(cells[0].variant->params == before);
    std::vector<Compactor> policies;
    for (const Cell& cell : cells) {
      CHECK_FALSE(cell.budget.share);
      policies.push_back(*reinterpret_cast<const Compactor*>(cell.variant->values.policy()));
    }
    return policies;
  };
  const std::vector<Compactor> one = heard(1), two = heard(2);
  CHECK(one[0].leverage_spread != 1);
  for (const Compactor& other : {one[1], two[0], two[1]}) {
    CHECK(other.leverage_spread == one[0].leverage_spread);
    CHECK(other.attention_spread == one[0].attention_spread);
  }
  CHECK(one[2].leverage_spread == 1);  // the prompt is not cut: scores are not collected
}

TEST_CASE("a sketch has no more columns than a key has channels", "[compactor]") {
  MethodContext context;
  context.budget.tokens = 20, context.prompt_tokens = 40, context.shape = {.dim = 8, .v_dim = 8, .heads = 1};
  CHECK(resolved_params("compactor", {}, context)["sketch"] == 8);
  context.shape.dim = 64;
  CHECK(resolved_params("compactor", {}, context)["sketch"] == 48);
  CHECK_THROWS_AS(resolved_params("compactor", {{"sketch", 65}}, context), ParameterError);
}

// All weights are 1 except for the key opposite to the query; leverage then follows the square of the value.
TEST_CASE("CapKV keeps outlying values among attended keys", "[capkv]") {
  const auto s = stream_of_keys({1, 1, 1, -1, 1, 1}, 5);
  CHECK(kept(s, "capkv", 2, {{"sinks", 0}}) == Tokens{2, 4});
  CHECK(kept(s, "capkv", 2, {{"sinks", 1}}) == Tokens{0, 4});
}

TEST_CASE("CapKV's variant kvpress compares directions, paper logits", "[capkv]") {
  const auto s = stream_of_keys({1, 4, 1, 1, 1, 1}, 5);
  CHECK(kept(s, "capkv", 2, {{"sinks", 0}}) == Tokens{3, 4});
  CHECK(kept(s, "capkv", 2, {{"sinks", 0}, {"variant", "paper"}}) == Tokens{1, 4});  // 1 against 16 e^-3 and 9 e^-3
}

TEST_CASE("Q-Filters keep keys on the side of most of the prompt's queries", "[qfilters]") {
  auto s = stream_of_keys({3, 1, 5, 2, 4, 0, 9, -9}, 6);
  const nlohmann::json params{{"recent", 1}};
  CHECK(kept(s, "qfilters", 3, params) == Tokens{2, 4, 5});
  s.queries[0] = -100;  // the longest query, but only one of six
  CHECK(kept(s, "qfilters", 3, params) == Tokens{2, 4, 5});
  for (const size_t row : {1, 2}) s.queries[row] = -1;  // half of the queries are no majority
  CHECK(kept(s, "qfilters", 3, params) == Tokens{1, 3, 5});
}

TEST_CASE("Q-Filters score a token when it arrives", "[qfilters]") {
  const auto s = stream_of_keys({3, 1, 5, 2, 4, 0, 9, -9, 7}, 6);
  const CellResult r = run(s, "qfilters", 3, {{"recent", 1}}, Phase::stream);
  CHECK(kept_list(r, 1) == Tokens{2, 4, 6});
  CHECK(kept_list(r, 2) == Tokens{2, 6, 7});
  CHECK(kept_list(r, 3) == Tokens{2, 6, 8});
}
