#include "core/share.hpp"
#include "exact/row_scores.hpp"
#include "hand_streams.hpp"

// Selections that look at a token's contribution to the output: by hand, and their properties.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

CommonOptions wrapped(const std::string& method, Wrapper::Kind kind, Wrapper::Level level = Wrapper::Level::kv) {
  CommonOptions options = default_options(method);
  options.wrapper.kind = kind, options.wrapper.level = level;
  return options;
}
CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const CommonOptions& options,
               const nlohmann::json& params = nlohmann::json::object()) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}

}  // namespace

TEST_CASE("CAOTE over TOVA drops the token whose eviction changes the output least", "[wrapper]") {
  const StreamShape shape{.tokens = 30, .prompt = 20, .dim = 4, .v_dim = 3, .heads = 1};
  const auto s = make_stream<double>(shape, 3, Look::sinks);
  for (const Wrapper::Level level : {Wrapper::Level::kv, Wrapper::Level::query}) {
    const CellResult r = run(s, "tova", 12, wrapped("tova", Wrapper::Kind::caote, level));
    for (int32_t t = s.prompt; t < s.tokens; ++t) {
      std::vector<int32_t> held = kept_list(r, size_t(t - s.prompt));
      held.push_back(t);
      const std::vector<double> output = naive_attention(s, 0, t, held);
      double least = INFINITY;
      int32_t gone = -1;
      for (size_t i = 0; i < held.size(); ++i) {
        std::vector<int32_t> others = held;
        others.erase(others.begin() + int64_t(i));
        const std::vector<double> without = naive_attention(s, 0, t, others);
        double square = 0;
        for (size_t c = 0; c < output.size(); ++c) square += (output[c] - without[c]) * (output[c] - without[c]);
        if (square < least) least = square, gone = held[i];
      }
      std::erase(held, gone);
      CHECK(kept_list(r, size_t(t - s.prompt) + 1) == held);
    }
  }
}

TEST_CASE("CAOTE sums its scores over query heads, or scores the group at once", "[wrapper]") {
  const StreamShape shape{.tokens = 60, .prompt = 40, .heads = 3};
  const auto s = make_stream<double>(shape, 9, Look::gaussian);
  const auto kept = [&](Wrapper::Level level) {
    return run(s, "tova", 16, wrapped("tova", Wrapper::Kind::caote, level)).kept.flat;
  };
  const std::vector<int32_t> plain = run(s, "tova", 16, default_options("tova")).kept.flat;
  CHECK(kept(Wrapper::Level::kv) != plain);
  CHECK(kept(Wrapper::Level::query) != plain);
  CHECK(kept(Wrapper::Level::query) != kept(Wrapper::Level::kv));
}

// Scores are .4, .3, .2, .1 of one voter; the output projection scales the last value tenfold.
TEST_CASE("CriticalKV keeps the best score, then the best score times norm", "[wrapper]") {
  auto s = weighted_stream({4, 3, 2, 1, 1e-9, 1}, 5);
  s.values = {1, 1, 1, 10, 1, 1};
  s.output_norms_l1.clear(), s.output_norms_l2.clear();
  add_output_norms(s, std::vector<float>{1});
  const nlohmann::json params{{"window", 1}, {"kernel", 1}};
  const CommonOptions plain = default_options("snapkv"), critical = wrapped("snapkv", Wrapper::Kind::critical);
  CHECK(kept_list(run(s, "snapkv", 4, plain, params), 0) == std::vector<int32_t>{0, 1, 2, 4});
  CHECK(kept_list(run(s, "snapkv", 4, critical, params), 0) == std::vector<int32_t>{0, 1, 3, 4});
  CommonOptions by_output = critical;
  by_output.wrapper.alpha = 0;
  CHECK(kept_list(run(s, "snapkv", 2, by_output, params), 0) == std::vector<int32_t>{3, 4});
}

TEST_CASE("LU-KV: slopes .5, .1, 0 and .35, .35, 0 share three tokens as 1 and 2", "[alloc]") {
  const std::vector<double> a = hull_slopes({.5, .1, 0}), b = hull_slopes({.1, .6, 0});
  CHECK(a == std::vector<double>{.5, .1, 0});
  CHECK(b[0] == Approx(.35));
  CHECK(b[1] == b[0]);
  CHECK(tokens_by_slopes({a, b}, {0, 0}, 3) == std::vector<int32_t>{1, 2});
  CHECK(tokens_by_slopes({a, b}, {1, 1}, 3) == std::vector<int32_t>{1, 2});
  CHECK(tokens_by_slopes({a, a}, {0, 0}, 3) == std::vector<int32_t>{2, 1});  // ties: the lower head
  CHECK(tokens_by_slopes({a, b}, {3, 0}, 4) == std::vector<int32_t>{3, 1});
}

// With p = (.5, .5), l = (1, 1), v = (1, 3), o = 2: value (.25, 2.25), key (.25, .25), joint (0, 4). For row 0 alone:
// 1, 0, 1.
TEST_CASE("OBC scores replace probabilities in TOVA's row and in H2O's sum", "[scores]") {
  HeadStream<double> s = stream_of_keys({1, 1, 1}, 2);
  s.values = {1, 3, 4};
  const auto kept = [&](const char* method, const char* score, size_t step) {
    nlohmann::json params{{"score", score}};
    if (method == std::string("h2o")) params["heavy"] = 1;
    return kept_list(run(s, method, 1, default_options(method), params), step).front();
  };
  CHECK(kept("tova", "attention", 0) == 0);  // a tie
  CHECK(kept("tova", "obc_value", 0) == 1);
  CHECK(kept("tova", "obc_key", 0) == 0);  // a tie
  CHECK(kept("tova", "obc_joint", 0) == 1);
  CHECK(kept("h2o", "attention", 0) == 0);
  CHECK(kept("h2o", "obc_value", 0) == 1);  // 1.25, 2.25
  CHECK(kept("h2o", "obc_key", 0) == 0);
  CHECK(kept("h2o", "obc_joint", 0) == 1);  // 1, 4
  // Row 2: .25 times 9 and 16. TOVA drops token 1; H2O compares 2.25 + 2.25 with 4.
  CHECK(kept("tova", "obc_value", 1) == 2);
  CHECK(kept("h2o", "obc_value", 1) == 1);
  s.values[2] = 5;
  CHECK(kept("h2o", "obc_value", 1) == 2);  // 4.5 against 6.25
}

// A row has equal scores as the prompt's last one and as the first after the prompt.
TEST_CASE("OBC scores of a step equal those of a prompt's row", "[scores]") {
  const StreamShape shape{.tokens = 30, .prompt = 20, .dim = 4, .v_dim = 3, .heads = 3};
  for (const char* score : {"obc_value", "obc_key", "obc_joint"})
    for (const Aggregate how : {Aggregate::sum, Aggregate::max, Aggregate::first})
      for (const int kind : {0, 1, 2}) {
        INFO(score << ", gqa.agg " << int(how) << ", layer " << kind);
        auto s = make_stream<double>(shape, 12, Look::sinks);
        if (kind == 1) s.rule.softcap = 0.7;
        if (kind == 2) s.sink_logits = {0.5, -1, 2};
        CommonOptions options = default_options("tova");
        options.gqa_aggregate = how;
        const int32_t budget = s.prompt;
        const nlohmann::json params{{"score", score}};
        const CellResult by_step = run(s, "tova", budget, options, params);
        ++s.prompt;
        CHECK(kept_list(run(s, "tova", budget, options, params), 0) == kept_list(by_step, 1));
      }
}

// Rows 2, 3 and 4 see three tokens each, p = 1/3: token 2 has 3 * 4 / 9, token 3 2 * 16 / 9, token 4 12.96 / 9.
TEST_CASE("OBC scores count only tokens inside a layer's sliding window", "[scores]") {
  HeadStream<double> s = stream_of_keys({0, 0, 0, 0, 0, 0}, 5);
  s.values = {1, 1, 2, 4, 3.6, 1};
  s.window = 3;
  const nlohmann::json params{{"score", "obc_value"}, {"heavy", 2}};
  CHECK(kept_list(run(s, "h2o", 2, default_options("h2o"), params), 0) == std::vector<int32_t>{3, 4});
  s.values[4] = 3.4;
  CHECK(kept_list(run(s, "h2o", 2, default_options("h2o"), params), 0) == std::vector<int32_t>{2, 3});
}

TEST_CASE("H2O's released mask adds up only attention", "[scores]") {
  const StreamShape s;
  for (const char* variant : {"hf_mask", "local_mask", "oracle_global"})
    CHECK_THROWS_WITH(make_cell("h2o", 20, s, {{"variant", variant}, {"score", "obc_key"}}),
                      Catch::Contains("leave out score"));
  for (const char* variant : {"alg1", "flexgen"}) {
    const nlohmann::json params{{"variant", variant}, {"score", "obc_joint"}};
    const auto stream = make_stream<double>(s, 4, Look::clustered);
    const CellResult plain =
        replay(stream, {make_cell("h2o", 20, s, {{"variant", variant}}, default_options("h2o"))}).only();
    const CellResult scored = replay(stream, {make_cell("h2o", 20, s, params, default_options("h2o"))}).only();
    REQUIRE(scored.ok);
    CHECK(scored.kept.flat != plain.kept.flat);
  }
}
