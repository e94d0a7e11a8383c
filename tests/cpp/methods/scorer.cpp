#include <algorithm>

#include "support.hpp"

// Methods that score tokens by keys, values and queries of the prompt, or pages by their bounds, on numbers small
// enough to check by hand.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;
using Numbers = std::vector<double>;
using nlohmann::json;

// A stream of one query head without rotary embedding. Keys and values are row after row; queries are 1.
HeadStream<double> stream_of(const Numbers& keys, const Numbers& values, int32_t prompt, int32_t dim = 1) {
  const int32_t n = int32_t(keys.size()) / dim;
  HeadStream<double> s =
      make_stream<double>({.tokens = n, .prompt = prompt, .dim = dim, .v_dim = int32_t(values.size()) / n, .heads = 1});
  s.keys = keys;
  s.values = values;
  s.rule.scale = 1;
  std::fill(s.queries.begin(), s.queries.end(), 1.0);
  return s;
}
HeadStream<double> keys_of(const Numbers& keys, int32_t prompt, int32_t dim = 1) {
  return stream_of(keys, Numbers(keys.size() / size_t(dim), 1.0), prompt, dim);
}

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget,
               const json& params = json::object(), std::optional<Phase> phase = {}) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  CommonOptions options = default_options(method);
  if (phase) options.phase = *phase;
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}
Tokens kept(const HeadStream<double>& s, const std::string& method, int32_t budget,
            const json& params = json::object()) {
  return kept_list(run(s, method, budget, params), 0);
}

}  // namespace

TEST_CASE("knorm keeps the smallest keys, the lower index among equal ones", "[scorer]") {
  const auto s = keys_of({3, -1, 2, -4, .5, 1, 7}, 6);
  CHECK(kept(s, "knorm", 3) == Tokens{1, 4, 5});
  CHECK(kept(s, "knorm", 2) == Tokens{1, 4});
  CHECK(kept(s, "knorm", 2, {{"recent", 1}}) == Tokens{4, 5});
  CHECK(kept(s, "knorm", 3, {{"sinks", 1}}) == Tokens{0, 1, 4});
}

TEST_CASE("knorm that streams judges every new token at once", "[scorer]") {
  const auto s = keys_of({3, 1, 2, 9, .5}, 3);
  const CellResult r = run(s, "knorm", 2, json::object(), Phase::stream);
  CHECK(kept_list(r, 1) == Tokens{1, 2});  // token 9 is evicted in its own step
  CHECK(kept_list(r, 2) == Tokens{1, 4});
  CHECK(output(r, 0, 0)[0] == Approx(1));
}

TEST_CASE("knorm leaves skipped layers exact in both phases", "[scorer]") {
  const auto s = keys_of({3, -1, 2, -4, .5, 1, 7, 2}, 6);
  for (const Phase phase : {Phase::stream, Phase::oneshot}) {
    const CellResult r = run(s, "knorm", 2, {{"skip_layers", {0}}}, phase),
                     other = run(s, "knorm", 2, {{"skip_layers", {1}}}, phase);
    CHECK(*r.measures["n_evictions"] == 0);
    CHECK(*r.measures["peak_kept_tokens"] == 8);
    CHECK(*r.measures["rel_err_out_max"] < 1e-12);
    CHECK(*other.measures["n_evictions"] > 0);
  }
}

TEST_CASE("methods that collapse when they stream without recent tokens have a warning", "[scorer]") {
  for (const std::string name : {"knorm", "keydiff"}) {
    const auto warning = [&](const json& params, const CommonOptions& options) {
      return values_of(*find_method(registry(), name), params).warning(options);
    };
    CommonOptions streaming;
    CHECK(warning(json::object(), streaming).find("recent") != std::string::npos);
    CHECK(warning({{"recent", 4}}, streaming).empty());
    CHECK(warning(json::object(), default_options(name)).empty());
  }
}

// Unit keys a, a, a, b with a = (1, 0), b = (0, 1). Cosines to the anchor (3, 1)/4 are 0.95 and 0.32.
TEST_CASE("keydiff keeps the direction that is rare", "[scorer]") {
  const auto s = keys_of({2, 0, 1, 0, 5, 0, 0, 7, 1, 1}, 4, 2);
  CHECK(kept(s, "keydiff", 1) == Tokens{3});
  CHECK(kept(s, "keydiff", 2) == Tokens{0, 3});
  CHECK(kept(s, "keydiff", 2, {{"recent", 1}}) == Tokens{0, 3});
  CHECK(kept(s, "keydiff", 2, {{"sinks", 1}, {"recent", 0}}) == Tokens{0, 3});
}

TEST_CASE("a zero key has cosine 0 to keydiff's anchor", "[scorer]") {
  CHECK(kept(keys_of({2, 0, 0, 0, 5, 0, 0, 7, 1, 1}, 4, 2), "keydiff", 2) == Tokens{1, 3});
  CHECK(kept(keys_of({0, 0, 0, 0}, 3), "keydiff", 2) == Tokens{0, 1});
}

// Signs + + - - : over all four keys the anchor is 0. In blocks of one, - is rare when it first arrives.
TEST_CASE("keydiff in blocks rescores what it holds with each block", "[scorer]") {
  const auto s = keys_of({1, 2, -1, -3, 1}, 4);
  CHECK(kept(s, "keydiff", 2) == Tokens{0, 1});
  CHECK(kept(s, "keydiff", 2, {{"block", 1}}) == Tokens{0, 2});
  CHECK(kept(s, "keydiff", 2, {{"block", 2}}) == Tokens{0, 1});
}

// Queries 1, 3, 1, 3: mu = 2, variance 1, so z = 2k + k^2/2.
TEST_CASE("expected attention combines the mean of the queries and their spread", "[scorer]") {
  auto s = keys_of({0, 1, -5, .5, 0}, 4);
  s.queries = {1, 3, 1, 3, 1};
  const json plain{{"sinks", 0}}, no_spread{{"sinks", 0}, {"covariance", false}};
  CHECK(kept(s, "expected_attention", 2, plain) == Tokens{1, 2});  // z = 0, 2.5, 2.5, 1.125
  CHECK(kept(s, "expected_attention", 1, plain) == Tokens{1});
  CHECK(kept(s, "expected_attention", 2, no_spread) == Tokens{1, 3});  // z = 0, 2, -10, 1
}

TEST_CASE("expected attention ignores the queries of the sinks and keeps their tokens", "[scorer]") {
  auto s = keys_of({-9, 1, 2, 3, 0}, 4);
  s.queries = {-1000, 1, 1, 1, 1};
  CHECK(kept(s, "expected_attention", 2, {{"sinks", 1}}) == Tokens{0, 3});
  CHECK(kept(s, "expected_attention", 2, {{"sinks", 0}, {"covariance", false}}) == Tokens{0, 1});
}

// Probabilities e^0, e^1, e^2 over 11.1 are 0.09, 0.24, 0.67; values are 8, 1, 1.
TEST_CASE("expected attention multiplies by the norm of the value, after adding eps", "[scorer]") {
  const auto s = stream_of({0, 1, 2, 0}, {8, 1, 1, 1}, 3);
  const auto first = [&](json more) {
    more.update({{"sinks", 0}});
    return kept(s, "expected_attention", 1, more);
  };
  CHECK(first({}) == Tokens{0});  // 0.72 against 0.67
  CHECK(first({{"vnorm", false}}) == Tokens{2});
  const auto close = stream_of({0, 1, 2, 0}, {7, 1, 1, 1}, 3);
  CHECK(kept(close, "expected_attention", 1, {{"sinks", 0}}) == Tokens{2});  // 0.63 against 0.67
  CHECK(kept(close, "expected_attention", 1, {{"sinks", 0}, {"eps", .01}}) == Tokens{0});
}

// All un-rotated queries are (1, 0). One position after P = 4 they are rotated by 4 quarter turns and a half.
TEST_CASE("expected attention rotates the queries to future positions", "[scorer]") {
  const double w = .5;
  auto s = keys_of({1, 0, std::cos(4 * w), std::sin(4 * w), 0, 1, -1, 0, 0, 0}, 4, 2);
  s.inv_freq = {w};
  for (int32_t t = 0; t < 5; ++t)
    s.queries[size_t(2 * t)] = std::cos(t * w), s.queries[size_t(2 * t + 1)] = std::sin(t * w);
  const json one{{"sinks", 0}, {"n_future", 1}};
  CHECK(kept(s, "expected_attention", 1, one) == Tokens{1});
  for (auto& p : s.positions) p += 100;  // only distances matter
  CHECK(kept(s, "expected_attention", 1, one) == Tokens{1});
  s.inv_freq.clear();
  for (int32_t t = 0; t < 5; ++t) s.queries[size_t(2 * t)] = 1, s.queries[size_t(2 * t + 1)] = 0;
  CHECK(kept(s, "expected_attention", 1, one) == Tokens{0});
}

// The reference is (0, 0), (1, 1). The spread of (0, 1) is 0.71, of (.5, .5) 0. Values are equal.
TEST_CASE("LagKV ranks a chunk by its spread on the scale of the next", "[scorer]") {
  const json two{{"sinks", 0}, {"lag", 2}};
  CHECK(kept(keys_of({0, 1, .5, .5, 0, 0, 1, 1, 0, 0}, 4, 2), "lagkv", 3, two) == Tokens{0, 2, 3});
  CHECK(kept(keys_of({.5, .5, 0, 1, 0, 0, 1, 1, 0, 0}, 4, 2), "lagkv", 3, two) == Tokens{1, 2, 3});
  CHECK(kept(keys_of({1, 0, 0, 1, 0, 0, 1, 1, 0, 0}, 4, 2), "lagkv", 3, two) == Tokens{0, 2, 3});
}

TEST_CASE("LagKV scores values as it scores keys", "[scorer]") {
  const Numbers still(10, 1.0);
  CHECK(kept(stream_of(still, {.5, .5, 0, 1, 0, 0, 1, 1, 0, 0}, 4, 2), "lagkv", 3, {{"sinks", 0}, {"lag", 2}}) ==
        Tokens{1, 2, 3});
}

TEST_CASE("LagKV keeps sinks and the most recent tokens of a short prompt", "[scorer]") {
  const auto s = keys_of({1, 2, 3, 4, 5, 6}, 5);
  CHECK(kept(s, "lagkv", 3, {{"sinks", 1}, {"lag", 3}}) == Tokens{0, 3, 4});
  CHECK(kept(s, "lagkv", 3, {{"sinks", 1}, {"lag", 1000}}) == Tokens{0, 3, 4});
}

// In blocks of two, the shares of ||k||^2 are .2 .8 .5 .5 and those of ||v||^2 are .5 .5 .8 .2.
TEST_CASE("CurDKV multiplies the shares of keys and values in their block", "[scorer]") {
  const auto s = stream_of({1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}, 4);
  const json two{{"sinks", 0}, {"block", 2}};
  CHECK(kept(s, "curdkv", 2, two) == Tokens{1, 2});
  CHECK(kept(s, "curdkv", 1, two) == Tokens{1});
  CHECK(kept(s, "curdkv", 3, two) == Tokens{0, 1, 2});
  CHECK(kept(s, "curdkv", 1, {{"sinks", 0}, {"block", 4}}) == Tokens{1});
  CHECK(kept(s, "curdkv", 2, {{"sinks", 1}, {"block", 2}}) == Tokens{0, 1});
  CHECK(kept(keys_of({0, 0, 0, 0}, 3), "curdkv", 2, two) == Tokens{0, 1});  // nothing to divide by
}

// Every row of a chunk puts w / sum(w) on a key e^l = w.
TEST_CASE("non-causal scores look ahead, have no scale factor, and are pooled over three tokens", "[scorer]") {
  Numbers keys{0, 0, std::log(5), 0, 0, 0, 0};
  auto s = keys_of(keys, 6);
  s.rule.scale = 1e-3;
  CHECK(kept(s, "noncausal", 3) == Tokens{1, 2, 3});  // 1 1 5 1 1 1 pooled: 2 7 7 7 3 2
  CHECK(kept(s, "noncausal", 4) == Tokens{1, 2, 3, 4});
  CHECK(kept(s, "noncausal", 4, {{"recent", 1}}) == Tokens{1, 2, 3, 5});
  CHECK(kept(stream_of(keys, {1, 1, 0, 1, 1, 9, 1}, 6), "noncausal", 2) == Tokens{4, 5});  // 2 2 2 2 11 10
}

// Token 0 takes nearly all mass of the first 256 tokens; the last three tokens form a separate chunk.
TEST_CASE("non-causal scores stay inside chunks of 256 tokens", "[scorer]") {
  Numbers keys(260, 0.0);
  keys[0] = std::log(1000);
  CHECK(kept(keys_of(keys, 259), "noncausal", 3) == Tokens{0, 1, 257});
}

TEST_CASE("one decision for a layer scores each kv head with its own keys and values", "[scorer]") {
  const StreamShape shape{.tokens = 40, .prompt = 30, .heads = 1};
  for (const std::string method : {"expected_attention", "noncausal"}) {
    const auto one = make_stream<double>(shape, 5, Look::clustered),
               other = make_stream<double>(shape, 6, Look::clustered);
    const auto decided = [&](double of_one, double of_other) {
      auto layer = layer_of(one, other);
      for (size_t i = 0; i < layer.values.size(); ++i)
        layer.values[i] *= i < layer.values.size() / 2 ? of_one : of_other;
      CommonOptions options = default_options(method);
      options.gqa_level = GqaLevel::layer;
      return kept_list(replay(layer, {make_cell(method, 12, shape, json::object(), options)}).only(), 0);
    };
    INFO(method);
    CHECK(decided(1, 0) == kept(one, method, 12));
    CHECK(decided(0, 1) == kept(other, method, 12));
  }
}

// Pages of two: 5 -9 | 1 1 | 2 2 | 3 3 | 0 10; the last page is half full at first.
TEST_CASE("Quest reads the pages that could hold the largest inner products", "[scorer]") {
  auto s = keys_of({5, -9, 1, 1, 2, 2, 3, 3, 0, 10}, 8);
  const json two{{"page", 2}, {"dense_layers", json::array()}};
  const auto read = [&](size_t row) {
    const TokenLists lists = run(s, "quest", 6, two).attended;
    return Tokens(lists.flat.begin() + lists.off[row], lists.flat.begin() + lists.off[row + 1]);
  };
  CHECK(read(0) == Tokens{0, 1, 4, 5, 6, 7});  // bounds 5 1 2 3 0: the newest token is not read
  CHECK(read(1) == Tokens{0, 1, 6, 7, 8, 9});  // 5 1 2 3 10
  std::fill(s.queries.begin(), s.queries.end(), -1.0);
  CHECK(read(1) == Tokens{0, 1, 2, 3, 8, 9});  // 9 -1 -2 -3 0
}

TEST_CASE("Quest's bounds hold, the best pages are read, and all pages are exact attention", "[scorer]") {
  const StreamShape shape{.tokens = 90, .prompt = 61, .heads = 1};
  for (const int32_t page : {1, 5, 16})
    for (const Look look : {Look::gaussian, Look::sinks, Look::zero_rows, Look::huge_norms}) {
      const auto s = make_stream<double>(shape, 31, look);
      const json params{{"page", page}, {"dense_layers", json::array()}};
      const CellResult r = run(s, "quest", 20, params);
      for (size_t row = 0; row < r.rows.size(); ++row) {
        const int32_t t = r.rows[row];
        std::vector<std::pair<double, int32_t>> pages;  // minus the bound, page
        for (int32_t first = 0; first <= t; first += page) {
          double bound = 0, most = -1e300;
          for (int32_t c = 0; c < s.shape.dim; ++c) {
            double best = -1e300;
            for (int32_t i = first; i <= t && i < first + page; ++i)
              best = std::max(best, s.query(0, t)[c] * s.keys[size_t(i * s.shape.dim + c)]);
            bound += best;
          }
          for (int32_t i = first; i <= t && i < first + page; ++i) {
            double dot = 0;
            for (int32_t c = 0; c < s.shape.dim; ++c) dot += s.query(0, t)[c] * s.keys[size_t(i * s.shape.dim + c)];
            most = std::max(most, dot);
          }
          REQUIRE(bound >= most - 1e-9);
          pages.emplace_back(-bound, first / page);
        }
        std::stable_sort(pages.begin(), pages.end());
        pages.resize(std::min(pages.size(), size_t(std::max(3, 20 / page))));
        Tokens expected;
        for (const auto& [bound, p] : pages)
          for (int32_t i = p * page; i <= t && i < (p + 1) * page; ++i) expected.push_back(i);
        std::sort(expected.begin(), expected.end());
        REQUIRE(Tokens(r.attended.flat.begin() + r.attended.off[row],
                       r.attended.flat.begin() + r.attended.off[row + 1]) == expected);
      }
      CHECK(*run(s, "quest", shape.tokens + page, params).measures["rel_err_out_max"] < 1e-12);
    }
}

TEST_CASE("Quest stores the full cache once, and the extremes of its pages per kv head", "[scorer]") {
  const StreamShape shape{.tokens = 90, .prompt = 61, .heads = 2};
  const auto s = make_stream<double>(shape, 32);
  const CellResult r = run(s, "quest", 20, {{"dense_layers", json::array()}}), dense = run(s, "quest", 20);
  CHECK(*r.measures["peak_bytes"] == *r.measures["full_bytes"]);
  CHECK(*r.measures["aux_bytes"] == 6 * 2 * shape.dim * s.stored_bytes);
  CHECK(*r.measures["mean_attended_tokens"] <= 48);
  CHECK(*dense.measures["aux_bytes"] == 0);
  CHECK(*dense.measures["rel_err_out_max"] < 1e-12);
}

TEST_CASE("Quest's group bound is the sum over the query heads", "[scorer]") {
  const StreamShape shape{.tokens = 90, .prompt = 61, .dim = 1, .heads = 2};
  auto s = make_stream<double>(shape, 33);
  const int64_t head = int64_t(s.tokens) * s.shape.dim;
  for (int64_t i = 0; i < head; ++i) s.queries[size_t(head + i)] = -s.queries[size_t(i)];
  CommonOptions options = default_options("quest");
  CHECK(options.gqa_level == GqaLevel::query);
  options.gqa_level = GqaLevel::kv;
  // With opposite queries the bound is the width of the page along |q|, which is 0 for a page of one token.
  const json params{{"page", 1}, {"dense_layers", json::array()}};
  const CellResult r = replay(s, {make_cell("quest", 4, shape, params, options)}).only();
  for (size_t row = 0; row < r.rows.size(); ++row)
    CHECK(Tokens(r.attended.flat.begin() + r.attended.off[row], r.attended.flat.begin() + r.attended.off[row + 1]) ==
          Tokens{0, 1, 2, 3});
}
