#include <algorithm>

#include "hand_streams.hpp"
#include "methods/h2o/scores.hpp"

// H2O with all variants, the windows and patterns that it is compared with, and its oracles. Numbers to check by hand:
// one query head, one dimension, queries 1 and keys ln w, so a token's attention is proportional to its w; with a query
// of -1 it is proportional to 1/w.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;
using Json = nlohmann::json;

// Later rows attend to the tokens that the prompt's rows do not.
HeadStream<double> turning(const std::vector<double>& w, int32_t prompt) {
  HeadStream<double> s = weighted_stream(w, prompt);
  std::fill(s.queries.begin() + prompt, s.queries.end(), -1.0);
  return s;
}

Cell cell(const std::string& method, int32_t budget, const StreamShape& s, const Json& params = Json::object()) {
  return make_cell(method, budget, s, params, default_options(method, params));
}
CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget,
               const Json& params = Json::object()) {
  const CellResult r = replay(s, {cell(method, budget, {s.tokens, s.prompt, 1, 1, 1}, params)}).only();
  REQUIRE(r.ok);
  return r;
}
std::vector<Tokens> kept(const CellResult& r) {
  std::vector<Tokens> all;
  for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) all.push_back(kept_list(r, i));
  return all;
}
std::vector<Tokens> attended(const CellResult& r) {
  std::vector<Tokens> all;
  for (size_t i = 0; i + 1 < r.attended.off.size(); ++i)
    all.emplace_back(r.attended.flat.begin() + r.attended.off[i], r.attended.flat.begin() + r.attended.off[i + 1]);
  return all;
}
std::string refusal(const std::string& method, int32_t budget, const Json& params, const StreamShape& s = {}) {
  try {
    cell(method, budget, s, params);
  } catch (const ParameterError& e) {
    return e.what();
  }
  return "";
}

// A variant of this family that is not another method's default.
struct Instance {
  const char* method;
  Json params;
  bool causal = true, resident = true;
};
std::vector<Instance> instances() {
  return {{"h2o", {{"score_rows", "last:5"}}},
          {"h2o", {{"score_rows", "decode_only"}, {"score_norm", "mean"}}},
          {"h2o", {{"score_norm", "mean"}, {"sinks", 3}}},
          {"h2o", {{"score_norm", "age"}, {"recent", 3}}},
          {"h2o", {{"weight", "vnorm"}}},
          {"h2o", {{"qhitter", 0.5}}},
          {"h2o", {{"variant", "alg1"}}},
          {"h2o", {{"variant", "flexgen"}}},
          {"h2o", {{"variant", "observed"}}},
          {"h2o", {{"variant", "kvfactory"}}},
          {"h2o", {{"variant", "hf_mask"}}, true, false},
          {"h2o", {{"variant", "local_mask"}}, true, false},
          {"h2o", {{"variant", "oracle_global"}}, false, false},
          {"h2o_heavy", {{"variant", "strict"}}},
          {"local", {{"variant", "buzz"}}},
          {"streaming_llm", {{"room_for", 7}}},
          {"sparse_strided", {{"with_h2o", true}, {"l", 12}}},
          {"sparse_fixed", {{"with_h2o", true}, {"l", 8}, {"c", 1}}},
          {"topk_oracle", {{"variant", "topk_plus_current"}}, true, false},
          {"topk_oracle", {{"variant", "topk_plus_current"}, {"renormalise", false}}, true, false},
          {"topk_oracle", {{"variant", "with_h2o"}}, true, false},
          {"topk_oracle", {{"variant", "with_h2o"}, {"per_head", true}}, true, false},
          {"topp", {{"per_head", true}, {"p", 0.6}}, true, false},
          {"static_oracle", {{"per_head", true}}, false}};
}
constexpr int32_t kBudget = 40;
Cell cell_of(const Instance& i, int32_t budget, const StreamShape& s) { return cell(i.method, budget, s, i.params); }

}  // namespace

// A in step 4 is .4 .3 .1 .2, so token 3 (2 from 0) is evicted; if tokens scored while the set filled, it would be 4.
// Step 5 evicts the newest token at once (.8 .6 .4 .1), step 6 evicts token 4 (1 .75 .5 .55).
TEST_CASE("H2O's Algorithm 1 evicts token 3 after step 4, and the newest when it is the weakest", "[h2o]") {
  const CellResult r = run(weighted_stream({4, 3, 1, 2, 1, 11}, 3), "h2o", 3, {{"variant", "alg1"}});
  CHECK(kept(r) == std::vector<Tokens>{{0, 1, 2}, {0, 1, 3}, {0, 1, 3}, {0, 1, 5}});
  CHECK(output(r, 0, 1)[0] == Approx((0 * 4 + 1 * 3 + 3 * 2 + 4 * 1) / 10.0));  // the newest is attended to
  CHECK(*r.measures["peak_attended_tokens"] == 4);
}

// A of tokens 0 to 3 after the prompt: 2.47 1.10 .23 .2.
TEST_CASE("one token less is the heaviest, the lightest, or the heaviest that is no sink", "[h2o]") {
  const HeadStream<double> s = weighted_stream({4, 3, 1, 2, 1}, 4);
  CHECK(kept(run(s, "drop_heavy", 3)).front() == Tokens{1, 2, 3});
  CHECK(kept(run(s, "drop_heavy", 3, {{"drop", "light"}})).front() == Tokens{0, 1, 2});
  CHECK(kept(run(s, "drop_heavy", 3, {{"sinks", 1}})).front() == Tokens{0, 2, 3});
}

TEST_CASE("dropping the lightest is keeping the heaviest, and later tokens stay", "[h2o]") {
  const StreamShape shape{.tokens = 60, .prompt = 50, .dim = 4, .v_dim = 4, .heads = 2};
  const HeadStream<double> s = make_stream<double>(shape, 5);
  const Cell light = make_cell("drop_heavy", 20, shape, {{"drop", "light"}}, default_options("drop_heavy"));
  CommonOptions once = default_options("h2o_heavy");
  once.phase = Phase::oneshot;
  const Cell heavy = make_cell("h2o_heavy", 20, shape, {{"recent", 0}}, once);
  const RunResult both = replay(s, {light, heavy});
  CHECK(both.cells[0].kept.flat == both.cells[1].kept.flat);
  CHECK(*both.cells[0].measures["peak_kept_tokens"] == 30);
}

TEST_CASE("Algorithm 1 obeys the budget within the prompt", "[h2o]") {
  const CellResult r = run(weighted_stream({4, 3, 1, 2, 1, 11, 1}, 6), "h2o", 3, {{"variant", "alg1"}});
  CHECK(kept(r) == std::vector<Tokens>{{0, 1, 5}, {0, 1, 5}});
}

// A of tokens 0 to 3 after the prompt: 1.14 1.45 .54 1.84; token 1 has 1.78 after row 5.
TEST_CASE("the mask simulation hides one column for exactly one step, and it keeps its score", "[h2o]") {
  const CellResult r = run(weighted_stream({.1, 1, 1, 30, 1, 1, 1}, 5), "h2o", 3, {{"variant", "hf_mask"}});
  CHECK(attended(r) == std::vector<Tokens>{{1, 4, 5}, {3, 5, 6}});
  CHECK(r.kept.flat.empty());
}

// This matters only if a heavy column leaves a layer's sliding window: tokens 1 and 2 had .24 and .55.
TEST_CASE("other hidden columns of the mask simulation start again from zero", "[h2o]") {
  auto s = weighted_stream({9, 1, 4, 1, 1}, 4);
  s.window = 4;
  CHECK(attended(run(s, "h2o", 2, {{"variant", "hf_mask"}})) == std::vector<Tokens>{{1, 4}});
}

TEST_CASE("the local mask keeps heavy columns and a band of recent ones", "[h2o]") {
  const CellResult r = run(weighted_stream({1, 3, 1, 1, 9, 1}, 3), "h2o", 4, {{"variant", "local_mask"}});
  CHECK(attended(r) == std::vector<Tokens>{{0, 2, 3}, {0, 3, 4}, {0, 4, 5}});
}

// A: 1.54 1.09 .84 .53. Step 4 drops 1 (1.26 against 1.62). Step 5 drops 3 (1.4), though 4 has only .11.
TEST_CASE("flexgen drops the weakest heavy hitter, and the oldest recent token takes its place", "[h2o]") {
  const CellResult r = run(weighted_stream({1, 2, 4, 8, 1, 30}, 4), "h2o", 4, {{"variant", "flexgen"}});
  CHECK(kept(r) == std::vector<Tokens>{{0, 1, 3}, {0, 3, 4}, {0, 4, 5}});
}

TEST_CASE("oracle_global sees the future and is marked as an oracle", "[h2o]") {
  const auto s = turning({2, .01, 4, 2, 2, 2, 2}, 4);
  const CellResult r = run(s, "h2o", 2, {{"variant", "oracle_global"}}), h2o = run(s, "h2o", 2);
  CHECK(attended(r) == std::vector<Tokens>{{1, 3, 4}, {1, 4, 5}, {1, 5, 6}});
  CHECK(kept_list(h2o, 0) == Tokens{0, 3});
  CHECK(r.measures.extras.at("sees_future") == 1);
  CHECK(h2o.measures.extras.empty());
}

TEST_CASE("H2O keeps different tokens if other rows of the prompt vote", "[h2o]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);
  CHECK(kept_list(run(s, "h2o", 2), 0) == Tokens{0, 3});
  CHECK(kept_list(run(s, "h2o", 2, {{"score_rows", "last:1"}}), 0) == Tokens{2, 3});
  const CellResult decode = run(s, "h2o", 2, {{"score_rows", "decode_only"}});
  CHECK(kept_list(decode, 0) == Tokens{0, 3});  // no row voted: the oldest
  CHECK(kept_list(decode, 1) == Tokens{3, 4});  // .8 against .1
  CHECK(kept_list(run(s, "h2o", 2), 1) == Tokens{0, 4});
}

// The prompt's means are .386 .362 .419 .533. Then token 2 has (.838 + 4/13) / 3 = .382 and token 3 has
// (.533 + 8/13) / 2 = .574.
TEST_CASE("the mean divides by the rows that saw a token", "[h2o]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);
  const CellResult r = run(s, "h2o", 2, {{"score_norm", "mean"}});
  CHECK(kept_list(r, 0) == Tokens{2, 3});
  CHECK(kept_list(r, 1) == Tokens{3, 4});
}

// The sums are (2.25, 1.25, .667) after row 4, the divisors 5 - 3, 5 - 3 and 5 - 4.
TEST_CASE("age divides sums by the steps since a token, or since the prompt", "[h2o]") {
  CHECK(6 / double(h2o_scores::age(0, 8, 4)) == Approx(1.2));
  CHECK(2 / double(h2o_scores::age(4, 8, 4)) == Approx(.5));
  CHECK(1 / double(h2o_scores::age(6, 8, 4)) == Approx(.5));
  const auto s = weighted_stream({1, 1, 1, 1, 4}, 4);
  CHECK(kept(run(s, "h2o", 2, {{"recent", 0}})) == std::vector<Tokens>{{0, 1}, {0, 1}});
  CHECK(kept(run(s, "h2o", 2, {{"recent", 0}, {"score_norm", "age"}})) == std::vector<Tokens>{{0, 1}, {0, 4}});
}

// Values are the tokens' indices. The prompt gives 4 (0, .510, .619, .429) / 1.557 = (0, 1.309, 1.590, 1.101). Row 4
// gives (1, 2, 120) / 123, which is less, because a step is one row.
TEST_CASE("vnorm shares out the rows of a call by attention times the norm of the value", "[h2o]") {
  const auto s = weighted_stream({4, 1, 1, 1, 30}, 4);
  CHECK(kept(run(s, "h2o", 2, {{"recent", 0}})) == std::vector<Tokens>{{0, 1}, {0, 4}});
  const CellResult r = run(s, "h2o", 2, {{"recent", 0}, {"weight", "vnorm"}});
  CHECK(kept(r) == std::vector<Tokens>{{1, 2}, {1, 2}});
  CHECK(*r.measures["score_bytes"] == 2 * 8);
  CHECK(*r.measures["sketch_bytes"] == 2 * 8);  // the norms
}

// Sums are (2.083, 1.083, .583, .25). A value of 2049 reads back as 2048, so token 0 has an error of 1. z of tokens 0
// and 1 is (.75, .727) at c = .5 and (.7, .782) at c = .4.
TEST_CASE("qhitter sets attention against the error of a token in int4", "[h2o]") {
  const std::vector<double> row = {0, 1.4, 15, 3};
  CHECK(h2o_scores::Int4Errors::square_error<double>(row) == Approx(.16));
  auto s = weighted_stream({1, 1, 1, 1, 1}, 4);
  s.values[0] = 2049;
  CHECK(kept_list(run(s, "h2o", 1, {{"recent", 0}, {"qhitter", 1.0}}), 0) == Tokens{0});
  CHECK(kept_list(run(s, "h2o", 1, {{"recent", 0}, {"qhitter", 0.5}}), 0) == Tokens{0});
  CHECK(kept_list(run(s, "h2o", 1, {{"recent", 0}, {"qhitter", 0.4}}), 0) == Tokens{1});
}

TEST_CASE("the changes to H2O's scores are refused where a variant defines them", "[h2o]") {
  const auto names = [](const Json& params, const char* what) {
    return refusal("h2o", 9, params).find(what) != std::string::npos;
  };
  CHECK(names({{"variant", "alg1"}, {"weight", "vnorm"}}, "variant real_drop only"));
  CHECK(names({{"variant", "flexgen"}, {"qhitter", 0.5}}, "variant real_drop only"));
  CHECK(names({{"variant", "alg1"}, {"score_norm", "age"}}, "leave out score_rows and score_norm"));
  CHECK(names({{"score", "obc_value"}, {"weight", "vnorm"}}, "leave out one of them"));
}

TEST_CASE("H2O's sinks take the place of heavy hitters", "[h2o]") {
  const auto s = weighted_stream({.1, 9, 9, 1, 1, 1, 1}, 6);
  CHECK(kept_list(run(s, "h2o", 4), 0) == Tokens{1, 2, 4, 5});
  CHECK(kept_list(run(s, "h2o", 4, {{"sinks", 1}}), 0) == Tokens{0, 1, 4, 5});
}

TEST_CASE("kvfactory keeps the last 32 prompt tokens, or the budget if that is less", "[h2o]") {
  const auto s = weighted_stream(std::vector<double>(41, 1.0), 40);
  const Tokens more = kept_list(run(s, "h2o", 34, {{"variant", "kvfactory"}}), 0),
               less = kept_list(run(s, "h2o", 20, {{"variant", "kvfactory"}}), 0);
  CHECK((more.size() == 34 && more[1] == 1 && more[2] == 8));
  CHECK((less.size() == 20 && less[0] == 20));
}

TEST_CASE("heavy hitters only: the newest survives its own step, or not when strict", "[h2o]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 1}, 4);
  CHECK(kept(run(s, "h2o_heavy", 2)) == std::vector<Tokens>{{0, 3}, {0, 4}, {0, 5}});
  CHECK(kept(run(s, "h2o_heavy", 2, {{"variant", "strict"}})) == std::vector<Tokens>{{0, 1}, {0, 1}, {0, 1}});
}

TEST_CASE("local is the window, and lm_eval keeps one more", "[h2o]") {
  const auto s = weighted_stream({9, 2, 4, 8, 1, 3, 7}, 5);
  CHECK(run(s, "local", 3).kept.flat == run(s, "window", 3).kept.flat);
  CHECK(run(s, "local", 3, {{"variant", "lm_eval"}}).kept.flat == run(s, "window", 4).kept.flat);
  CHECK(run(s, "local", 3, {{"variant", "buzz"}}).out == run(s, "window", 3).out);  // no gap, no rotation
}

TEST_CASE("streaming_llm makes room before tokens arrive", "[h2o]") {
  const auto s = weighted_stream({1, 1, 1, 1, 1, 1, 1}, 5);
  CHECK(kept(run(s, "streaming_llm", 4, {{"sinks", 1}, {"room_for", 1}})) ==
        std::vector<Tokens>{{0, 3, 4}, {0, 4, 5}, {0, 5, 6}});
  CHECK(refusal("streaming_llm", 9, {{"room_for", 6}}).find("leave no recent token") != std::string::npos);
}

TEST_CASE("the strided pattern is the last w tokens and every l-th", "[h2o]") {
  const auto s = weighted_stream(std::vector<double>(9, 1.0), 6);
  const CellResult r = run(s, "sparse_strided", 5, {{"w", 2}, {"l", 3}});
  CHECK(kept(r) == std::vector<Tokens>{{2, 4, 5}, {2, 5, 6}, {2, 5, 6, 7}, {2, 5, 7, 8}});
}

TEST_CASE("a pattern cuts no prompt that fits, but every step of the decoding", "[h2o]") {
  const auto s = weighted_stream(std::vector<double>(8, 1.0), 5);
  const CellResult r = run(s, "sparse_strided", 5, {{"w", 2}, {"l", 3}});
  CHECK(kept(r) == std::vector<Tokens>{{0, 1, 2, 3, 4}, {2, 4, 5}, {2, 5, 6}, {2, 5, 6, 7}});
}

TEST_CASE("the fixed pattern is the current block and the ends of finished blocks", "[h2o]") {
  const auto s = weighted_stream(std::vector<double>(10, 1.0), 7);
  const CellResult r = run(s, "sparse_fixed", 6, {{"l", 3}, {"c", 1}});
  CHECK(kept(r) == std::vector<Tokens>{{2, 5, 6}, {2, 5, 6, 7}, {2, 5, 6, 7, 8}, {2, 5, 8, 9}});
}

TEST_CASE("patterns with H2O keep the heaviest tokens outside the pattern", "[h2o]") {
  auto w = std::vector<double>(13, 1.0);
  w[3] = w[4] = 5;
  const CellResult r = run(weighted_stream(w, 10), "sparse_strided", 8, {{"w", 2}, {"l", 6}, {"with_h2o", true}});
  CHECK(kept_list(r, 0) == Tokens{0, 1, 3, 4, 5, 8, 9});  // 5 8 9 leave room for 4 outside: 0 1 3 4
}

TEST_CASE("patterns refuse budgets that they would exceed, with a remedy", "[h2o]") {
  const StreamShape s{.tokens = 400, .prompt = 300};
  CHECK(refusal("sparse_fixed", 39, {}, s) ==
        "no block length fits 400 tokens into a budget of 39; raise it, or replay fewer tokens");
  CHECK(refusal("sparse_fixed", 40, {}, s).empty());
  CHECK(refusal("sparse_fixed", 60, {{"l", 12}, {"c", 2}}, s).find("do not fit 60") != std::string::npos);
  CHECK(refusal("sparse_strided", 60, {{"w", 50}, {"l", 20}}, s).find("l 40 fits") != std::string::npos);
  CHECK(refusal("sparse_strided", 60, {{"w", 60}}, s).find("lower w") != std::string::npos);
}

TEST_CASE("the static oracle keeps what the future will attend to", "[h2o]") {
  const auto s = turning({8, .1, 4, .5, 2, 2}, 4);
  CHECK(kept_list(run(s, "static_oracle", 2), 0) == Tokens{1, 3});
  CHECK(kept_list(run(s, "static_oracle", 2, {{"recent", 0}, {"sinks", 1}}), 0) == Tokens{0, 1});
}

TEST_CASE("top-p reads the shortest prefix that reaches p, the lowest index among equals", "[h2o]") {
  const auto s = weighted_stream({1, 5, 1, 2, 1}, 4);  // probabilities of the only decode row: .1 .5 .1 .2 .1
  const auto reads = [&](double p) { return attended(run(s, "topp", 0, {{"p", p}})).at(0); };
  CHECK(reads(0.4) == Tokens{1});
  CHECK(reads(0.6) == Tokens{1, 3});
  CHECK(reads(0.75) == Tokens{0, 1, 3});
  CHECK(reads(0.85) == Tokens{0, 1, 2, 3});
  CHECK(reads(1) == Tokens{0, 1, 2, 3, 4});
  CHECK(attended(run(weighted_stream({1, 1e-30, 1}, 2), "topp", 0, {{"p", 1.0}})).at(0) == Tokens{0, 1, 2});
  CHECK(*run(s, "topp", 0, {{"p", 0.75}}).measures["mean_attended_tokens"] == 3);
  CHECK(refusal("topp", 0, {{"p", 0.0}}).find("reads nothing") != std::string::npos);
}

TEST_CASE("the count of top-p falls with p, and p = 1 is exact attention", "[h2o]") {
  const StreamShape s;
  const auto stream = make_stream<double>(s, 41, Look::duplicates);
  double before = 1e9;
  for (const double p : {1.0, 0.99, 0.9, 0.5, 0.1, 1e-6}) {
    const CellResult r = replay(stream, {cell("topp", 0, s, {{"p", p}})}).only();
    CHECK(*r.measures["mean_attended_tokens"] < before);
    CHECK(*r.measures["kept_mass_mean"] >= p * (1 - 1e-12));
    if (p == 1) CHECK(*r.measures["rel_err_out_max"] < 1e-12);
    before = *r.measures["mean_attended_tokens"];
  }
  CHECK(before == 1);
}

TEST_CASE("top-k and the newest, with the probabilities of the whole row if asked", "[h2o]") {
  const auto s = weighted_stream({1, 8, 2, 5, 4}, 4);
  const Json half{{"variant", "topk_plus_current"}, {"f", 0.5}},
      raw{{"variant", "topk_plus_current"}, {"f", 0.5}, {"renormalise", false}};
  const CellResult r = run(s, "topk_oracle", 2, half), whole = run(s, "topk_oracle", 2, raw);
  CHECK(attended(r) == std::vector<Tokens>{{1, 3, 4}});
  CHECK(attended(whole) == attended(r));
  CHECK(output(r, 0, 0)[0] == Approx((8 * 1 + 5 * 3 + 4 * 4) / 17.0));
  CHECK(output(whole, 0, 0)[0] == Approx((8 * 1 + 5 * 3 + 4 * 4) / 20.0));
  CHECK(*whole.measures["partition_err_mean"] == Approx(0).margin(1e-12));  // the denominator is that of the whole row
  CHECK(*whole.measures["kept_mass_mean"] == Approx(17 / 20.0));
}

// A after the prompt is 1.54 ..., so token 0 is the heavy hitter; the step's best token is taken from the full cache.
TEST_CASE("top-k with H2O reads heavy hitters, the newest, and the best of the step", "[h2o]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 1}, 4);
  const CellResult r = run(s, "topk_oracle", 2, {{"variant", "with_h2o"}});
  CHECK(attended(r) == std::vector<Tokens>{{0, 3, 4}, {0, 3, 5}});
}

TEST_CASE("masks and oracles are charged for the full cache and for their decisions", "[h2o]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);  // 8 bytes a row
  for (const char* variant : {"hf_mask", "local_mask"}) {
    const CellResult r = run(s, "h2o", 2, {{"variant", variant}});
    CHECK(*r.measures["peak_bytes"] == *r.measures["full_bytes"]);
    CHECK(*r.measures["aux_bytes"] == 6 * 8);  // one score per token, no positions
    CHECK(*r.measures["peak_kept_tokens"] == 6);
    CHECK(*r.measures["n_evictions"] == 0);
  }
  const CellResult global = run(s, "h2o", 2, {{"variant", "oracle_global"}});
  CHECK(*global.measures["peak_bytes"] == *global.measures["full_bytes"]);
  CHECK(*global.measures["aux_bytes"] == 4);  // its list
  const CellResult strided = run(s, "sparse_strided", 4), heavy = run(s, "sparse_strided", 4, {{"with_h2o", true}});
  CHECK(*strided.measures["aux_bytes"] == 0);
  CHECK(*heavy.measures["aux_bytes"] == *heavy.measures["peak_kept_tokens"] * (8 + 4));
}

TEST_CASE("variants refuse meaningless parameters", "[h2o]") {
  CommonOptions oneshot;
  oneshot.phase = Phase::oneshot;
  for (const char* variant : {"alg1", "hf_mask", "local_mask", "flexgen", "oracle_global"}) {
    INFO(variant);
    CHECK_THROWS_AS(make_cell("h2o", 9, {}, {{"variant", variant}}, oneshot), ParameterError);
    CHECK_THROWS_AS(make_cell("h2o", 9, {}, {{"variant", variant}, {"score_rows", "last:4"}}), ParameterError);
  }
  CHECK_THROWS_AS(make_cell("h2o", 9, {}, {{"variant", "observed"}}), ParameterError);
  CHECK(refusal("h2o", 9, {{"variant", "hf_mask"}, {"recent_frac", 0.0}}).find("needs a recent") != std::string::npos);
  CHECK(refusal("h2o", 9, {{"variant", "flexgen"}, {"heavy", 6}}).find("not the budget") != std::string::npos);
  CHECK(refusal("h2o", 9, {{"variant", "flexgen"}, {"sinks", 1}}).find("leave out sinks") != std::string::npos);
  CHECK(refusal("h2o", 9, {{"heavy", 3}, {"recent", 3}}).find("not the budget of 9") != std::string::npos);
  CHECK(refusal("h2o", 9, {{"sinks", 5}}).find("exceed") != std::string::npos);
}

TEST_CASE("a streamed prompt has no end at which oracle_global could rank all rows", "[h2o]") {
  const StreamShape s;
  const CellResult r =
      replay(make_stream<double>(s), {streamed(cell("h2o", kBudget, s, {{"variant", "oracle_global"}}))}).only();
  CHECK_FALSE(r.ok);
  CHECK(r.error.find("in one call (prompt cut)") != std::string::npos);
}

TEST_CASE("every variant of the family: a budget of the whole trace is exact attention", "[h2o]") {
  const StreamShape s;
  for (const Instance& i : instances()) {
    if (std::string(i.method) == "topp") continue;  // reads a share, whatever the budget
    INFO(i.method << i.params);
    const CellResult r = replay(make_stream<double>(s, 42, Look::clustered), {cell_of(i, s.tokens + 7, s)}).only();
    REQUIRE(r.ok);
    CHECK(*r.measures["n_evictions"] == 0);
    CHECK(*r.measures["rel_err_out_max"] < 1e-10);
  }
}

TEST_CASE("every variant of the family: poisoning the future and the evicted changes no number", "[h2o]") {
  const StreamShape s;
  RunOptions audit;
  audit.audit = true;
  for (const Instance& i : instances()) {
    INFO(i.method << i.params);
    const auto stream = make_stream<double>(s, 43, Look::sinks);
    const CellResult plain = replay(stream, {cell_of(i, kBudget, s)}).only();
    const CellResult audited = replay(stream, {cell_of(i, kBudget, s)}, audit).only();
    REQUIRE(plain.ok);
    REQUIRE(audited.ok);
    CHECK(std::all_of(audited.out.begin(), audited.out.end(), [](double x) { return std::isfinite(x); }));
    CHECK(plain.kept.flat == audited.kept.flat);
    CHECK(plain.attended.flat == audited.attended.flat);
    CHECK(relative_difference(plain.out, audited.out) < 1e-12);
    const int32_t decoded = cell_of(i, kBudget, s).options().phase == Phase::oneshot ? s.tokens - s.prompt : 0;
    if (i.resident) CHECK(*plain.measures["peak_kept_tokens"] <= kBudget + decoded);
    else CHECK(*plain.measures["peak_kept_tokens"] == s.tokens);
  }
}

TEST_CASE("every causal variant of the family: a row does not depend on later tokens", "[h2o]") {
  const StreamShape s{.tokens = 90}, shorter{.tokens = 75};
  for (const Instance& i : instances()) {
    INFO(i.method << i.params);
    auto stream = make_stream<double>(s, 44), cut = make_stream<double>(s, 44);
    cut.tokens = shorter.tokens;
    for (int32_t h = 0; h < s.heads; ++h)  // later tokens change strongly
      for (int32_t x = shorter.tokens * s.dim; x < s.tokens * s.dim; ++x)
        stream.queries[size_t(h * s.tokens * s.dim + x)] *= 20;
    const CellResult whole = replay(stream, {cell_of(i, kBudget, s)}).only();
    const CellResult part = replay(cut, {cell_of(i, kBudget, shorter)}).only();
    double worst = 0;
    for (size_t row = 0; row < part.rows.size(); ++row)
      for (int32_t h = 0; h < s.heads; ++h)
        worst = std::max(worst, relative_difference(output(part, h, row), output(whole, h, row)));
    if (i.causal) CHECK(worst < 1e-10);
    else CHECK(worst > 1e-3);  // the two that see the future
  }
}
