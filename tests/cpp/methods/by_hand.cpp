#include <unistd.h>

#include <filesystem>

#include "hand_streams.hpp"
#include "trace/h5_file.hpp"

// Numbers small enough to check by hand: one query head, one dimension, queries 1 and keys ln w, so a token's attention
// is proportional to its w.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget,
               const nlohmann::json& params = nlohmann::json::object(), const std::string& uniforms = {}) {
  const StreamShape shape{s.tokens, s.prompt, 1, 1, 1};
  CommonOptions options = default_options(method);
  options.positions = Positions::original;
  const Cell cell =
      changed(make_cell(method, budget, shape, params, options), [&](Variant& v) { v.uniforms = uniforms; });
  const CellResult r = replay(s, {cell}).only();
  REQUIRE(r.ok);
  return r;
}

}  // namespace

TEST_CASE("window keeps the last tokens, streaming_llm the first as well", "[hand]") {
  const auto s = weighted_stream({1, 1, 1, 1, 1, 1, 1, 1}, 6);
  const CellResult window = run(s, "window", 3), sinks = run(s, "streaming_llm", 4, {{"sinks", 2}});
  CHECK(kept_list(window, 0) == Tokens{3, 4, 5});
  CHECK(kept_list(window, 2) == Tokens{5, 6, 7});
  CHECK(kept_list(sinks, 0) == Tokens{0, 1, 4, 5});
  CHECK(kept_list(sinks, 2) == Tokens{0, 1, 6, 7});
  CHECK(output(window, 0, 0)[0] == Approx((3 + 4 + 5 + 6) / 4.0));  // attends to B + 1 tokens
}

// A after the prompt: 1 + 1/3 + 1/7 + 1/15, 2/3 + 2/7 + 2/15, 4/7 + 4/15, 8/15.
TEST_CASE("H2O adds up attention, keeps the heaviest and the recent", "[hand]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);
  const CellResult r = run(s, "h2o", 2);
  CHECK(kept_list(r, 0) == Tokens{0, 3});
  CHECK(kept_list(r, 1) == Tokens{0, 4});  // A of token 0: 1.54 + 1/10; of token 3: 8/15 + 8/10
  CHECK(kept_list(r, 2) == Tokens{0, 5});
  CHECK(output(r, 0, 0)[0] == Approx((0 * 1 + 3 * 8 + 4 * 1) / 10.0));
  CHECK(*r.measures["kept_mass_mean"] == Approx((10 / 16.0 + 32 / 46.0) / 2));
}

TEST_CASE("with equal attention H2O keeps the oldest, which more rows have seen", "[hand]") {
  const CellResult r = run(weighted_stream({1, 1, 1, 1, 1, 1}, 5), "h2o", 4);
  CHECK(kept_list(r, 0) == Tokens{0, 1, 3, 4});
}

TEST_CASE("H2O with a recent share of one is the window", "[hand]") {
  const auto s = weighted_stream({9, 2, 4, 8, 1, 3, 7}, 4);
  CHECK(run(s, "h2o", 3, {{"recent_frac", 1.0}}).kept.flat == run(s, "window", 3).kept.flat);
}

// Sums 1.54, 1.09, 0.84, 0.53 over 4, 3, 2, 1 rows.
TEST_CASE("observed attention divides by the rows that saw a token", "[hand]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1}, 4);
  CommonOptions options = default_options("h2o");
  options.phase = Phase::oneshot;
  const Cell cell = make_cell("h2o", 2, {5, 4, 1, 1, 1}, {{"variant", "observed"}}, options);
  CHECK(kept_list(replay(s, {cell}).only(), 0) == Tokens{2, 3});  // means .386 .362 .419 .533
}

TEST_CASE("SnapKV without pooling keeps what the window attends to most", "[hand]") {
  const auto s = weighted_stream({5, 1, 1, 1, 3, 9, 1}, 6);
  CHECK(kept_list(run(s, "snapkv", 3, {{"window", 1}, {"kernel", 1}}), 0) == Tokens{0, 4, 5});
}

TEST_CASE("SnapKV's max pooling makes exact ties, and the lower index stays", "[hand]") {
  const auto s = weighted_stream({1, 1, 5, 1, 1, 9, 1}, 6);  // pooled: 1 5 5 5 1
  CHECK(kept_list(run(s, "snapkv", 3, {{"window", 1}, {"kernel", 3}}), 0) == Tokens{1, 2, 5});
}

TEST_CASE("SnapKV's average pooling divides by the kernel at the edges too", "[hand]") {
  const auto s = weighted_stream({4, .5, .5, 3, .5, 9, 1}, 6);  // pooled times 3: 4.5 5 4 4 3.5
  const nlohmann::json params{{"window", 1}, {"kernel", 3}, {"pool", "avg"}};
  CHECK(kept_list(run(s, "snapkv", 3, params), 0) == Tokens{0, 1, 5});
}

TEST_CASE("a budget within SnapKV's window keeps the last prompt tokens", "[hand]") {
  CHECK(kept_list(run(weighted_stream({9, 9, 1, 1, 1, 1}, 5), "snapkv", 2, {{"window", 3}}), 0) == Tokens{3, 4});
}

TEST_CASE("uniform keeps the smallest numbers of the middle and weighs them by M/m", "[hand]") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("kvreplay-u-" + std::to_string(::getpid()) + ".h5");
  const std::vector<double> u{.9, .1, .5, .3};
  H5Output out(file);
  out.write("u", u, {4});
  out.close();
  const auto s = weighted_stream({1, 1, 1, 1, 1, 1, 1}, 6);
  const nlohmann::json params{{"sinks", 1}, {"recent", 1}};
  const CellResult r = run(s, "uniform", 4, params, file.string());
  std::filesystem::remove(file);
  CHECK(kept_list(r, 0) == Tokens{0, 2, 4, 5});
  CHECK(r.num == std::vector<double>{1, 2, 2, 1});
  CHECK(r.den == r.num);
  CHECK(output(r, 0, 0)[0] == Approx((0 + 2 * 2 + 2 * 4 + 5 + 6) / 7.0));
  CHECK(*r.measures["partition_err_mean"] == Approx(0).margin(1e-12));
  CHECK(*r.measures["kept_mass_mean"] == Approx(5 / 7.0));
}

// Centres: token 0 (at 0), token 2 (at 10), then token 4 (at 5.2, 4.8 away from its nearest centre).
TEST_CASE("SubGen's centres are the farthest keys, and count for the keys around them", "[hand]") {
  const auto s = stream_of_keys({0, 1, 10, 4, 5.2, 20, 3}, 6);
  const CellResult r = run(s, "subgen", 4, {{"recent", 1}, {"weights", "cluster_size"}});
  CHECK(kept_list(r, 0) == Tokens{0, 2, 4, 5});
  CHECK(r.num == std::vector<double>{2, 1, 2, 1});
}

TEST_CASE("a key between two of SubGen's centres counts for the earlier one", "[hand]") {
  const auto s = stream_of_keys({0, 2, 4, 9, 1}, 4);
  const CellResult r = run(s, "subgen", 3, {{"recent", 1}, {"weights", "cluster_size"}});
  CHECK(kept_list(r, 0) == Tokens{0, 2, 3});
  CHECK(r.num == std::vector<double>{2, 1, 1});
}

TEST_CASE("SubGen takes the lowest index among equally far keys", "[hand]") {
  const auto s = stream_of_keys({0, 5, -5, 5, 1, 9, 3}, 6);
  CHECK(kept_list(run(s, "subgen", 3, {{"recent", 1}}), 0) == Tokens{0, 1, 5});
}

TEST_CASE("the oracle reads the largest of the whole cache; the newest token has no privilege", "[hand]") {
  const auto s = weighted_stream({1, 8, 2, 5, 1, 1}, 5);
  const CellResult r = run(s, "topk_oracle", 2, {{"extra", 0}});
  CHECK(r.attended.flat == Tokens{1, 3});
  CHECK(output(r, 0, 0)[0] == Approx((8 * 1 + 5 * 3) / 13.0));
  CHECK(*r.measures["peak_kept_tokens"] == 6);
}

TEST_CASE("bytes count the rows that must be allocated", "[hand]") {
  const auto s = weighted_stream({1, 2, 4, 8, 1, 30}, 4);  // float32: a row of one key and one value takes 8 bytes
  const CellResult h2o = run(s, "h2o", 2), window = run(s, "window", 2), exact = run(s, "exact", 0);
  CHECK(*h2o.measures["peak_bytes"] == 3 * 8);       // B + 1 while attending; the prompt's cut is not charged
  CHECK(*h2o.measures["aux_bytes"] == 2 * (8 + 4));  // a score and a position each
  CHECK(*window.measures["aux_bytes"] == 0);
  CHECK(*exact.measures["peak_bytes"] == *exact.measures["full_bytes"]);
  CHECK(*exact.measures["full_bytes"] == 6 * 8);
  CHECK(*h2o.measures["n_evictions"] == 4);
  CHECK(*h2o.measures["mean_kept_tokens"] == 2);
}
