#include "calibration/known_queries.hpp"

#include <catch2/catch.hpp>

#include "core/calibration.hpp"

// Statistics of queries by hand: two channels, one query head, texts of a few rows.

using namespace kvreplay;

namespace {

using Vector = std::vector<double>;

// Queries and keys of the positions 0, 1, ...
QueryRows text(std::vector<Vector> queries, std::vector<Vector> keys = {}) {
  const auto count = int64_t(queries.size());
  return {count, [queries, keys](int32_t, const QueryRows::Show& show) {
            for (size_t i = 0; i < queries.size(); ++i)
              show(queries[i], keys.empty() ? queries[i] : keys[i], int32_t(i));
          }};
}
KnownQueries learnt(const std::vector<QueryRows>& texts, RopeView rope = {}) {
  return learn(texts, {1, 2, rope}, {.means = true, .directions = true, .channels = true});
}

}  // namespace

TEST_CASE("every text has the same weight in a mean query, however long it is", "[calibration]") {
  const KnownQueries known = learnt({text({{4, 0}, {2, 0}, {0, 0}}), text({{0, 6}})});
  CHECK(known.means == Vector{1, 3});
  CHECK(known.rows == 4);
  CHECK(known.sizes.empty());
}

TEST_CASE("queries are un-rotated before their mean is taken", "[calibration]") {
  const double quarter = std::acos(0.0);
  const KnownQueries known = learnt({text({{2, 0}, {0, 2}, {0, 4}})}, {&quarter, 1, false, 1});
  // After un-rotating: (2, 0), (2, 0), and (0, -4) rotated back by two quarter turns.
  CHECK(known.means[0] == Approx(4.0 / 3));
  CHECK(known.means[1] == Approx(-4.0 / 3));
  CHECK(known.sizes[0] == Approx(8.0 / 3));
}

TEST_CASE("the direction is that of all rows together, on the side of most of them", "[calibration]") {
  const KnownQueries one = learnt({text({{-9, 0}})}), both = learnt({text({{-9, 0}}), text({{1, 0}, {1, 0}})});
  CHECK(one.directions[0] == Approx(-1));
  CHECK(both.directions[0] == Approx(1));
  // Squared lengths are 4 against 3. Three of four rows are orthogonal to the direction and do not change its sign.
  CHECK(learnt({text({{2, 0}}), text({{0, 1}, {0, 1}, {0, 1}})}).directions[0] == Approx(-1));
}

TEST_CASE("channels are sorted by their products with keys, ties by number", "[calibration]") {
  using Channels = std::vector<int32_t>;
  const std::vector<Vector> keys{{1, 1}, {1, 1}};
  CHECK(learnt({text({{1, -2}, {1, 2}}, keys)}).channels == Channels{1, 0});
  CHECK(learnt({text({{2, -2}, {2, 2}}, keys)}).channels == Channels{0, 1});
  // A long text does not outvote a short one: 3 and 4 on average, 9 and 4 in all.
  CHECK(learnt({text({{3, 0}, {3, 0}, {3, 0}}), text({{0, 4}})}).channels == Channels{1, 0});
}

TEST_CASE("a calibration is one of four words", "[calibration]") {
  Calibration c;
  for (const char* text : {"self", "others", "prompt:a b", "file:x/y.h5"}) {
    REQUIRE(parse_calibration(text, c));
    CHECK(word(c) == text);
    CHECK(c.is_offline() == (std::string(text) != "self"));
  }
  for (const char* text : {"", "all", "prompt:", "file:", "Self"}) CHECK_FALSE(parse_calibration(text, c));
}

TEST_CASE("mean and covariance leave out each text's first rows and count all other rows alike", "[calibration]") {
  const std::vector<QueryRows> texts{text({{9, 9}, {1, 0}, {3, 2}}), text({{8, 8}, {5, -2}})};
  const KnownQueries known = learn(texts, {1, 2, {}}, {.moments_after = 1});
  CHECK(known.full_means == Vector{3, 0});  // over (1, 0), (3, 2), (5, -2)
  CHECK(known.covariances == Vector{4, -2, -2, 4});
  CHECK(known.means.empty());
  const KnownQueries all = learn({texts[1]}, {1, 2, {}}, {.moments_after = 0});
  CHECK(all.full_means == Vector{6.5, 3});
  CHECK(all.covariances == Vector{4.5, 15, 15, 50});
}

TEST_CASE("queries are un-rotated before their covariance is taken", "[calibration]") {
  const double quarter = std::acos(0.0);
  const KnownQueries known = learn({text({{2, 0}, {0, 4}})}, {1, 2, {&quarter, 1, false, 1}}, {.moments_after = 0});
  CHECK(known.full_means[0] == Approx(3));
  CHECK(known.covariances[0] == Approx(2));  // over 2 and 4
  CHECK(known.covariances[3] == Approx(0).margin(1e-12));
}
