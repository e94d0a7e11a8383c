#include <Eigen/SVD>

#include "measures/accumulator.hpp"
#include "measures/measured_rows.hpp"
#include "measures/operator_norm.hpp"
#include "measures/sums.hpp"
#include "support.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("quantiles interpolate like numpy", "[measures]") {
  std::vector<double> x{4, 1, 3, 2};
  CHECK(quantile(x, 0.5) == 2.5);
  CHECK(quantile(x, 0.95) == Approx(3.85));
  std::vector<double> one{7};
  CHECK(quantile(one, 0.95) == 7);
}

TEST_CASE("the running operator norm equals the largest singular value", "[measures]") {
  for (const int d : {1, 2, 5, 64}) {
    std::srand(3);
    const Eigen::MatrixXd v = Eigen::MatrixXd::Random(150, d);
    ValueNorms norms(d);
    for (int t = 0; t < v.rows(); ++t) {
      const Eigen::VectorXd row = v.row(t);
      norms.add(row.data());
      if (t % 17 != 0 && t != 149) continue;
      const Eigen::MatrixXd seen = v.topRows(t + 1);
      CHECK(norms.spectral() == Approx(Eigen::JacobiSVD<Eigen::MatrixXd>(seen).singularValues()(0)).epsilon(1e-9));
      CHECK(norms.frobenius() == Approx(seen.norm()).epsilon(1e-12));
      CHECK(norms.largest() == Approx(seen.rowwise().norm().maxCoeff()).epsilon(1e-12));
    }
  }
}

TEST_CASE("the operator norm is right when the two largest singular values are equal", "[measures]") {
  ValueNorms norms(3);
  const double rows[3][3] = {{2, 0, 0}, {0, 2, 0}, {0, 0, 1}};
  for (const auto& row : rows) norms.add(row);
  CHECK(norms.spectral() == Approx(2).epsilon(1e-10));
}

TEST_CASE("a start vector orthogonal to the top direction still finds it", "[measures]") {
  ValueNorms norms(2);
  const double first[] = {1, 1}, second[] = {5, -5};
  norms.add(first);
  CHECK(norms.spectral() == Approx(std::sqrt(2.0)));
  norms.add(second);
  CHECK(norms.spectral() == Approx(std::sqrt(50.0)));
}

TEST_CASE("errors of one row by hand", "[measures]") {
  MeasuredRows rows(1);
  rows.exact[0].l2 = 0.5;
  rows.exact[0].v_operator = 2, rows.exact[0].v_frobenius = 4, rows.exact[0].v_largest = 5;
  RowResult& row = rows.rows[0];
  row.tau = 0.7, row.kept_mass = 0.6, row.top_mass = 0.8, row.index_recall = 0.25, row.attended = 1;
  rows.set(0, {3, 4}, {3, 1});
  const Measured m = rows.measured();
  CHECK(*m["rel_err_out_mean"] == Approx(3 / 5.0));
  CHECK(*m["rel_err_fro"] == Approx(3 / 5.0));
  CHECK(*m["cosine_mean"] == Approx((9 + 4) / (5 * std::sqrt(10.0))));
  CHECK(*m["cosine_distance_sq"] == Approx(std::pow(1 - (9 + 4) / (5 * std::sqrt(10.0)), 2)));
  CHECK(*m["eps_spectral_mean"] == Approx(3 / (0.5 * 2)));
  CHECK(*m["eps_frobenius_max"] == Approx(3 / (0.5 * 4)));
  CHECK(*m["partition_err_mean"] == Approx(0.3));
  CHECK(*m["kept_mass_mean"] == Approx(0.6));
  CHECK(*m["mass_recall"] == Approx(0.75));
  CHECK(*m["index_recall"] == Approx(0.25));
}

TEST_CASE("rows with zero output are counted, never divided by", "[measures]") {
  MeasuredRows rows(1);
  rows.set(0, {0, 0}, {1, 0});
  const Measured m = rows.measured();
  CHECK(*m["rows_skipped"] == 1);
  CHECK_FALSE(m["rel_err_out_mean"].has_value());
}

TEST_CASE("if all values are zero every row is skipped, and there is no quantile", "[measures]") {
  MeasuredRows rows(5);
  for (int32_t i = 0; i < 5; ++i) rows.set(i, {0, 0}, {0, 0});
  const Measured m = rows.measured({}, 0);
  CHECK(*m["rows_skipped"] == 5);
  CHECK_FALSE(m["rel_err_out_mean"].has_value());
  CHECK_FALSE(m["rel_err_out_p95"].has_value());
}

TEST_CASE("the cost of a head's errors is half the mean square of their projections per predicted token",
          "[measures]") {
  // Two heads, two drawn samples and those of the recorded tokens and of the answer, three rows. The last row predicts
  // nothing.
  Accumulator a({2, 3, {}}, 1e-12, {.projections = true});
  const std::vector<float> projections[2][3] = {{{1, 3, 9, 5}, {2, 0, 8, 5}, {}}, {{0, 0, 7, 5}, {4, 2, 6, 5}, {}}};
  for (int32_t row = 0; row < 3; ++row) {
    for (int32_t h = 0; h < 2; ++h)
      a.add<double>({}, ExactRow(row, 0), h, {{}, {}, projections[h][row], {4, 2, true}, 1, nullptr});
    a.end_row();
  }
  CellResult r;
  a.finish(r, {});
  // (1 + 9)/2 + (4 + 0)/2 + (16 + 4)/2 = 17, half of it, over two rows.
  CHECK(r.measures["kl_head_mean"].value() == 17.0 / 4);
  CHECK(r.projections == std::vector<float>{1, 3, 9, 5, 2, 0, 8, 5, 0, 0, 0, 0, 0, 0, 7, 5, 4, 2, 6, 5, 0, 0, 0, 0});
  CHECK(r.projected.samples == 4);
  CHECK(r.projected.drawn == 2);
}

TEST_CASE("without a recorded gradient there is no measure of the model's loss", "[measures]") {
  MeasuredRows rows(2);
  rows.set(0, {1, 0}, {0, 0}), rows.set(1, {1, 0}, {0, 1});
  CHECK(!rows.measured()["kl_head_mean"].has_value());
}
