#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "exact/oracle_needs.hpp"
#include "support.hpp"
#include "survey/clusters.hpp"
#include "survey/point_view.hpp"
#include "survey/spectrum.hpp"
#include "trace/h5_file.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Points = std::vector<double>;

Points random_points(int32_t n, int32_t dim, uint32_t seed) {
  return make_stream<double>({.tokens = n, .prompt = n, .dim = dim}, seed).keys;
}

double distance(const Points& points, int32_t dim, size_t i, size_t j) {
  double s = 0;
  for (size_t c = 0; c < size_t(dim); ++c) {
    const double x = points[i * size_t(dim) + c] - points[j * size_t(dim) + c];
    s += x * x;
  }
  return std::sqrt(s);
}

// SubGen's rule as in the paper: a point joins the nearest representative within the radius, else becomes a new one.
std::vector<int64_t> counts_by_hand(const Points& points, int32_t dim, double radius) {
  std::vector<size_t> representatives;
  std::vector<int64_t> counts;
  for (size_t t = 0; t < points.size() / size_t(dim); ++t) {
    double nearest = std::numeric_limits<double>::infinity();
    for (const size_t r : representatives) nearest = std::min(nearest, distance(points, dim, t, r));
    if (nearest > radius) representatives.push_back(t);
    counts.push_back(int64_t(representatives.size()));
  }
  return counts;
}

// The smallest radius with which k of the points cover all points, by trying every choice.
double best_radius(const Points& points, int32_t dim, int32_t k) {
  const size_t n = points.size() / size_t(dim);
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t chosen = 0; chosen < (1u << n); ++chosen) {
    if (std::popcount(chosen) != k) continue;
    double radius = 0;
    for (size_t i = 0; i < n; ++i) {
      double nearest = std::numeric_limits<double>::infinity();
      for (size_t c = 0; c < n; ++c)
        if ((chosen >> c & 1) != 0) nearest = std::min(nearest, distance(points, dim, i, c));
      radius = std::max(radius, nearest);
    }
    best = std::min(best, radius);
  }
  return best;
}

}  // namespace

// Points 0, 1, 2, 10: from 0 the farthest is 10, then 2 (distance 2), then 1.
TEST_CASE("farthest-first on a line takes the ends first", "[survey]") {
  const Points line = {0, 1, 2, 10};
  const KCenter c = farthest_first(line, 1, 256);
  CHECK(c.centers == std::vector<int32_t>{0, 3, 2, 1});
  CHECK(c.radii == std::vector<double>{10, 2, 1, 0});
  CHECK(c.mean_distance == std::vector<double>{13 / 4.0, 3 / 4.0, 1 / 4.0, 0});
}

TEST_CASE("if two points are farthest, the first becomes the centre", "[survey]") {
  const KCenter c = farthest_first(Points{0, 3, -3, 1}, 1, 3);
  CHECK(c.centers == std::vector<int32_t>{0, 1, 2});
  CHECK(c.radii == std::vector<double>{3, 3, 1});
}

TEST_CASE("duplicates have radius 0 and every point is a centre once", "[survey]") {
  const KCenter c = farthest_first(Points{5, 5, 5, 7, 7, 7, 7, 7}, 2, 256);
  CHECK(c.centers == std::vector<int32_t>{0, 2, 1, 3});
  CHECK(c.radii == std::vector<double>{std::sqrt(8.0), 2, 0, 0});
}

TEST_CASE("radii and mean distances never grow with more centres", "[survey]") {
  const KCenter c = farthest_first(random_points(500, 7, 3), 7, 256);
  REQUIRE(c.radii.size() == 256);
  CHECK(std::is_sorted(c.radii.rbegin(), c.radii.rend()));
  CHECK(std::is_sorted(c.mean_distance.rbegin(), c.mean_distance.rend()));
  CHECK(c.mean_distance[255] < c.radii[255]);
}

TEST_CASE("farthest-first is within twice the best covering", "[survey]") {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    const Points points = random_points(11, 2, seed);
    const KCenter c = farthest_first(points, 2, 11);
    for (int32_t k = 1; k <= 5; ++k) {
      const double best = best_radius(points, 2, k);
      CHECK(c.radii[size_t(k - 1)] <= 2 * best * (1 + 1e-12));
      CHECK(c.radii[size_t(k - 1)] >= best * (1 - 1e-12));
    }
  }
}

// Radius 1: 0 opens, 0.5 and 1 (exactly the radius) join, 1.5 opens, 2 joins 1.5, -0.25 joins 0, 9 opens.
TEST_CASE("online clusters by hand, the radius included", "[survey]") {
  const Points line = {0, 0.5, 1, 1.5, 2, -0.25, 9};
  const std::vector<int32_t> at = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<double> radius = {1};
  CHECK(count_online_clusters(line, 1, radius, at) == std::vector<int64_t>{1, 1, 1, 2, 2, 2, 3});
}

TEST_CASE("a token joins a representative, never a member of its cluster", "[survey]") {
  const std::vector<double> radius = {1};
  const std::vector<int32_t> at = {3};
  CHECK(count_online_clusters(Points{0, 0.9, 1.8}, 1, radius, at) == std::vector<int64_t>{2});
}

TEST_CASE("equal points are one cluster of radius 0", "[survey]") {
  Points points;
  for (int i = 0; i < 40; ++i)
    for (int c = 0; c < 3; ++c) points.push_back(0.1 * (i % 4 + c));
  const std::vector<double> radius = {0};
  const std::vector<int32_t> at = {3, 40};
  CHECK(count_online_clusters(points, 3, radius, at) == std::vector<int64_t>{3, 4});
}

TEST_CASE("several radii at once give what each gives alone", "[survey]") {
  const int32_t n = 300, dim = 5;
  const Points points = random_points(n, dim, 9);
  const std::vector<double> radii = {0, 0.8, 1.7, 2.5, 3.3, 100};
  std::vector<int32_t> at(n);
  for (int32_t i = 0; i < n; ++i) at[size_t(i)] = i + 1;
  const std::vector<int64_t> counts = count_online_clusters(points, dim, radii, at);
  for (size_t f = 0; f < radii.size(); ++f) {
    const std::vector<int64_t> alone(counts.begin() + int64_t(f) * n, counts.begin() + int64_t(f + 1) * n);
    CHECK(alone == counts_by_hand(points, dim, radii[f]));
  }
}

TEST_CASE("a line fit gives slope and explained variance", "[survey]") {
  const double x[] = {0, 1, 2}, y[] = {1, 3, 5}, bent[] = {0, 1, 0}, flat[] = {4, 4, 4};
  CHECK(fit_line(x, y)->slope == Approx(2));
  CHECK(fit_line(x, y)->r2 == Approx(1));
  CHECK(fit_line(x, bent)->slope == Approx(0).margin(1e-15));
  CHECK(fit_line(x, bent)->r2 == Approx(0).margin(1e-15));
  CHECK(fit_line(x, flat)->r2 == 1);
  CHECK_FALSE(fit_line(flat, y).has_value());
}

// Points (+-3, 0) and (0, +-4): variances 9/2 and 16/2.
TEST_CASE("spread by hand", "[survey]") {
  const Spread s = spread_of(Points{3, 0, -3, 0, 0, 4, 0, -4}, 2);
  CHECK(s.rms == Approx(std::sqrt(12.5)));
  CHECK(*s.spectral_share_16 == Approx(1));
  const double p = 9.0 / 25, q = 16.0 / 25;
  CHECK(*s.effective_rank == Approx(std::exp(-p * std::log(p) - q * std::log(q))));
}

TEST_CASE("equal points have no spectrum", "[survey]") {
  const Spread s = spread_of(Points{0.1, 0.7, 0.1, 0.7, 0.1, 0.7}, 2);
  CHECK(s.rms == 0);
  CHECK_FALSE(s.spectral_share_16.has_value());
  CHECK_FALSE(s.effective_rank.has_value());
}

TEST_CASE("shares count the 16 largest directions", "[survey]") {
  Points points;  // 20 axes, each with two points at +-1: every direction has the same variance
  for (int axis = 0; axis < 20; ++axis)
    for (const double sign : {1.0, -1.0})
      for (int c = 0; c < 20; ++c) points.push_back(c == axis ? sign : 0);
  const Spread s = spread_of(points, 20);
  CHECK(*s.spectral_share_16 == Approx(0.8));
  CHECK(*s.effective_rank == Approx(20));
}

TEST_CASE("un-rotated keys equal the keys before the rotary embedding", "[survey]") {
  for (const bool interleaved : {false, true}) {
    auto stream = make_stream<double>({.tokens = 20, .prompt = 10, .dim = 6}, 4);
    const Points before = stream.keys;
    stream.inv_freq = {1.0, 0.25};  // 4 of 6 coordinates turn
    stream.interleaved = interleaved;
    stream.attention_factor = 1.5;
    for (int32_t t = 0; t < 20; ++t) {
      stream.positions[size_t(t)] = 3 * t + 2;
      double* const key = stream.keys.data() + t * 6;
      for (int i = 0; i < 2; ++i) {
        double &x = key[interleaved ? 2 * i : i], &y = key[interleaved ? 2 * i + 1 : i + 2];
        const double a = (3 * t + 2) * stream.inv_freq[size_t(i)], u = x, w = y;
        x = 1.5 * (u * std::cos(a) - w * std::sin(a));
        y = 1.5 * (u * std::sin(a) + w * std::cos(a));
      }
    }
    const std::vector<PointView> views = views_of(stream, true);
    REQUIRE(views.size() == 3);
    CHECK(views[1].name == "keys_unrotated");
    CHECK(views[0].points == stream.keys);
    CHECK(relative_difference(views[1].points, before) < 1e-14);
  }
}

TEST_CASE("without rotary embedding un-rotated keys equal the keys; if it is unrecorded there are none", "[survey]") {
  const auto stream = make_stream<double>({.tokens = 20, .prompt = 10});
  REQUIRE(stream.inv_freq.empty());
  const std::vector<PointView> none = views_of(stream, false), held = views_of(stream, true);
  CHECK(none.size() == 2);
  CHECK(none[1].name == "values");
  CHECK(held[1].points == stream.keys);
}

TEST_CASE("a survey of keys has the median distance that subgen_stream uses", "[survey]") {
  const auto stream = make_stream<double>({.tokens = 300, .prompt = 10}, 8);
  const Rng rng{3, 1, 2, 0, {}};
  const Clusterability c = survey_points(views_of(stream, false)[0], rng);
  CHECK(c.median_distance == median_key_distance(stream, rng));
  CHECK(c.m_n == std::vector<int32_t>{256, 300});
  CHECK(c.m_count == count_online_clusters(stream.keys, stream.shape.dim,
                                           std::vector<double>{0.3 * c.median_distance, 0.5 * c.median_distance,
                                                               0.7 * c.median_distance, 0.9 * c.median_distance},
                                           c.m_n));
  CHECK(c.growth_exponent.size() == 4);
  CHECK(c.growth_exponent[0] == Approx(std::log(double(c.m_count[1]) / double(c.m_count[0])) / std::log(300.0 / 256)));
}

TEST_CASE("a single token is a cluster without growth or spectrum", "[survey]") {
  const auto stream = make_stream<double>({.tokens = 1, .prompt = 1});
  const Clusterability c = survey_points(views_of(stream, false)[0], {});
  CHECK(c.radii == std::vector<double>{0});
  CHECK(c.m_n == std::vector<int32_t>{1});
  CHECK(c.m_count == std::vector<int64_t>{1, 1, 1, 1});
  CHECK(c.rms == 0);
  CHECK(c.growth_exponent.empty());
  CHECK_FALSE(c.effective_rank.has_value());
}

// tests/golden/README.md: k-centers and cluster counts after every token, from a plain float64 implementation.
TEST_CASE("k-centers and cluster counts equal the recorded ones", "[survey]") {
  const std::filesystem::path file = std::filesystem::path(KVREPLAY_SOURCE_DIR) / "tests/golden/oracle_dev.h5";
  for (const std::string name : {"L7h0n512", "synth256"}) {
    const std::string place = "cases/" + name + "/";
    const auto read = [&](const std::string& dataset, std::vector<int64_t>& shape) {
      return read_dataset(file, place + dataset, shape);
    };
    for (const std::string view : {"keys", "values"}) {
      std::vector<int64_t> shape, other;
      const Points points = read(view == "keys" ? "k" : "v", shape);
      const int32_t dim = int32_t(shape.back()), n = int32_t(points.size() / size_t(dim));
      const Points centers = read("kcenter/" + view + "_centers", other),
                   radii = read("kcenter/" + view + "_radii", other);
      const KCenter c = farthest_first(points, dim, int32_t(centers.size()));
      CHECK(Points(c.centers.begin(), c.centers.end()) == centers);
      CHECK(relative_difference(c.radii, radii) < 1e-12);
      std::vector<int32_t> at(size_t(n), 0);
      for (int32_t i = 0; i < n; ++i) at[size_t(i)] = i + 1;
      for (const std::string& member : group_members(file, place + "clusters")) {
        if (!member.starts_with(view)) continue;
        const std::vector<double> radius = {std::stod(member.substr(view.size() + 3))};  // keys_m_<radius>
        const std::vector<int64_t> m = count_online_clusters(points, dim, radius, at);
        CHECK(Points(m.begin(), m.end()) == read("clusters/" + member, other));
      }
    }
  }
}
