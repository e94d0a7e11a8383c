#include <cmath>
#include <numeric>

#include "support.hpp"
#include "survey/attention_shape.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// One head whose query row t has logit logits[t][j] for token j; keys are unit vectors.
HeadStream<double> written(const std::vector<std::vector<double>>& logits, int32_t prompt) {
  const int32_t n = int32_t(logits.size());
  auto s = make_stream<double>({.tokens = n, .prompt = prompt, .dim = n, .v_dim = 1, .heads = 1});
  s.rule = {1, 0};
  std::fill(s.keys.begin(), s.keys.end(), 0.0);
  for (int32_t t = 0; t < n; ++t) {
    s.keys[size_t(t * n + t)] = 1;
    for (int32_t j = 0; j < n; ++j)
      s.queries[size_t(t * n + j)] = j < int32_t(logits[size_t(t)].size()) ? logits[size_t(t)][size_t(j)] : 0;
  }
  return s;
}

const double kRare = std::log(0.005), kSome = std::log(0.5);

}  // namespace

// Rows as multiples of their largest entry: (1), (1, 0.005), (0.5, 1, 0.005).
TEST_CASE("sparsity of a 3 x 3 attention by hand", "[survey]") {
  const AttentionShape a = survey_attention(written({{0}, {0, kRare}, {kSome, 0, kRare}}, 2));
  CHECK(a.rows == 3);
  CHECK(a.sparsity == std::vector<double>{2 / 5.0});          // 2 of the 2 + 3 entries of rows 1 and 2
  CHECK(a.sparsity_no_sink == std::vector<double>{1 / 3.0});  // 1 of the 3 entries (1), (1, 0.005)
  CHECK(a.sparsity_masked == std::vector<double>{5 / 9.0});   // also counts the 3 above the diagonal
  CHECK(a.top1_is_sink == std::vector<double>{0.5});
  CHECK(a.sink_mass[0] == Approx((1 / 1.005 + 0.5 / 1.505) / 2));
  CHECK(a.accumulated[0] == Approx(1 + 1 / 1.005 + 0.5 / 1.505));
  CHECK(a.accumulated[2] == Approx(0.005 / 1.505));
  CHECK(std::accumulate(a.accumulated.begin(), a.accumulated.end(), 0.0) == Approx(3));
}

TEST_CASE("an entry of exactly the threshold is not sparse", "[survey]") {
  const auto sparse = [](double share) {
    return survey_attention(written({{0}, {0, std::log(share)}}, 1)).sparsity[0];
  };
  CHECK(sparse(0.00999) == 0.5);
  CHECK(sparse(0.01001) == 0);
}

// Uniform rows attend to 2 and 3 tokens.
TEST_CASE("the effective number of attended tokens by hand", "[survey]") {
  const AttentionShape a = survey_attention(written({{0}, {0, 0}, {0, 0, 0}}, 2));
  CHECK(a.attended_effective[0] == Approx(2.5));
  CHECK(survey_attention(written({{0}, {50, 0}, {50, 0, 0}}, 2)).attended_effective[0] == Approx(1));
}

TEST_CASE("a sliding window hides tokens from every measure", "[survey]") {
  auto s = written({{0}, {0, kRare}, {kSome, 0, kRare}}, 2);
  s.window = 2;  // row 2 sees tokens 1 and 2
  const AttentionShape a = survey_attention(s);
  CHECK(a.sparsity == std::vector<double>{2 / 4.0});
  CHECK(a.sparsity_masked == std::vector<double>{6 / 9.0});
  CHECK(a.sink_mass[0] == Approx(1 / 1.005 / 2));
  CHECK(a.top1_is_sink == std::vector<double>{0.5});
}

TEST_CASE("a sink logit takes mass and changes no ratio", "[survey]") {
  auto s = written({{0}, {0, kRare}, {kSome, 0, kRare}}, 2);
  const AttentionShape plain = survey_attention(s);
  s.sink_logits = {0};
  const AttentionShape a = survey_attention(s);
  CHECK(a.sparsity == plain.sparsity);
  CHECK(a.attended_effective[0] == Approx(plain.attended_effective[0]));
  CHECK(a.sink_mass[0] == Approx((1 / 2.005 + 0.5 / 2.505) / 2));
}

TEST_CASE("strided query rows count at their positions", "[survey]") {
  auto s = written({{0}, {0, kRare}, {kSome, 0, kRare}}, 2);
  s.query_row = {-1, -1, 0};
  s.query_rows = 1;
  s.queries.erase(s.queries.begin(), s.queries.begin() + 6);
  const AttentionShape a = survey_attention(s);
  CHECK(a.rows == 1);
  CHECK(a.sparsity == std::vector<double>{1 / 3.0});
  for (const auto& overlap : a.overlaps) CHECK(overlap.jaccard.empty());  // there is no row of the prompt
}

TEST_CASE("a single token has no sparsity, and nothing is divided by zero", "[survey]") {
  const AttentionShape a = survey_attention(written({{0}}, 1));
  CHECK(a.sparsity.empty());
  CHECK(a.sink_mass.empty());
  CHECK(a.accumulated == std::vector<double>{1});
  CHECK(a.top_share == std::vector<double>{1, 1, 1});
  CHECK(*a.gini == 0);
  CHECK_FALSE(a.tail.has_value());
}

TEST_CASE("the accumulated score is the sum over the heads", "[survey]") {
  const auto s = make_stream<double>({.tokens = 130, .prompt = 64, .heads = 3}, 5);
  const AttentionShape a = survey_attention(s);
  REQUIRE(a.accumulated_heads.size() == 3 * 130);
  for (size_t j = 0; j < 130; ++j)
    CHECK(a.accumulated[j] ==
          Approx(a.accumulated_heads[j] + a.accumulated_heads[130 + j] + a.accumulated_heads[260 + j]));
}

TEST_CASE("Gini coefficients by hand", "[survey]") {
  CHECK(*gini(std::vector<double>{2, 2, 2}) == 0);
  CHECK(*gini(std::vector<double>{0, 0, 0, 8}) == Approx(0.75));
  CHECK(*gini(std::vector<double>{3, 1}) == Approx(0.25));
  CHECK_FALSE(gini(std::vector<double>{0, 0}).has_value());
}

TEST_CASE("top tokens are rounded down, at least one, and ties go to the lower index", "[survey]") {
  CHECK(top_count(0.2, 4096) == 819);
  CHECK(top_count(0.01, 99) == 1);
  CHECK(top_tokens(std::vector<double>{1, 3, 3, 0, 3}, 2) == std::vector<int32_t>{1, 2});
  CHECK(jaccard(std::vector<int32_t>{1, 2, 3}, std::vector<int32_t>{2, 3, 4}) == 0.5);
}

// n = 3: columns 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3.
TEST_CASE("uniform causal attention by hand, and its known shares", "[survey]") {
  const std::vector<double> sums = uniform_column_sums(written({{0}, {0, 0}, {0, 0, 0}}, 2));
  CHECK(sums[0] == Approx(11 / 6.0));
  CHECK(sums[1] == Approx(5 / 6.0));
  CHECK(sums[2] == Approx(1 / 3.0));
  // The top share f of n tokens holds about f (1 - ln f): 0.20 for the top 5 %, 0.52 for the top 20 %.
  const auto s = make_stream<double>({.tokens = 2000, .prompt = 100, .dim = 1, .v_dim = 1, .heads = 1});
  const std::vector<double> shares = top_shares(uniform_column_sums(s));
  CHECK(shares[1] == Approx(0.05 * (1 - std::log(0.05))).epsilon(0.01));
  CHECK(shares[2] == Approx(0.2 * (1 - std::log(0.2))).epsilon(0.01));
}

TEST_CASE("attention without preference has the shares of the null", "[survey]") {
  auto s = make_stream<double>({.tokens = 150, .prompt = 100, .heads = 2}, 6);
  std::fill(s.queries.begin(), s.queries.end(), 0.0);
  for (const int32_t window : {0, 40}) {
    s.window = window;
    const AttentionShape a = survey_attention(s);
    for (const double ratio : a.top_share_ratio) CHECK(ratio == Approx(1).epsilon(1e-12));
    CHECK(a.sparsity == std::vector<double>{0, 0});
  }
}

TEST_CASE("a power law is distinguished from an exponential", "[survey]") {
  std::vector<double> power, exponential;
  for (int r = 1; r <= 50; ++r) {
    power.push_back(std::pow(r, -1.5));
    exponential.push_back(std::exp(-0.2 * r));
  }
  power.push_back(0);  // has no logarithm
  CHECK(fit_tail(power)->log_log_slope == Approx(-1.5));
  CHECK(fit_tail(power)->log_log_r2 == Approx(1));
  CHECK(fit_tail(power)->exponential_r2 < 0.9);
  CHECK(fit_tail(exponential)->exponential_slope == Approx(-0.2));
  CHECK(fit_tail(exponential)->exponential_r2 == Approx(1));
  CHECK(fit_tail(exponential)->log_log_r2 < 0.9);
}

TEST_CASE("overlaps need rows on both sides", "[survey]") {
  auto s = make_stream<double>({.tokens = 90, .prompt = 90}, 7);
  const auto size = [](const AttentionShape& a, const std::string& name) {
    for (const auto& o : a.overlaps)
      if (o.name == name) return o.jaccard.size();
    return size_t(99);
  };
  const AttentionShape all_prompt = survey_attention(s);
  CHECK(size(all_prompt, "local_full") == 3);
  CHECK(size(all_prompt, "full_future") == 0);
  CHECK(size(all_prompt, "full_global") == 0);
  s.prompt = 20;  // the local rows are the whole prompt
  for (const auto& o : survey_attention(s).overlaps)
    if (o.name == "local_full") CHECK(o.jaccard == std::vector<double>{1, 1, 1});
    else CHECK(o.jaccard.size() == 3);
}
