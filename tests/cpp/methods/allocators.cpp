#include <algorithm>
#include <fstream>
#include <numeric>

#include "allocation/allocator_files.hpp"
#include "config/stub.hpp"
#include "core/share.hpp"
#include "hand_streams.hpp"
#include "methods/adakv.hpp"
#include "methods/cake.hpp"
#include "methods/pyramidkv.hpp"
#include "trace/h5_file.hpp"

// Budgets shared over layers and heads: the formulas by hand and against recorded tables.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const nlohmann::json& params,
               CommonOptions options) {
  const StreamShape shape{s.tokens, s.prompt, 1, 1, s.shape.heads};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}
CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const nlohmann::json& params) {
  return run(s, method, budget, params, default_options(method));
}

Tokens pyramid(const Pyramid& p) {
  Tokens tokens;
  for (int32_t l = 0; l < p.layers; ++l) tokens.push_back(p.tokens(l));
  return tokens;
}
HeadScores scores(std::vector<double> s) {
  HeadScores t;
  t.scores = std::move(s);
  return t;
}
HeadScores says(int32_t layer, double entropy, double variance) {
  HeadScores t;
  t.layer = layer;
  t.extras = {entropy, variance};
  return t;
}
MethodContext context(int32_t budget, int32_t prompt) {
  MethodContext s;
  s.budget.tokens = budget, s.prompt_tokens = prompt, s.tokens = prompt + 10;
  return s;
}
int32_t pyramidkv_tokens(PyramidKv m, MethodContext s, int32_t layer, int32_t layers) {
  s.layer = layer, s.n_layers = layers;
  m.resolve(s);
  return m.budget;
}
std::string refused(const std::string& methods) {
  const config_stub::Folder folder;
  try {
    parse_config("schema: 1\ntraces: [a.h5]\nbudget: {tokens: [64]}\nmethods: [" + methods + "]\n", folder.path, "c",
                 {}, registry());
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("SnapKV can sum the query heads' votes after pooling each", "[alloc]") {
  // Votes of heads 0 and 1 for the prefix; the window is one token.
  auto s = weighted_stream({1, 1, 1, 1, 1, 1, 1}, 6, 2);
  const auto look = [&](int32_t head, std::vector<double> w) {
    for (size_t i = 0; i < w.size(); ++i) s.keys[i * 2 + size_t(head)] = std::log(w[i]);
    s.queries[(size_t(head) * 7 + 5) * 2 + size_t(head)] = 1;
  };
  s.shape.dim = 2;
  s.keys.assign(14, 0), s.queries.assign(28, 0);
  look(0, {1, 6, 1, 1, 1, 1, 1}), look(1, {1, 1, 1, 6, 1, 1, 1});
  const nlohmann::json one = {{"window", 1}, {"kernel", 3}};
  nlohmann::json after = one;
  after["when"] = "after";
  const auto kept = [&](const nlohmann::json& p) {
    return kept_list(replay(s, {make_cell("snapkv", 3, {7, 6, 2, 1, 2}, p, default_options("snapkv"))}).only(), 0);
  };
  // votes of the group 2 7 2 7 2 (times 1/11); pooled 7 7 7 7 7, and after pooling 7 7 12 7 7
  CHECK(kept(one) == Tokens{0, 1, 5});
  CHECK(kept(after) == Tokens{0, 2, 5});
}

TEST_CASE("SnapKV keeps sinks and recents beside its window", "[alloc]") {
  const auto s = weighted_stream({1, 1, 1, 9, 9, 9, 1, 1, 1, 1, 1}, 10);
  CHECK(kept_list(run(s, "snapkv", 6, {{"window", 1}, {"kernel", 1}, {"sinks", 2}, {"recent", 3}}), 0) ==
        Tokens{0, 1, 3, 7, 8, 9});
  // A window beyond the budget keeps the sinks and the last of the other tokens.
  CHECK(kept_list(run(s, "snapkv", 4, {{"window", 8}, {"sinks", 1}}), 0) == Tokens{0, 7, 8, 9});
}

TEST_CASE("SnapKV's variants are the published sets of defaults", "[alloc]") {
  const auto of = [](const char* variant) {
    return resolved_params("snapkv", {{"variant", variant}}, context(100, 500));
  };
  const auto is = [](const nlohmann::json& p, int w, int k, const char* pool, const char* when) {
    return p["window"] == w && p["kernel"] == k && p["pool"] == pool && p["when"] == when;
  };
  CHECK(is(of("default"), 32, 7, "max", "before"));
  CHECK(is(of("kvpress"), 64, 5, "avg", "after"));
  CHECK(is(of("paper_config"), 32, 7, "max", "after"));
  CHECK(is(of("kvfactory"), 8, 7, "max", "before"));
  CHECK(is(of("none_pool"), 32, 1, "max", "before"));
  CHECK(default_options("snapkv", {{"variant", "kvpress"}}).gqa_aggregate == Aggregate::mean);
}

TEST_CASE("layers with a window get a share of the budget, the others get the rest", "[alloc]") {
  // 15 heads with a window of 512 and 3 without, a prompt of 1024: 18 * 256 = 15 * 128 + 3 * 896.
  const auto of = [](double budget, double share, int64_t windowed = 15, int64_t full = 3) {
    const WindowBudgets kinds{budget, share, windowed, full, 512, 1024};
    return std::pair(kinds.tokens(true), kinds.tokens(false));
  };
  CHECK(of(256, 0.5) == std::pair(128, 896));
  CHECK(of(256, 1) == std::pair(256, 256));
  CHECK(of(256, 0.25) == std::pair(102, 1024));  // 64 would leave 1216 for the others, more than the prompt
  CHECK(of(600, 1) == std::pair(512, 1024));     // a window holds at most 512, and 1040 is more than the prompt
  CHECK(of(1024, 0.5) == std::pair(1024, 1024));
  CHECK(of(256, 0.5, 0, 3) == std::pair(256, 256));  // with one kind of layer there is nothing to divide
  CHECK(of(256, 0.5, 15, 0) == std::pair(256, 256));
}

TEST_CASE("a pyramid falls from layer to layer between window and prompt", "[alloc]") {
  CHECK(pyramid({64, 4, 8, 200, 4}) == Tokens{112, 80, 48, 16});
  CHECK(pyramid({64, 4, 8, 108, 4}) == Tokens{100, 76, 52, 28});  // mx = P - w, mn = 2B - mx
  CHECK(pyramid({64, 20, 8, 200, 3}) == Tokens{64, 64, 64});      // B/20 is below the window
  CHECK(pyramid({9.9999, 20, 8, 100, 2}) == Tokens{10, 10});      // a real budget is rounded
  CHECK(pyramid({64, 4, 8, 200, 1}) == Tokens{64});
  CHECK(pyramid({200, 4, 8, 200, 2}) == Tokens{200, 200});  // everything fits
}

TEST_CASE("the pyramid's budgets are those of kvpress for every recorded configuration", "[alloc]") {
  const std::string file = KVREPLAY_SOURCE_DIR "/tests/golden/kvpress_dev.h5";
  std::vector<int64_t> shape;
  const std::vector<double> table = read_dataset(file, "pyramid_budgets/table", shape);
  REQUIRE(shape == std::vector<int64_t>{270, 34});
  for (size_t row = 0; row < 270; ++row) {
    const double* r = &table[row * 34];
    INFO("n " << r[0] << " ratio " << r[1] << " window " << r[2] << " beta " << r[3]);
    const Pyramid p{r[0] * (1 - r[1]), r[3], int32_t(r[2]), int32_t(r[0]), 30};
    CHECK(std::equal(r + 4, r + 34, pyramid(p).begin()));
  }
}

TEST_CASE("pyramidkv takes L and l from the trace, and the mean budget before rounding with kvpress", "[alloc]") {
  PyramidKv m;
  m.window = 8, m.beta = 4;
  CHECK(pyramidkv_tokens(m, context(64, 200), 1, 4) == 80);
  m.layers = 2, m.layer = 1;
  CHECK(pyramidkv_tokens(m, context(64, 200), 1, 4) == 16);
  PyramidKv real;
  real.rule = PyramidKv::Rule::kvpress, real.window = 1, real.beta = 10;
  MethodContext s = context(10, 1000);
  s.budget.requested_tokens = 10.9;
  CHECK(pyramidkv_tokens(real, s, 0, 2) == 21);  // 20.71; from B = 10 it would be 19
  PyramidKv whole;
  whole.rule = PyramidKv::Rule::kvfactory, whole.window = 4, whole.beta = 7;
  // inner 33: mn 4, mx 62, falls by 58 / 3 = 19 a layer, window added
  CHECK(pyramidkv_tokens(whole, context(37, 200), 0, 4) == 66);
  CHECK(pyramidkv_tokens(whole, context(37, 200), 3, 4) == 9);
  CHECK(pyramidkv_tokens(whole, context(37, 60), 0, 4) == 37);  // P < 2 (capacity - w): plain snapkv
  PyramidKv none;
  none.layers = 3, none.layer = 3;
  CHECK_THROWS_AS(pyramidkv_tokens(none, context(64, 200), 0, 4), ParameterError);
}

TEST_CASE("Ada-KV gives the layer's budget to the largest scores and leaves a floor", "[alloc]") {
  const std::vector<HeadScores> heads = {scores({9, 8, 7, 6, 5}), scores({1, 2, 3, 0, 0})};
  CHECK(ada_tokens(heads, 3, 0) == Tokens{5, 1});
  CHECK(ada_tokens(heads, 3, 0.7) == Tokens{4, 2});  // floor(2.1) per head are guaranteed
  CHECK(ada_tokens(heads, 3, 1) == Tokens{3, 3});
  CHECK(ada_tokens(heads, 9, 0.2) == Tokens{5, 5});
}

TEST_CASE("Ada-KV leaves every head a token, however small the budget and alpha", "[alloc]") {
  const std::vector<HeadScores> heads = {scores({1, 2, 0, 1, 2}), scores({9, 8, 7, 6, 5})};
  CHECK(ada_tokens(heads, 2, 0.2) == Tokens{1, 3});  // floor(0.4) is 0
  CHECK(ada_tokens(heads, 1, 0) == Tokens{1, 1});
  CHECK(ada_tokens({scores({5}), scores({9, 8, 7, 6})}, 2, 0) == Tokens{1, 3});
}

TEST_CASE("Ada-KV breaks ties by head, and protected tokens are safe", "[alloc]") {
  CHECK(ada_tokens({scores({1, 1, 1, 1}), scores({1, 1, 1, 1})}, 2, 0) == Tokens{3, 1});
  const double safe = INFINITY;
  CHECK(ada_tokens({scores({9, 9, 9, 0, safe}), scores({0, 1, 2, safe, safe})}, 3, 0) == Tokens{4, 2});
  CHECK(ada_tokens({scores({9, safe, safe}), scores({0, safe, safe})}, 2, 0.5) == Tokens{2, 2});
}

TEST_CASE("Ada-KV's reference mixes counts with an equal share", "[alloc]") {
  AdaKv m;
  m.variant = AdaKv::Variant::reference;
  const double w = INFINITY;
  const std::vector<HeadScores> heads = {scores({8, 7, 6, 5, w}), scores({1, 5.5, 0, 0, w})};
  m.normalise = false, m.f = 0;
  CHECK(m.share(context(4, 5), heads) == Tokens{4 + 1, 2 + 1});  // base 3: 8 7 6 5 | 5.5 1
  m.f = 1;
  CHECK(m.share(context(4, 5), heads) == Tokens{4, 4});
  m.f = 0.5;  // round(4 / 2 + 1), round(2 / 2 + 1): floor(1.5) = 1
  CHECK(m.share(context(4, 5), heads) == Tokens{4, 3});
  CHECK(m.share(context(1, 5), heads) == Tokens{1, 1});
  // Head 0 has 15 of 26 in its top 2, head 1 all of its mass: 4.6 4.0 | 5.5 4.5, so that head 1 wins a place.
  m.f = 0, m.normalise = true;
  CHECK(m.share(context(3, 5), {heads[0], scores({4.5, 5.5, 0, 0, w})}) == Tokens{2 + 1, 2 + 1});
  m.normalise = false;
  CHECK(m.share(context(3, 5), {heads[0], scores({4.5, 5.5, 0, 0, w})}) == Tokens{3 + 1, 1 + 1});
}

TEST_CASE("CAKE's preferences share the budget of all layers", "[alloc]") {
  Cake m;
  m.window = 2;
  // H V: 1 * 3 and (1 + 2) * (0 + 3) = 9; (B - w) L = 16
  CHECK(m.share(context(10, 100), {says(0, 1, 3), says(2, 1, 0), says(2, 2, 3)}) == Tokens{4 + 2, 12 + 2, 12 + 2});
  m.tau1 = 0.5;  // H squared: 3 and 27, so 1.6 and 14.4 tokens; the token left by rounding goes to the lowest layer
  CHECK(m.share(context(10, 100), {says(0, 1, 3), says(1, 3, 3)}) == Tokens{2 + 2, 14 + 2});
  m.tau1 = 1, m.tau2 = 1;
  // 1 1 18 of 21, but at most P - w = 11: the 7 above go to the others in turn, lower layers first, and so does the
  // token left by rounding.
  CHECK(m.share(context(9, 13), {says(0, 1, 1), says(1, 1, 1), says(2, 6, 3)}) == Tokens{6 + 2, 4 + 2, 11 + 2});
  CHECK(m.share(context(10, 100), {says(0, 1, 0), says(1, 5, 0)}) == Tokens{10, 10});
}

TEST_CASE("CAKE spends the budget of all layers to the last token", "[alloc]") {
  Cake m;
  std::vector<HeadScores> layers;
  for (int32_t l = 0; l < 30; ++l) layers.push_back(says(l, 2 + std::sin(l), 1 + l % 7));
  for (const int32_t budget : {33, 128, 500, 990}) {
    const Tokens tokens = m.share(context(budget, 1000), layers);
    CHECK(std::accumulate(tokens.begin(), tokens.end(), 0) == 30 * budget);
    CHECK(*std::max_element(tokens.begin(), tokens.end()) <= 1000);
  }
}

TEST_CASE("CAKE scores mean plus gamma times variance of the window's rows", "[alloc]") {
  // Both rows attend to token 0 equally, but only one row attends to token 3.
  auto s = weighted_stream({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 12);
  s.shape.dim = 2;
  s.keys.assign(26, 0), s.queries.assign(26, 0);
  s.keys[0] = 1, s.keys[2 * 7 + 1] = 1;
  s.queries[2 * 10] = 1, s.queries[2 * 11] = 1, s.queries[2 * 11 + 1] = 1.2;
  const auto kept = [&](double gamma) {
    const nlohmann::json p = {{"w", 2}, {"gamma", gamma}};
    return kept_list(replay(s, {make_cell("cake", 3, {13, 12, 2, 1, 1}, p, default_options("cake"))}).only(), 0);
  };
  // Pooled over 5: token 2 has the most neighbours with token 0's score; 5, 6 and 7 all have token 7 as a neighbour.
  CHECK(kept(0) == Tokens{2, 10, 11});
  CHECK(std::abs(kept(200).front() - 6) <= 1);
}

TEST_CASE("ChunkKV keeps whole chunks, the last one short", "[alloc]") {
  CommonOptions options = default_options("chunkkv");
  CHECK(options.gqa_level == GqaLevel::layer);
  const auto s = weighted_stream({1, 10, 5, 5, 1, 1, 7, 1, 1, 8, 1}, 10);
  const nlohmann::json none = {{"name", "snapkv"}, {"window", 1}, {"kernel", 1}};
  // chunks of 2, in 40ths: means 5.5 5 1 4, and the window token is 1 above the largest of the others
  const nlohmann::json p = {{"chunk", 2}, {"scorer", none}};
  CHECK(kept_list(run(s, "chunkkv", 7, p, options), 0) == Tokens{0, 1, 2, 3, 8, 9});
  CHECK(kept_list(run(s, "chunkkv", 4, p, options), 0) == Tokens{0, 1, 8, 9});
  const CellResult least = run(s, "chunkkv", 1, {{"chunk", 4}, {"scorer", none}}, options);
  CHECK(kept_list(least, 0) == Tokens{8, 9});  // chunks of 4 4 2: at least one
  CHECK(least.measures.extras.at("realised_tokens") == 2);
  CHECK(kept_list(run(s, "chunkkv", 10, p, options), 0).size() == 10);
}

TEST_CASE("ChunkKV's chunks of protected tokens tie, however long they are", "[alloc]") {
  // The window of 11 is chunks 3 and 4, of five tokens, and the last chunk, of one.
  const auto s =
      weighted_stream({1.3, 1.7, 1, 1.1, 1.9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 26);
  const nlohmann::json p = {{"chunk", 5}, {"scorer", {{"name", "snapkv"}, {"window", 11}, {"kernel", 1}}}};
  const CellResult r = run(s, "chunkkv", 11, p, default_options("chunkkv"));  // 2 of 6 chunks
  CHECK(kept_list(r, 0) == Tokens{15, 16, 17, 18, 19, 20, 21, 22, 23, 24});
}

TEST_CASE("options implied by a scorer's variant hold for the method that wraps it", "[alloc]") {
  const auto implied = [](const char* method, const char* scorer, const char* variant) {
    return default_options(method, {{"scorer", {{"name", scorer}, {"variant", variant}}}});
  };
  for (const char* variant : {"layer", "kvpress"}) {
    CHECK(implied("hybrid", "tova", variant).gqa_level == GqaLevel::layer);
    CHECK(implied("hybrid", "tova", variant).gqa_aggregate == Aggregate::mean);
    CHECK(implied("chunkkv", "tova", variant).gqa_aggregate == Aggregate::mean);
    const nlohmann::json alike = {{"scorer", {{"name", "tova"}, {"variant", variant}}}};
    CHECK_THROWS_WITH(resolved_params("adakv", alike, context(64, 200)),
                      Catch::Contains("tova scores all kv heads of a layer alike"));
  }
  CHECK(implied("hybrid", "tova", "default").gqa_level == GqaLevel::kv);
  CHECK(implied("adakv", "snapkv", "kvpress").gqa_aggregate == Aggregate::mean);
  CHECK(implied("chunkkv", "snapkv", "kvpress").gqa_level == GqaLevel::layer);
}

TEST_CASE("a wrapped scorer is snapkv unless another one is named", "[alloc]") {
  CHECK(resolved_params("adakv", nlohmann::json::object(), context(64, 200)).at("scorer").at("name") == "snapkv");
  CHECK(resolved_params("adakv", {{"scorer", {{"name", "snapkv"}, {"window", 5}}}}, context(64, 200))
            .at("scorer")
            .at("window") == 5);
}

TEST_CASE("a file of budgets is rows of layer, kv head and tokens, or a table", "[alloc]") {
  const config_stub::Folder folder;
  const std::string path = (folder.path / "b.csv").string();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("layer, kv_head, tokens\r\n7,1,40\r\n7,0,33\n");
  CHECK(tokens_in_file(path, 7, 0, 2) == 33);
  CHECK(tokens_in_file(path, 7, 1, 2) == 40);
  CHECK_THROWS_WITH(tokens_in_file(path, 8, 1, 2), Catch::Contains("no tokens for layer 8, kv head 1"));
  write("20,31,40\n33,21,50\n");
  CHECK(tokens_in_file(path, 1, 2, 3) == 50);
  CHECK_THROWS_WITH(tokens_in_file(path, 2, 2, 3), Catch::Contains("no tokens for layer 2"));
  CHECK_THROWS_WITH(tokens_in_file(path, 0, 0, 2), Catch::Contains("b.csv:1: holds 3 numbers"));
  write("0,0,12\n0,1,many\n");
  CHECK_THROWS_WITH(tokens_in_file(path, 0, 0, 2), Catch::Contains("b.csv:2: every field"));
  write("0,0,-3\n");
  CHECK_THROWS_WITH(tokens_in_file(path, 0, 0, 2), Catch::Contains("b.csv:1: every field"));
  CHECK_THROWS_WITH(tokens_in_file(path + "x", 0, 0, 2), Catch::Contains("cannot be read"));
}

TEST_CASE("combinations of budgets that mean nothing are refused with a reason", "[alloc]") {
  const auto contains = [](const std::string& text) { return Catch::Contains(text); };
  CHECK_THAT(refused("{name: pyramidkv, allocator: ada}"),
             contains("pyramidkv shares its budget by a rule of its own"));
  CHECK_THAT(refused("{name: adakv, allocator: pyramid}"), contains("rule of its own"));
  CHECK_THAT(refused("{name: exact, allocator: pyramid}"), contains("takes no budget"));
  CHECK_THAT(refused("{name: topk_oracle, allocator: pyramid}"), contains("stores every token"));
  CHECK_THAT(refused("{name: window, allocator: ada}"), contains("window gives none"));
  CHECK_THAT(refused("{name: snapkv, allocator: ada, gqa.level: layer}"), contains("hold the same tokens"));
  CHECK_THAT(refused("{name: adakv, gqa.level: layer}"), contains("hold the same tokens"));
  CHECK_THAT(refused("{name: cake, gqa.level: query}"), contains("cache per query head"));
  CHECK_THAT(refused("{name: h2o, allocator: cake, gqa.level: query}"), contains("allocator cake compares kv heads"));
  CHECK_THAT(refused("{name: h2o, reweight: uniform}"), contains("h2o streams here"));
  CHECK_THAT(refused("{name: adakv, scorer: cake}"), contains("scorer"));
  for (const char* fine : {"{name: snapkv, allocator: pyramid, gqa.level: layer}", "{name: window, allocator: cake}",
                           "{name: snapkv, allocator: pyramid, gqa.level: query}", "{name: h2o, allocator: ada}"})
    CHECK(refused(fine) == "no error");
}
