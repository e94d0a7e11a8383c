#include <algorithm>
#include <set>

#include "core/linear.hpp"
#include "support.hpp"

// Entries that are not tokens: WildCat's coreset, fitted masses and values, QJL's sketched keys; and the linear algebra
// behind them.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const SerialTeam kTeam;

CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const nlohmann::json& params,
               uint32_t seed = 0) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, default_options(method), seed)}).only();
  REQUIRE(r.ok);
  return r;
}
double mean(const std::vector<double>& x) {
  double s = 0;
  for (const double y : x) s += y / double(x.size());
  return s;
}

}  // namespace

// L = [2 0; 3 1], so A = [4 6; 6 10] and A (1, 2) = (16, 26).
TEST_CASE("a positive definite system is solved, an indefinite one refused", "[linear]") {
  std::vector<double> a{4, 6, 6, 10}, b{16, 26}, indefinite{1, 2, 2, 1};
  REQUIRE(cholesky(kTeam, a, 2));
  CHECK((a[0] == 2 && a[2] == 3 && a[3] == 1));
  cholesky_solve(kTeam, a, 2, b, 1);
  CHECK(b[0] == Approx(1));
  CHECK(b[1] == Approx(2));
  CHECK_FALSE(cholesky(kTeam, indefinite, 2));
}

TEST_CASE("the power iteration finds the largest eigenvalue", "[linear]") {
  std::vector<double> a{2, 1, 1, 2}, skewed{5, 0, 0, 1}, scratch(4);
  CHECK(largest_eigenvalue(kTeam, a, 2, scratch) == Approx(3).epsilon(1e-12));
  CHECK(largest_eigenvalue(kTeam, skewed, 2, scratch) == Approx(5).epsilon(1e-12));
}

TEST_CASE("columns become orthonormal and keep their span", "[linear]") {
  std::vector<double> a{3, 1, 9, 4, 2, 9};  // columns (3, 4), (1, 2) and one that is not used
  orthonormalise(kTeam, a, 2, 3, 0, 2);
  CHECK((a[0] == Approx(0.6) && a[3] == Approx(0.8)));
  CHECK((a[1] == Approx(-0.8) && a[4] == Approx(0.6)));
  CHECK((a[2] == 9 && a[5] == 9));
}

TEST_CASE("WildCat with every middle token as a pivot and no ridge is exact", "[wildcat]") {
  const auto s = make_stream<double>({}, 3);
  const CellResult r = run(s, "wildcat", 40, {{"r", 59}, {"ridge", 0}, {"sinks", 2}, {"recent", 3}});
  CHECK(*r.measures["rel_err_out_max"] < 1e-6);
  CHECK(*r.measures["partition_err_max"] < 1e-6);
  CHECK(r.measures.extras.at("pivots") == 59);
}

// Every key occurs twice, so half as many pivots span the kernel; the values of both copies must be summed.
TEST_CASE("WildCat merges tokens with equal keys without error", "[wildcat]") {
  auto s = make_stream<double>({.tokens = 70, .prompt = 60}, 4);
  for (size_t i = 1; i < 60; i += 2) std::copy_n(&s.keys[(i - 1) * 8], 8, &s.keys[i * 8]);
  const CellResult r = run(s, "wildcat", 30, {{"ridge", 0}, {"sinks", 0}, {"recent", 0}});
  CHECK(*r.measures["rel_err_out_max"] < 1e-6);
  CHECK(r.measures.extras.at("negative_masses") == 0);
  double total = 0;
  for (const double mass : r.den) total += mass;
  CHECK(total == Approx(60));
}

TEST_CASE("WildCat stores a mass for each pivot and reports the negative ones", "[wildcat]") {
  const auto s = make_stream<double>({}, 5);
  const CellResult r = run(s, "wildcat", 20, {{"sinks", 2}, {"recent", 4}});
  CHECK(kept_list(r, 0).size() == 20);
  CHECK(r.measures.extras.at("pivots") == 14);
  CHECK(r.measures.extras.at("negative_masses") ==
        double(std::count_if(r.den.begin(), r.den.end(), [](double w) { return w < 0; })));
  // float32: 20 prompt rows and 32 decoded ones while the last step attends, 4 bytes a mass
  CHECK(*r.measures["peak_bytes"] == 4 * (20 + 32) * 16 + 4 * 14);
}

TEST_CASE("WildCat draws pivots by the residual, so seeds differ and large residuals are chosen often", "[wildcat]") {
  auto s = make_stream<double>({.tokens = 40, .prompt = 32, .dim = 4, .v_dim = 4, .heads = 1}, 6);
  for (size_t c = 0; c < 4; ++c) s.keys[11 * 4 + c] = 6;  // the largest diagonal by far
  std::set<std::vector<int32_t>> sets;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto kept = kept_list(run(s, "wildcat", 8, {{"sinks", 0}, {"recent", 0}}, seed), 0);
    CHECK(std::count(kept.begin(), kept.end(), 11) == 1);
    sets.insert(kept);
  }
  CHECK(sets.size() > 10);
}

TEST_CASE("attention matching clips its biases", "[attention_matching]") {
  const auto s = make_stream<double>({}, 7, Look::sinks);
  const CellResult r = run(s, "attention_matching", 12, {{"clip", 0.25}});
  for (const double w : r.num) CHECK((w >= std::exp(-0.25) * (1 - 1e-12) && w <= std::exp(0.25) * (1 + 1e-12)));
  CHECK(r.num == r.den);
  CHECK(std::any_of(r.num.begin(), r.num.end(), [](double w) { return w == Approx(std::exp(0.25)); }));
}

TEST_CASE("attention matching trained on its test rows beats its selection alone", "[attention_matching]") {
  const auto s = make_stream<double>({.tokens = 96, .prompt = 64, .heads = 2}, 8, Look::clustered);
  const CellResult r = run(s, "attention_matching", 16, {{"train", "future"}, {"ridge", 1e-10}});
  std::vector<double> bare;
  std::vector<int32_t> prompt(64);
  for (int32_t i = 0; i < 64; ++i) prompt[size_t(i)] = i;
  for (int32_t h = 0; h < 2; ++h)
    for (int32_t t = 64; t < 96; ++t) {
      const auto exact = naive_attention(s, h, t, prompt), selected = naive_attention(s, h, t, kept_list(r, 0));
      double error = 0, length = 0;
      for (size_t c = 0; c < exact.size(); ++c)
        error += std::pow(exact[c] - selected[c], 2), length += exact[c] * exact[c];
      bare.push_back(std::sqrt(error / length));
    }
  CHECK(r.measures.extras.at("train_error") < mean(bare));
}

// A query at one position equals that at another after re-rotation. If the training set is the decode positions' own
// queries, both ways of training see equal rows.
TEST_CASE("re-rotated queries attend to the prompt from positions after it", "[attention_matching]") {
  const StreamShape shape{.tokens = 128, .prompt = 64, .heads = 1};
  auto s = make_stream<double>(shape, 9);
  for (int32_t i = 0; i < 4; ++i) s.inv_freq.push_back(std::pow(10.0, -i));
  for (int32_t t = 0; t < 64; ++t)  // row 64 + t is row t rotated to that position
    for (int32_t p = 0; p < 4; ++p) {
      const double angle = 64 * s.inv_freq[size_t(p)], c = std::cos(angle), n = std::sin(angle);
      const double x = s.queries[size_t(t * 8 + p)], y = s.queries[size_t(t * 8 + p + 4)];
      s.queries[size_t((64 + t) * 8 + p)] = x * c - y * n;
      s.queries[size_t((64 + t) * 8 + p + 4)] = x * n + y * c;
    }
  const CellResult reroped = run(s, "attention_matching", 20, {{"train", "reroped"}});
  const CellResult future = run(s, "attention_matching", 20, {{"train", "future"}});
  CHECK(reroped.kept.flat == future.kept.flat);
  CHECK(relative_difference(reroped.out, future.out) < 1e-8);
}

TEST_CASE("QJL's estimate gets better with the bits of the sketch", "[qjl]") {
  const auto s = make_stream<double>({.tokens = 96, .prompt = 64, .dim = 16, .v_dim = 64, .heads = 2}, 10);
  const auto error = [&](int32_t bits) {
    const nlohmann::json params{{"m_in", bits}, {"m_out", bits}, {"outliers", 2}, {"group", 8}, {"buffer", 32}};
    return *run(s, "qjl", 0, params).measures["partition_err_mean"];
  };
  CHECK(error(4096) < 0.4 * error(64));  // the deviation falls with the root of the bits, to 1/8
  CHECK(error(4096) < 0.05);
}

TEST_CASE("QJL is exact until a buffer is full", "[qjl]") {
  const auto s = make_stream<double>({.dim = 16}, 11);
  const CellResult r = run(s, "qjl", 0, nlohmann::json::object());
  CHECK(*r.measures["rel_err_out_max"] < 1e-12);
  CHECK(*r.measures["n_quantised"] == 0);
}

// 32 sketched keys take 24 + 16 bits and 2 norms each, with 3 outlier channels for every 8. 96 - 16 quantised values of
// 8 numbers take 2 bytes of codes, offset and step. 16 float32 values are exact, and no key is.
TEST_CASE("QJL is charged for signs, norms, outlier channels and codes", "[qjl]") {
  const auto s = make_stream<double>({.dim = 16}, 12);
  const nlohmann::json params{{"m_in", 24}, {"m_out", 16}, {"outliers", 3}, {"group", 8}, {"buffer", 16}};
  const CellResult r = run(s, "qjl", 0, params);
  CHECK(*r.measures["n_quantised"] == 96);
  CHECK(*r.measures["aux_bytes"] == 96 * (5 + 8) + 12 * 3 * 4 + 80 * 4);
  // The peak is reached while token 95 attends: 80 sketched and 16 exact keys, 79 coded and 17 exact values.
  CHECK(*r.measures["peak_bytes"] == 4 * (16 * 16 + 17 * 8) + 79 * 2);
}
