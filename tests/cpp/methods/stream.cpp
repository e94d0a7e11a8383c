#include "methods/buzz.hpp"

#include "hand_streams.hpp"
#include "methods/keyformer.hpp"

// Scissorhands, TOVA, Keyformer, BUZZ and FastGen: numbers small enough to check by hand, and the laws of their sizes.
// In `weights`, one query head, one dimension, queries 1 and keys ln w make a token's attention proportional to its w.

using namespace kvreplay;
using namespace kvreplay::test;
using nlohmann::json;

namespace {

using Tokens = std::vector<int32_t>;

CellResult run(const HeadStream<double>& s, const std::string& method, std::optional<int32_t> budget,
               const json& params = json::object(), Phase phase = Phase::stream) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  CommonOptions options = default_options(method);
  options.phase = phase;
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}

std::string refusal(const std::string& method, const json& params, int32_t budget) {
  MethodContext context;
  context.budget.tokens = budget, context.prompt_tokens = 64, context.tokens = 96, context.shape = {8, 8, 1};
  try {
    resolved_params(method, params, context);
  } catch (const ParameterError& e) {
    return e.parameter + ": " + e.what();
  }
  return "";
}

// A cache without a trace, for policies that use only scores and token numbers.
struct BareCache {
  explicit BareCache(int32_t n)
      : token(size_t(n)), copies(size_t(n)), score(size_t(n)), mark(size_t(n)), cache(storage(n)) {
    cache.clear(team);
  }
  CacheStorage<double> storage(int32_t n) {
    CacheStorage<double> s;
    s.token = token.data(), s.copies = copies.data(), s.score = score.data(), s.mark = mark.data();
    s.counts = counts, s.capacity = n, s.shape = {1, 1, 1};
    return s;
  }
  SerialTeam team;
  Tokens token, copies;
  std::vector<double> score;
  std::vector<uint8_t> mark;
  int32_t counts[Count::kCounts] = {};
  BasicCache<double> cache;
};

// Sizes of the cache as tokens 0..tokens-1 arrive: attended tokens and tokens left after each step.
struct Sizes {
  std::vector<int32_t> attended, kept;
};
Sizes sizes_of(Buzz policy, int32_t budget, int32_t tokens) {
  MethodContext context;
  context.budget.tokens = budget, context.tokens = tokens, context.prompt_tokens = 1, context.shape = {1, 1, 1};
  policy.resolve(context);
  BareCache bare(tokens);
  const double nothing = 0;
  const Rng rng{3};
  Sizes sizes;
  for (int32_t t = 0; t < tokens; ++t) {
    bare.cache.push(Token<double>({&nothing, 1}, {&nothing, 1}, t));
    bare.cache.score(bare.cache.size() - 1) = rng.uniform(RngStream::synthetic_traces, t);
    sizes.attended.push_back(bare.cache.size());
    policy.evict(bare.team, bare.cache);
    sizes.kept.push_back(bare.cache.size());
  }
  return sizes;
}

}  // namespace

TEST_CASE("TOVA drops the token with the least attention of the present query, the newest included", "[stream]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);
  const CellResult r = run(s, "tova", 2);
  CHECK(kept_list(r, 0) == Tokens{2, 3});
  CHECK(kept_list(r, 1) == Tokens{2, 3});
  CHECK(kept_list(r, 2) == Tokens{3, 5});
  CHECK(*r.measures["peak_attended_tokens"] == 3);
  CHECK(kept_list(run(s, "tova", 2, {{"recent", 1}}), 1) == Tokens{3, 4});
  CHECK(kept_list(run(s, "tova", 2, {{"sinks", 1}}), 2) == Tokens{0, 5});
}

TEST_CASE("with equal attention TOVA keeps the oldest tokens", "[stream]") {
  CHECK(kept_list(run(weighted_stream({1, 1, 1, 1, 1}, 4), "tova", 2), 1) == Tokens{0, 1});
}

// Row means are 4, 2.5, 2, 2.5, then 3.25 over held tokens: token 1 is low in rows 1-3, token 2 in rows 2 and 3.
TEST_CASE("Scissorhands counts the rows in which a token is below the row's average", "[stream]") {
  const auto s = weighted_stream({4, 1, 1, 4, 4, 1}, 4);
  const CellResult r = run(s, "scissorhands", 3, {{"recent", 1}, {"drop", 1}});
  CHECK(kept_list(r, 0) == Tokens{0, 2, 3});
  CHECK(kept_list(r, 1) == Tokens{0, 3, 4});
  CHECK(kept_list(r, 2) == Tokens{0, 3, 5});  // 0, 3 and 4 tie: the highest index is evicted
  SECTION("only the last `hist` rows count: tokens 1 and 2 tie in the last one") {
    CHECK(kept_list(run(s, "scissorhands", 3, {{"recent", 1}, {"drop", 1}, {"hist", 1}}), 0) == Tokens{0, 1, 3});
  }
  SECTION("the count is a share of the rows that saw a token: 3 of 3 and 2 of 2 tie") {
    const json fraction = {{"recent", 1}, {"drop", 1}, {"variant", "fraction"}};
    CHECK(kept_list(run(s, "scissorhands", 3, fraction), 0) == Tokens{0, 1, 3});
  }
}

// Row means are 1.5, 2.33, 2.5, 3.4, 2.83: tokens 0 and 1 are low in many rows, 3 only in row 4, 5 in row 5.
TEST_CASE("a mark of Scissorhands counts for `hist` rows", "[stream]") {
  const auto s = weighted_stream({2, 1, 4, 3, 7, 1e-9, 1}, 6);
  json ends = {{"recent", 1}, {"drop", 1}, {"sinks", 1}};
  CHECK(kept_list(run(s, "scissorhands", 4, ends), 0) == Tokens{0, 2, 4, 5});
  ends["hist"] = 1;
  CHECK(kept_list(run(s, "scissorhands", 4, ends), 0) == Tokens{0, 2, 3, 5});  // 2, 3 and 4 tie
}

TEST_CASE("the size of Scissorhands lies between B + 1 - drop and B", "[stream]") {
  const StreamShape shape{.tokens = 160, .prompt = 64};
  for (const auto& [budget, drop] : {std::pair{40, 20}, {40, 1}, {21, 11}, {33, 7}}) {
    INFO("B=" << budget << " drop=" << drop);
    const CellResult r = run(make_stream<double>(shape, 4), "scissorhands", budget, {{"drop", drop}});
    int32_t least = 1 << 30, most = 0;
    for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) {
      const int32_t size = int32_t(r.kept.off[i + 1] - r.kept.off[i]);
      least = std::min(least, size), most = std::max(most, size);
    }
    CHECK(least == budget + 1 - drop);
    CHECK(most == budget);
    CHECK(*r.measures["aux_bytes"] == budget * (4 + 8 + 400 / 8));  // position, count and ring
  }
  CHECK(refusal("scissorhands", {{"drop", 31}}, 40).find("drop 31 exceeds the 30 unprotected tokens") !=
        std::string::npos);
  CHECK(refusal("scissorhands", json::object(), 9).find("recent: ") == 0);
}

TEST_CASE("the released Scissorhands rule has no budget and starts at token 100", "[stream]") {
  const json code = {{"variant", "authors_code"}};
  const StreamShape shape{.tokens = 180, .prompt = 60};
  const CellResult r = run(make_stream<double>(shape, 5), "scissorhands", std::nullopt, code);
  const auto size = [&](int32_t t) { return int32_t(kept_list(r, size_t(t - shape.prompt + 1)).size()); };
  CHECK(size(99) == 100);
  CHECK(*r.measures["peak_kept_tokens"] >= 100);
  for (int32_t t = 100; t < shape.tokens; ++t) {
    const Tokens kept = kept_list(r, size_t(t - shape.prompt + 1));
    for (int32_t i = 0; i < 10; ++i) CHECK(kept[kept.size() - 1 - size_t(i)] == t - i);
  }
  CHECK(refusal("scissorhands", {{"variant", "authors_code"}, {"hist", 50}}, 0).find("hist: ") == 0);
}

// k = 1, w = 1, s = 3, T = 3. A falls from old to new tokens, except that token 2 is heavy.
TEST_CASE("BUZZ keeps the heaviest of each segment and thins what it kept before", "[stream]") {
  const json sizes = {{"sinks", 1}, {"window", 1}, {"stride", 3}, {"threshold", 3}};
  const auto s = weighted_stream({1, 1, 9, 1, 1, 1, 1, 1}, 6);
  const CellResult r = run(s, "buzz", 5, sizes);
  CHECK(kept_list(r, 0) == Tokens{0, 2, 4, 5});     // segments 1-3 and 4
  CHECK(kept_list(r, 1) == Tokens{0, 2, 4, 5, 6});  // a middle of three stays
  CHECK(kept_list(r, 2) == Tokens{0, 2, 5, 7});     // old tokens 2 and 4 are thinned by two; segment 5-6
  SECTION("paper fires at the threshold") {
    json paper = sizes;
    paper["variant"] = "paper";
    const CellResult p = run(s, "buzz", 5, paper);
    CHECK(kept_list(p, 0) == Tokens{0, 2, 4, 5});
    CHECK(kept_list(p, 1) == Tokens{0, 2, 5, 6});
  }
  SECTION("no_max keeps the first of a segment, swap thins old ones by s and cuts new ones by shat") {
    json mode = sizes;
    mode["mode"] = "no_max";
    CHECK(kept_list(run(s, "buzz", 5, mode), 0) == Tokens{0, 1, 4, 5});
    mode["mode"] = "swap";
    const CellResult swap = run(s, "buzz", 5, mode);
    CHECK(kept_list(swap, 0) == Tokens{0, 2, 3, 5});  // segments 1-2 and 3-4
    CHECK(kept_list(swap, 2) == Tokens{0, 2, 5, 7});
  }
}

TEST_CASE("the sizes of BUZZ follow its recursion for 20000 steps", "[stream]") {
  const int32_t sinks = 4, window = 37, threshold = 200, budget = sinks + window + threshold;
  for (const auto& [stride, fixed] : {std::pair{5, 47}, {4, 68}, {3, 81}, {8, 0}, {11, 0}})
    for (const auto variant : {Buzz::Variant::reference, Buzz::Variant::paper}) {
      INFO("s=" << stride << " variant " << int(variant));
      Buzz buzz;
      buzz.stride = stride, buzz.window = window, buzz.threshold = threshold, buzz.variant = variant;
      const Sizes sizes = sizes_of(buzz, budget, 20000);
      const auto law = theory::Buzz::of(sinks, window, stride, threshold, variant);
      CHECK(*std::max_element(sizes.attended.begin(), sizes.attended.end()) == law.peak_attended());
      int64_t a = 0, passes = 0;
      double sum = 0;
      bool follows = true;
      for (size_t t = 0; t < sizes.kept.size(); ++t) {
        sum += sizes.kept[t];
        if (sizes.kept[t] == sizes.attended[t]) continue;
        a = law.next_pass(a);
        ++passes;
        follows = follows && sizes.attended[t] == law.peak_attended() && sizes.kept[t] == sinks + window + a;
      }
      CHECK(follows);
      CHECK(passes > 100);
      if (fixed != 0 && variant == Buzz::Variant::reference) CHECK(a == fixed);
      if (fixed != 0) CHECK(std::abs(a - fixed) <= 1);  // paper, s = 4 alternates between 67 and 68
      CHECK(a >= law.limit().low);
      CHECK(a <= law.limit().high);
      CHECK(sum / 20000 == Approx(law.mean_size()).epsilon(0.02));
    }
}

TEST_CASE("window and threshold of BUZZ have the ratio of its parameter rule", "[stream]") {
  for (const int32_t stride : {3, 4, 5, 6, 9}) {
    MethodContext context;
    context.budget.tokens = 1000004, context.prompt_tokens = 64, context.tokens = 96, context.shape = {8, 8, 1};
    const json p = resolved_params("buzz", {{"stride", stride}}, context);
    const double rho = stride % 2 ? (stride * stride + 1.0) / (stride + 1) : stride - 1.0;
    CHECK(p["threshold"].get<double>() / p["window"].get<double>() == Approx(rho).epsilon(1e-4));
    CHECK(p["threshold"].get<int>() + p["window"].get<int>() == 1000000);
  }
}

TEST_CASE("a single pass of BUZZ over a long prompt leaves more than the budget, until_fit does not", "[stream]") {
  const StreamShape shape{.tokens = 912, .prompt = 900, .dim = 2, .v_dim = 2, .heads = 1};
  const json sizes = {{"window", 50}, {"threshold", 125}, {"stride", 3}};
  const auto s = make_stream<double>(shape, 6);
  CHECK(*run(s, "buzz", 179, sizes).measures["peak_attended_tokens"] == 337);
  json fit = sizes;
  fit["prefill_passes"] = "until_fit";
  CHECK(*run(s, "buzz", 179, fit).measures["peak_attended_tokens"] <= 180);
  fit["prefill_passes"] = "chunked";
  CHECK(*run(s, "buzz", 179, fit).measures["peak_kept_tokens"] <= 179);
}

TEST_CASE("BUZZ reaches k + w + T + 1 attended tokens, its paper variant k + w + T", "[stream]") {
  const StreamShape shape{.tokens = 200, .prompt = 64};
  for (const int32_t budget : {10, 24, 41}) {
    const auto s = make_stream<double>(shape, 7);
    const json fit = {{"prefill_passes", "until_fit"}}, paper = {{"variant", "paper"}};
    CHECK(*run(s, "buzz", budget, fit).measures["peak_attended_tokens"] == budget + 1);
    CHECK(*run(s, "buzz", budget, paper).measures["peak_attended_tokens"] == budget);
    CHECK(*run(s, "buzz", budget, paper).measures["peak_kept_tokens"] == budget - 1);
  }
}

TEST_CASE("without the maximum BUZZ does not depend on scores", "[stream]") {
  const StreamShape shape{.tokens = 150, .prompt = 64};
  const auto one = make_stream<double>(shape, 8), other = make_stream<double>(shape, 9);
  const json no_max = {{"mode", "no_max"}};
  CHECK(run(one, "buzz", 24, no_max).kept.flat == run(other, "buzz", 24, no_max).kept.flat);
  CHECK(run(one, "buzz", 24).kept.flat != run(other, "buzz", 24).kept.flat);
}

TEST_CASE("BUZZ refuses strides that never thin old tokens, and sizes that miss the budget", "[stream]") {
  CHECK(refusal("buzz", {{"stride", 2}}, 40).find("stride: stride 2 keeps every old token") == 0);
  CHECK(refusal("buzz", {{"window", 10}, {"threshold", 20}}, 40).find("window: ") == 0);
  CHECK(refusal("buzz", json::object(), 9).find("sinks: ") == 0);
  CHECK(refusal("buzz", json::object(), 10).empty());
}

TEST_CASE("log n multiplies the logits by ln L / ln 512", "[stream]") {
  const auto s = weighted_stream({1, 2, 4, 8, 16}, 3);
  const CellResult r = run(s, "exact", std::nullopt, {{"log_n", "live"}});
  const double f = std::log(4.0) / std::log(512.0);
  double num = 0, den = 0;
  for (int i = 0; i < 4; ++i) num += i * std::pow(2.0, i * f), den += std::pow(2.0, i * f);
  CHECK(output(r, 0, 0)[0] == Approx(num / den));
  CHECK(run(s, "exact", std::nullopt, {{"log_n", "context"}}).out == r.out);
  CHECK(relative_difference(run(s, "buzz", 100, {{"log_n", "live"}}).out, r.out) < 1e-12);
  CHECK(*run(s, "exact", std::nullopt).measures["rel_err_out_max"] < 1e-12);
}

TEST_CASE("Keyformer without noise and temperature is H2O with its window", "[stream]") {
  const auto s = make_stream<double>({}, 10);
  const json plain = {{"noise", false}, {"tau_end", 1.0}, {"recent_frac", 0.25}};
  CHECK(run(s, "keyformer", 24, plain).kept.flat == run(s, "h2o", 24, {{"recent", 6}, {"heavy", 18}}).kept.flat);
  CHECK(run(s, "keyformer", 24).kept.flat != run(s, "h2o", 24, {{"recent", 7}, {"heavy", 17}}).kept.flat);
}

namespace {

// f of the prompt after row t, with probabilities p.
std::vector<double> keyformer_row(Keyformer policy, uint32_t seed, const std::vector<double>& p) {
  const int32_t n = int32_t(p.size());
  MethodContext context;
  context.budget.tokens = n, context.prompt_tokens = n, context.tokens = n + 4, context.shape = {1, 1, 1};
  policy.resolve(context);
  std::vector<double> state(size_t(policy.layout(context).state_doubles));
  policy.state = state;
  policy.rng.seed = seed;
  policy.observe_prompt(SerialTeam{}, n - 1, {p.data(), 1, n});
  return {state.end() - n, state.end()};
}

}  // namespace

TEST_CASE("Keyformer's temperature is an exponent of the probabilities", "[stream]") {
  Keyformer policy;
  policy.noise = false, policy.tau_init = 2;
  const auto f = keyformer_row(policy, 0, {0.2, 0.8});
  CHECK(f[0] == Approx(1 / 3.0));
  CHECK(f[1] == Approx(2 / 3.0));
}

// Gumbel-max: at a small temperature the noisy softmax is one at argmax(l + g), which is i with probability p_i.
// Chi-square with 2 degrees of freedom exceeds 18.4 in one of 10^4 tests.
TEST_CASE("Keyformer's noise is Gumbel noise", "[stream]") {
  Keyformer policy;
  policy.tau_init = 1e-5;
  const std::vector<double> p = {0.1, 0.2, 0.7};
  const int draws = 3000;
  std::vector<double> won(3);
  for (int seed = 0; seed < draws; ++seed) {
    const auto f = keyformer_row(policy, uint32_t(seed), p);
    won[size_t(std::max_element(f.begin(), f.end()) - f.begin())] += 1;
  }
  double chi = 0;
  for (size_t i = 0; i < 3; ++i) chi += std::pow(won[i] - draws * p[i], 2) / (draws * p[i]);
  CHECK(chi < 18.4);
}

// Token 0 is special, tokens 4, 10, ... are punctuation (make_stream).
TEST_CASE("FastGen takes the cheapest policy that keeps enough", "[stream]") {
  std::vector<double> w(20, 1e-6);
  const auto chosen = [&](const CellResult& r) { return int(r.measures.extras.at("candidate")); };
  SECTION("only special tokens") {
    w[0] = 1;
    const CellResult r = run(weighted_stream(w, 12), "fastgen", std::nullopt);
    CHECK(chosen(r) == 0);
    CHECK(r.measures.extras.at("recovered_mass") > 0.99);
    CHECK(kept_list(r, 0) == Tokens{0});
    CHECK(kept_list(r, 8) == Tokens{0});
    CHECK(*r.measures["peak_attended_tokens"] == 2);
  }
  SECTION("punctuation") {
    w[0] = w[4] = 1;
    const CellResult r = run(weighted_stream(w, 12), "fastgen", std::nullopt, {{"recent", 1}});
    CHECK(chosen(r) == 1);
    CHECK(kept_list(r, 0) == Tokens{0, 4, 10, 11});
    CHECK(kept_list(r, 6) == Tokens{0, 4, 10, 16, 17});
  }
  SECTION("heavy hitters: floor(0.3 * 12) = 3 of them") {
    w[0] = w[2] = w[3] = 1;
    const CellResult r = run(weighted_stream(w, 12), "fastgen", std::nullopt);
    CHECK(chosen(r) == 2);
    CHECK(kept_list(r, 0) == Tokens{0, 2, 3, 4, 10});
  }
  SECTION("everything") {
    const CellResult r = run(weighted_stream(std::vector<double>(20, 1.0), 12), "fastgen", std::nullopt);
    CHECK(chosen(r) == 4);
    CHECK(r.measures.extras.at("recovered_mass") == 1);
    CHECK(*r.measures["n_evictions"] == 0);
  }
  SECTION("the local window") {
    const json enough = {{"recovery", 0.68}};  // mass 0.667 without the window, 0.697 with it
    const CellResult r = run(weighted_stream(std::vector<double>(20, 1.0), 12), "fastgen", std::nullopt, enough);
    CHECK(chosen(r) == 3);
    CHECK(kept_list(r, 0) == Tokens{0, 1, 2, 4, 9, 10, 11});
    CHECK(kept_list(r, 1) == Tokens{0, 1, 2, 4, 10, 11, 12});
  }
}

TEST_CASE("a streamed FastGen prompt ends with the same choice", "[stream]") {
  std::vector<double> w(20, 0.2);
  w[0] = 8, w[3] = 3;
  const auto s = weighted_stream(w, 12);
  const json params = {{"recovery", 0.7}};
  const StreamShape shape{s.tokens, s.prompt, 1, 1, 1};
  const CellResult r = replay(s, {streamed(make_cell("fastgen", std::nullopt, shape, params))}).only();
  const CellResult cut = run(s, "fastgen", std::nullopt, params);
  CHECK(r.measures.extras.at("candidate") == cut.measures.extras.at("candidate"));
  CHECK(r.measures.extras.at("recovered_mass") == Approx(cut.measures.extras.at("recovered_mass")));
  CHECK(r.kept.flat == cut.kept.flat);
}
