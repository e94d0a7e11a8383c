#include <algorithm>
#include <cmath>

#include "allocation/shared_budgets.hpp"
#include "allocation/zigzag.hpp"
#include "config/stub.hpp"
#include "hand_streams.hpp"
#include "methods/defensivekv.hpp"
#include "methods/kvcompose.hpp"
#include "methods/lava.hpp"

// Cuts of the prompt by hand: one dimension and keys ln w, so a query of 1 attends in proportion to w; the value of
// token i is i.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;
using Json = nlohmann::json;
using Streams = std::function<HeadStream<double>(int32_t kv_head)>;

StreamShape shape_of(const HeadStream<double>& s) {
  return {s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
}
// Replays head 0 of a layer after its heads have shared their budget or cut together.
CellResult shared(const Streams& head, int32_t heads, const std::string& method, std::optional<int32_t> budget,
                  const Json& params, Phase phase = Phase::oneshot) {
  const HeadSource<double> source{[&](const HeadRequest& request) { return head(request.place.kv_head); },
                                  [&](size_t, const std::string&) {
                                    return std::vector<Place>{{0, "", 0, heads}};
                                  }};
  CommonOptions options = default_options(method);
  options.phase = phase;
  const HeadStream<double> own = head(0);
  std::vector<Cell> cells{make_cell(method, budget, shape_of(own), params, options)};
  REQUIRE(share_budgets<double>(cells, {}, source).empty());
  const CellResult r = replay(own, cells).only();
  REQUIRE(r.ok);
  return r;
}
Tokens kept(const HeadStream<double>& s, const std::string& method, int32_t budget, const Json& params) {
  const CellResult r = replay(s, {make_cell(method, budget, shape_of(s), params, default_options(method))}).only();
  REQUIRE(r.ok);
  return kept_list(r, 0);
}
Tokens kept_together(const Streams& head, const std::string& method, int32_t budget, const Json& params) {
  return kept_list(shared(head, 1, method, budget, params), 0);
}
HeadScores said(int32_t layer, int32_t kv_head, std::vector<double> scores, std::vector<double> extras = {}) {
  HeadScores head{layer, kv_head, std::move(scores), std::move(extras)};
  for (size_t i = 0; i < head.scores.size(); ++i) head.tokens.push_back(int32_t(i));
  return head;
}

}  // namespace

TEST_CASE("leverage keeps keys that stand out, ties by index", "[leverage]") {
  auto s = make_stream<double>({.tokens = 4, .prompt = 3, .dim = 2, .v_dim = 1, .heads = 1});
  s.keys = {0, 0, 1, 0, -1, 0, 9, 9};  // leverage 0, 1/2.01, 1/2.01
  CHECK(kept(s, "leverage", 1, {{"sketch", 0}}) == Tokens{1});
  CHECK(kept(s, "leverage", 2, {{"sketch", 0}}) == Tokens{1, 2});
  CHECK(kept(s, "leverage", 2, {{"sketch", 0}, {"sinks", 1}}) == Tokens{0, 1});
  CHECK(kept(s, "leverage", 2, {{"sketch", 0}, {"recent", 1}}) == Tokens{1, 2});
}

TEST_CASE("leverage counts a key by its distance to the mean, not by its length", "[leverage]") {
  const auto s = stream_of_keys({9, 9, 4, 9, 9, 0}, 5);
  CHECK(kept(s, "leverage", 1, {{"sketch", 0}}) == Tokens{2});
}

// --- lava ---------------------------------------------------------------------------------------------------------

TEST_CASE("LAVa's layers share by the entropy of their scores: of 20 tokens 13 and 6", "[lava]") {
  const double even = Lava::entropy({said(0, 0, {.5, .5})}), uneven = Lava::entropy({said(1, 0, {.9, .1})});
  CHECK(even == Approx(1));
  CHECK(uneven == Approx(.469).epsilon(1e-3));
  CHECK(Lava::entropy({said(0, 0, {.45, .05}), said(0, 1, {.45, .05})}) == Approx((uneven + 1) / 2));
  CHECK(Lava::entropy({said(0, 0, {0, 0})}) == 0);
  Lava lava;
  lava.window = 1;
  CHECK(lava.base({even, uneven}, 0, 11) == 13);
  CHECK(lava.base({even, uneven}, 1, 11) == 6);
  CHECK(lava.base({0, 0}, 1, 11) == 10);
}

TEST_CASE("LAVa's heads share by their largest scores, and a floor is equal", "[lava]") {
  Lava lava;
  lava.window = 1;
  MethodContext context;
  context.budget.tokens = 3, context.prompt_tokens = 5;  // base 2 per head
  const std::vector<HeadScores> heads{said(0, 0, {9, 8, 7, 6, INFINITY}), said(0, 1, {1, 2, 3, 4, INFINITY})};
  const auto tokens = [&](double floor) {
    lava.floor = floor;
    return lava.share(context, heads);
  };
  CHECK(tokens(0) == Tokens{5, 1});   // all four of the largest scores are head 0's
  CHECK(tokens(.5) == Tokens{4, 2});  // 4 * .5 + 1 and 1, and the window
  CHECK(tokens(1) == Tokens{3, 3});
}

// Head 0 votes 6, 1, 4, 1 of 13 and head 1 1, 1, 3, 1 of 9; the sum of token 2 would be the larger one.
TEST_CASE("LAVa takes the largest vote of the group, not their sum", "[lava]") {
  auto s = make_stream<double>({.tokens = 6, .prompt = 5, .dim = 2, .v_dim = 1, .heads = 2});
  s.rule.scale = 1;
  const double w[2][5] = {{6, 1, 4, 1, 1}, {1, 1, 3, 1, 3}};
  std::fill(s.queries.begin(), s.queries.end(), 0.0);
  for (size_t h = 0; h < 2; ++h) {
    for (size_t i = 0; i < 5; ++i) s.keys[i * 2 + h] = std::log(w[h][i]);
    s.queries[(h * 6 + 4) * 2 + h] = 1;
  }
  const Json params{{"window", 1}, {"kernel", 1}}, wide{{"window", 1}, {"kernel", 3}};
  CHECK(kept(s, "lava", 2, params) == Tokens{0, 4});
  CHECK(kept(s, "lava", 3, params) == Tokens{0, 2, 4});
  CHECK(kept(s, "lava", 3, wide) == Tokens{0, 1, 4});  // each head's votes are pooled: 6/13 twice
}

// --- simlayerkv ---------------------------------------------------------------------------------------------------

// The last row of the prompt gives .5, .1, .1, .2 and .1 to itself: sinks and recents hold .7.
TEST_CASE("SimLayerKV's lazy layer holds sinks and recents at every step", "[simlayerkv]") {
  const Streams head = [](int32_t) { return weighted_stream({5, 1, 1, 2, 1, 1, 1}, 5); };
  const auto run = [&](double threshold, Phase phase) {
    return shared(head, 1, "simlayerkv", std::nullopt, {{"sinks", 1}, {"recent", 1}, {"threshold", threshold}}, phase);
  };
  const CellResult lazy = run(.699, Phase::stream);
  CHECK(kept_list(lazy, 0) == Tokens{0, 4});
  CHECK(kept_list(lazy, 1) == Tokens{0, 5});
  CHECK(lazy.measures.extras.at("lazy") == 1);
  const CellResult once = run(.699, Phase::oneshot);
  CHECK(kept_list(once, 0) == Tokens{0, 4});
  CHECK(*once.measures["n_evictions"] == 3);
  const CellResult busy = run(.701, Phase::stream);
  CHECK(kept_list(busy, 1) == Tokens{0, 1, 2, 3, 4, 5});
  CHECK(busy.measures.extras.at("lazy") == 0);
}

TEST_CASE("SimLayerKV's layer is judged by the mean of its heads, and only if its prompt is long enough",
          "[simlayerkv]") {
  const Streams heads = [](int32_t h) { return weighted_stream({5, 1, 1, h == 0 ? 2.0 : 12.0, 1, 1, 1}, 5); };
  const auto lazy = [&](double threshold, int32_t recent) {
    const Json params{{"sinks", 1}, {"recent", recent}, {"threshold", threshold}};
    return shared(heads, 2, "simlayerkv", std::nullopt, params).measures.extras.at("lazy");
  };
  CHECK(lazy(.774, 1) == 1);  // (.7 + 17/20) / 2
  CHECK(lazy(.776, 1) == 0);
  CHECK(lazy(.1, 2) == 1);  // 5 > 1 + 2 + 1
  CHECK(lazy(.1, 3) == 0);
}

// --- defensivekv --------------------------------------------------------------------------------------------------

// The window's row gives .6, .1, .12 and .18 to itself: the mean .273 is the floor.
TEST_CASE("DefensiveKV's floor makes ties of weak votes, and secures tokens by mass", "[defensivekv]") {
  const Streams head = [](int32_t) {
    auto s = weighted_stream({6, 1, 1.2, 1.8, 1}, 4);
    s.output_norms_l1.assign(4, 1), s.output_norms_l2.assign(4, 1);
    return s;
  };
  Json params{{"window", 1}, {"kernel", 1}, {"mass", 0}};
  CHECK(kept_together(head, "defensivekv", 3, params) == Tokens{0, 1, 3});
  params["mass"] = 1;  // 1 - .12 = .88: tokens 0 and 2 hold .878
  CHECK(kept_together(head, "defensivekv", 3, params) == Tokens{0, 2, 3});
  params["mass"] = .95;  // .95 - .12 = .83: the second token reaches it
  CHECK(kept_together(head, "defensivekv", 3, params) == Tokens{0, 1, 3});
  params["mass"] = 1;
  CHECK(kept_together(head, "defensivekv", 2, params) == Tokens{0, 3});  // at most B - w are secured
}

// Rows 3 and 4 are the window. Sums over the prefix are 8/10 and 4/5; pooled by 3, row 3 has (7, 8, 2)/30.
TEST_CASE("DefensiveKV pools each row, scales it back to its sum and takes the largest", "[defensivekv]") {
  DefensiveKv m;
  m.window = 1, m.kernel = 3, m.prompt = 4, m.budget = 3;
  std::vector<double> state(16, 0);
  m.state = state;
  const double p[2][4] = {{.6, .1, .1, .2}, {.1, .1, .2, .6}};
  m.observe_prompt(SerialTeam{}, 3, {p[0], 2, 4});
  const double first = .8 / (.7 + .8 + .2), second = .4 / (.2 + .4 + .3);
  CHECK(state[0] == Approx(.7 * first));
  CHECK(state[1] == Approx(.8 * first));
  CHECK(state[2] == Approx(.3 * second));
  CHECK(state[4] == Approx(.35));
  CHECK(m.bias == Approx(.15));  // token 2
}

TEST_CASE("DefensiveKV divides norms by their sum over heads: (3, 1), (1, 1) make (.75, .5), (.25, .5)",
          "[defensivekv]") {
  DefensiveKv m;
  m.window = 1, m.mass = 0;
  const std::vector<double> rest{.5, .5, 0};  // a
  const auto head = [&](int32_t layer, int32_t h, std::vector<double> norms) {
    std::vector<double> extras{2, 0};
    extras.insert(extras.end(), rest.begin(), rest.end());
    extras.insert(extras.end(), norms.begin(), norms.end());
    return said(layer, h, {.6, .6, 0}, extras);
  };
  // .45, .3 and .15, .3 beside the windows: the tie goes to head 0.
  const auto rows = m.cut_together({head(0, 0, {3, 1, 1}), head(0, 1, {1, 1, 1})});
  CHECK(rows[0] == Tokens{0, 1, 2});
  CHECK(rows[1] == Tokens{2});
}

TEST_CASE("DefensiveKV's level model keeps every window", "[defensivekv]") {
  DefensiveKv m;
  m.window = 1, m.mass = 0, m.level = DefensiveKv::Level::model;
  const auto head = [](int32_t layer, std::vector<double> scores) {
    return said(layer, 0, std::move(scores), {2, 0, .5, .5, 0, 1, 1, 1});
  };
  const auto rows = m.cut_together({head(0, {.1, .2, 0}), head(1, {.9, .8, 0})});
  CHECK(rows[0] == Tokens{2});
  CHECK(rows[1] == Tokens{0, 1, 2});
}

// --- kvcompose ----------------------------------------------------------------------------------------------------

TEST_CASE("KVCompose adds the mean of the heads before each keeps its best", "[kvcompose]") {
  KvCompose m;
  const std::vector<HeadScores> heads{said(0, 0, {.9, .1, .5}, {2}), said(0, 1, {.2, .8, .3}, {2})};
  CHECK(m.cut_together(heads) == std::vector<Tokens>{{0, 2}, {0, 1}});  // 1.45, .55, .9 and .75, 1.25, .7
  m.structured = false;
  CHECK(m.cut_together(heads) == std::vector<Tokens>{{0, 2}, {0, 1}});
  m.mean_heads = false;
  CHECK(m.cut_together(heads) == std::vector<Tokens>{{0, 2}, {1, 2}});
  const std::vector<HeadScores> uneven{said(0, 0, {.9, .6, .5}, {2}), said(0, 1, {.2, .8, .3}, {2})};
  CHECK(m.cut_together(uneven) == std::vector<Tokens>{{0, 1, 2}, {1}});
}

TEST_CASE("heads that cut together keep sinks and recents", "[kvcompose]") {
  KvCompose m;
  m.structured = false, m.sinks = 1, m.recent = 1;
  const std::vector<HeadScores> heads{said(0, 0, {0, .9, .8, 0}, {3}), said(0, 1, {0, .2, .1, 0}, {3})};
  CHECK(m.cut_together(heads) == std::vector<Tokens>{{0, 1, 2, 3}, {0, 3}});
  m.structured = true;
  CHECK(m.cut_together(heads) == std::vector<Tokens>{{0, 1, 3}, {0, 1, 3}});
}

TEST_CASE("KVCompose's first layer gets the largest composites of all layers", "[kvcompose]") {
  KvCompose m;
  const auto rows = [&](std::vector<double> first, std::vector<double> second) {
    m.mean_heads = false;
    return m.cut_together({said(0, 0, std::move(first), {1}), said(1, 0, std::move(second), {1})});
  };
  CHECK(rows({.3, .5, .4}, {.8, .1, .9}) == std::vector<Tokens>{{1}, {2}});
  CHECK(rows({.7, .9, .8}, {.1, .4, .3}) == std::vector<Tokens>{{1, 2}, {}});
}

// Every row sees all keys: 1 : 2 : 4 beside its own 1. The second row's query is -1.
TEST_CASE("KVCompose's rows look at the whole context and vote by their largest probability", "[kvcompose]") {
  const Streams head = [](int32_t) {
    auto s = weighted_stream({1, 2, 4, 1}, 3);
    s.repeat.context_tokens = 3, s.repeat.rows = {0, 1, 2}, s.repeat.ctx = {0, 2, 3};
    s.repeat_queries = {1, -1}, s.repeat_keys = {0, 0};
    return s;
  };
  // .125, .25, .5 and .364, .182, .091
  CHECK(kept_together(head, "kvcompose", 1, Json::object()) == Tokens{2});
  CHECK(kept_together(head, "kvcompose", 2, Json::object()) == Tokens{0, 2});
  CHECK(kept_together(head, "kvcompose", 2, {{"vnorm", true}}) == Tokens{1, 2});  // token 0 has the value 0
}

// --- allocator zigzag ---------------------------------------------------------------------------------------------

TEST_CASE("shares of .6, .3 and .1 need two tokens for a mass of .9", "[alloc]") {
  CHECK(tokens_of_mass({.3, .1, .6}, .9) == 2);
  CHECK(tokens_of_mass({.3, .1, .6}, .91) == 3);
  CHECK(tokens_of_mass({.3, INFINITY, .1, .6}, .5) == 1);  // protected tokens are not counted
  CHECK(tokens_of_mass({0, 0}, .9) == 0);
}

TEST_CASE("tokens in proportion have the largest remainders, and an excess is shared again", "[alloc]") {
  CHECK(proportional_tokens({1, 1, 1}, 10, 9) == Tokens{4, 3, 3});
  CHECK(proportional_tokens({5, 3, 3}, 10, 9) == Tokens{4, 3, 3});  // 4.55, 2.73, 2.73
  CHECK(proportional_tokens({6, 3, 1}, 20, 9) == Tokens{9, 8, 3});  // 12 is above 9; 11 as 3 : 1
  CHECK(proportional_tokens({6, 3, 1}, 40, 9) == Tokens{9, 9, 9});
  CHECK(proportional_tokens({0, 0}, 4, 9) == Tokens{2, 2});
}

TEST_CASE("zigzag gives layers tokens by the mean spread of their heads", "[alloc]") {
  const auto head = [](int32_t layer, int32_t h, double tokens) { return said(layer, h, {}, {tokens, 2}); };
  // Beyond 2 protected tokens, 2 * 8 are shared as 6 : 2.
  const std::vector<HeadScores> heads{head(3, 0, 4), head(3, 1, 8), head(7, 0, 2), head(7, 1, 2)};
  CHECK(zigzag_tokens(heads, 10, 50) == Tokens{14, 14, 6, 6});
  CHECK(zigzag_tokens(heads, 10, 12) == Tokens{12, 12, 8, 8});
  HeadScores one = said(0, 0, {INFINITY, .6, .3, .1});
  add_mass_tokens({.mass = .9, .lo = 0}, one);
  CHECK(one.extras == std::vector<double>{2, 1});
  add_mass_tokens({.mass = .5, .lo = 3}, one);
  CHECK(one.extras == std::vector<double>{1, 3});
}

TEST_CASE("zigzag's words are read, and scores that are no attention are refused", "[alloc]") {
  const config_stub::Folder folder;
  const auto read = [&](const std::string& method) {
    return parse_config("schema: 1\ntraces: [a.h5]\nbudget: {tokens: [64]}\nmethods: [" + method + "]\n", folder.path,
                        "c", {}, registry());
  };
  const auto rule = [&](const std::string& allocator) {
    return allocator_json(read("{name: snapkv, allocator: " + allocator + "}").methods.at(0).options);
  };
  CHECK(Json::parse(rule("zigzag")) == Json{{"name", "zigzag"}, {"mass", .9}, {"lo", "protected"}});
  CHECK(Json::parse(rule("{name: zigzag, mass: .5, lo: 40}")) == Json{{"name", "zigzag"}, {"mass", .5}, {"lo", 40}});
  CHECK_THROWS_WITH(rule("{name: zigzag, mass: 2}"), Catch::Contains("mass"));
  CHECK_THROWS_WITH(read("{name: knorm, phase: oneshot, allocator: zigzag}"),
                    Catch::Contains("knorm scores by something else"));
}
