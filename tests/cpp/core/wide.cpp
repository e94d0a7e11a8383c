#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/softmax.hpp"
#include "core/team.hpp"
#include "gaussian.hpp"
#include "kernels/kernels.hpp"
#include "methods/balancekv/balancekv.hpp"
#include "methods/balancekv/walks.hpp"
#include "methods/parts/walk.hpp"
#include "methods/subgen/farthest_first.hpp"
#include "replay/runner.hpp"

namespace kvreplay {
using test::gaussian;
namespace {

using Doubles = std::vector<double>;

// A cache that holds tokens 0..n-1 with these keys, which are also their values.
template <class Real>
class Held {
 public:
  Held(std::vector<Real> keys, int32_t dim) : keys_(std::move(keys)) {
    const size_t n = keys_.size() / size_t(dim);
    token_.resize(n), copies_.resize(n), mark_.resize(n), score_.resize(n), num_.resize(n), den_.resize(n);
    CacheStorage<Real> s;
    s.keys = keys_.data(), s.values = keys_.data();
    s.token = token_.data(), s.copies = copies_.data(), s.mark = mark_.data(), s.counts = counts_;
    s.score = score_.data(), s.num = num_.data(), s.den = den_.data();
    s.capacity = int32_t(n), s.shape = {.dim = dim, .v_dim = dim, .heads = 1};
    cache = BasicCache<Real>(s);
    cache.clear(SerialTeam{});
    for (size_t i = 0; i < n; ++i)
      cache.push(Token<Real>({keys_.data() + i * size_t(dim), size_t(dim)}, {}, int32_t(i), TokenClass::plain));
  }
  BasicCache<Real> cache;

 private:
  std::vector<Real> keys_, num_, den_;
  Doubles score_;
  std::vector<int32_t> token_, copies_;
  std::vector<uint8_t> mark_;
  int32_t counts_[Count::kCounts] = {};
};

struct Traversal {
  std::vector<int32_t> centres;
  Doubles members;
  bool operator==(const Traversal&) const = default;
};

// f() without wider vectors.
template <class F>
auto narrow(F f) {
  WiderVectors::allowed = false;
  auto result = f();
  WiderVectors::allowed = true;
  return result;
}

// Farthest-first traversal that computes every distance at every step.
template <class Real>
Traversal plain_traversal(const BasicCache<Real>& cache, int32_t first, int32_t count) {
  const size_t n = size_t(cache.size());
  Doubles distance(n, INFINITY), nearest(n, 0);
  Traversal t{{first}, Doubles(size_t(count))};
  for (int32_t c = 0; c < count; ++c) {
    for (size_t i = 0; i < n; ++i) {
      if (distance[i] < 0) continue;
      const double s = squared_distance(cache.key(int32_t(i)), cache.key(t.centres.back()));
      if (s < distance[i]) distance[i] = s, nearest[i] = c;
    }
    distance[size_t(t.centres.back())] = -1;
    if (c + 1 < count)
      t.centres.push_back(int32_t(std::max_element(distance.begin(), distance.end()) - distance.begin()));
  }
  for (const double c : nearest) t.members[size_t(c)] += 1;
  return t;
}

template <class Real>
Traversal lazy_traversal(const BasicCache<Real>& cache, int32_t first, int32_t count) {
  Doubles state(size_t(FarthestFirst<BasicCache<Real>>::doubles(cache.size(), count, cache.shape().dim)), NAN);
  FarthestFirst centres(cache, cache.size(), count, state);
  centres.choose(SerialTeam{}, first);
  centres.assign_rest(SerialTeam{});
  Traversal t;
  for (int32_t c = 0; c < count; ++c) t.centres.push_back(centres.row(c)), t.members.push_back(centres.members(c));
  return t;
}

// steps: numbers are multiples of 1/steps, so that few steps give ties and equal keys.
template <class Real>
void check_traversal(int32_t n, int32_t dim, double offset, double size, int steps) {
  std::mt19937 random(uint32_t(n) + uint32_t(dim));
  std::normal_distribution<double> normal;
  std::vector<Real> keys(size_t(n) * size_t(dim));
  for (Real& x : keys) x = Real(size * (offset + std::round(normal(random) * steps) / steps));
  const Held<Real> held(keys, dim);
  for (const int32_t count : {1, 2, 7, n / 2, n}) {
    CAPTURE(n, dim, offset, size, steps, count);
    const Traversal plain = plain_traversal(held.cache, n / 3, count);
    CHECK(lazy_traversal(held.cache, n / 3, count) == plain);
    CHECK(narrow([&] { return lazy_traversal(held.cache, n / 3, count); }) == plain);
  }
}

}  // namespace

TEST_CASE("distances that farthest-first skips never change a centre or its members", "[core][methods][many]") {
  for (const auto& [n, dim] : {std::pair{100, 3}, {97, 64}, {33, 1}, {16, 2}, {250, 13}})
    for (const int steps : {1, 2, 1 << 20})
      for (const double offset : {0.0, 1000.0})
        for (const double size : {1.0, 1e-30, 1e18, 1e19}) {
          check_traversal<float>(n, dim, offset, size, steps);
          check_traversal<double>(n, dim, offset, size, steps);
        }
}

TEST_CASE("neighbouring exponentials are those of the standard library to two units", "[core]") {
  double largest = 0;
  for (double x = -708; x <= 709; x += 0.0371) {
    double lanes[] = {x, -x / 3, x / 64, 0};
    const double at[] = {x, -x / 3, x / 64, 0};
    exponentiate(lanes);
    for (int l = 0; l < 4; ++l) {
      const long double truth = std::exp(static_cast<long double>(at[l]));
      largest = std::max(largest, double(std::fabs(lanes[l] / truth - 1)));
    }
  }
  CHECK(largest <= 2 * std::numeric_limits<double>::epsilon());
  double far[] = {-INFINITY, INFINITY, -745, 710, NAN, 0};
  exponentiate(far);
  CHECK(far[0] == 0);
  CHECK(far[1] == INFINITY);
  CHECK(far[2] == std::exp(-745.0));
  CHECK(far[3] == INFINITY);
  CHECK(std::isnan(far[4]));
  CHECK(far[5] == 1);
}

TEST_CASE("an exponential does not depend on how many are computed with it", "[core]") {
  const Doubles x = gaussian<double>(32, 9);
  double all[32];
  std::copy(x.begin(), x.end(), all);
  exponentiate(all);
  for (size_t l = 0; l < x.size(); ++l) {
    double one[] = {x[l]};
    exponentiate(one);
    CHECK(all[l] == one[0]);
  }
}

TEST_CASE("packed rows give the products of the rows, whatever their number and width", "[core]") {
  for (const int32_t n : {1, 4, 7, 8, 9, 30})
    for (const int32_t dim : {1, 3, 16}) {
      std::mt19937 random(uint32_t(n * dim));
      Doubles x(size_t(n * dim)), to(size_t(PackedRows::doubles(n, dim, dim)));
      for (double& number : x) number = std::normal_distribution<double>()(random);
      const auto number = [&](int32_t i, int32_t c) { return x[size_t(i * dim + c)]; };
      const PackedRows rows(SerialTeam{}, n, dim, dim, to, number,
                            [&](int32_t i, int32_t c) { return 2 * number(i, c); });
      for (int32_t i = 0; i < n; ++i)
        for (int32_t j = 0; j < n; ++j) {
          double truth = 0;
          for (int32_t c = 0; c < dim; ++c) truth += number(i, c) * number(j, c);
          PackedRows::Tile keys, values;
          const int32_t first = i - i % PackedRows::kRows, l = j % PackedRows::kLanes;
          packed_tile(
              rows, first, j - l, [&](auto& k, const auto& v) { std::copy_n(v, std::size(k), values); }, keys);
          CHECK(keys[(i - first) * PackedRows::kLanes + l] == truth);
          CHECK(values[(i - first) * PackedRows::kLanes + l] == 2 * (2 * truth));
        }
    }
}

// The kernel of all pairs of rows.
template <class Real>
Doubles pairs(const BasicCache<Real>& cache, std::span<const double> centre) {
  const int32_t n = cache.size(), dim = cache.shape().dim;
  Doubles to(size_t(PackedRows::doubles(n, dim, dim))), all;
  const RowsFrom products{cache, 0};
  const PackedRows rows = products.packed(SerialTeam{}, n, to, centre);
  for (int32_t i = 0; i < n; i += PackedRows::kRows)
    for (int32_t j = 0; j < n; j += PackedRows::kLanes) {
      PackedRows::Tile tile;
      packed_tile(rows, i, j, products.softmax_kernel(SerialTeam{}, n, 0.3), tile);
      all.insert(all.end(), std::begin(tile), std::end(tile));
    }
  return all;
}

TEST_CASE("kernels of pairs are equal with and without wider vectors", "[core]") {
  for (const auto& [n, dim] : {std::pair{30, 64}, {9, 7}, {4, 1}}) {
    const auto x = gaussian<double>(size_t(n * dim), 5);
    const Held<double> real(x, dim);
    const Held<float> single(std::vector<float>(x.begin(), x.end()), dim);
    const Doubles centre = gaussian<double>(size_t(dim), 6);
    CHECK(pairs(single.cache, {}) == narrow([&] { return pairs(single.cache, {}); }));
    CHECK(pairs(single.cache, centre) == narrow([&] { return pairs(single.cache, centre); }));
    CHECK(pairs(real.cache, {}) == narrow([&] { return pairs(real.cache, {}); }));
  }
}

// Also run this test with KVREPLAY_ISA=portable.
TEST_CASE("a run takes wider vectors unless its instruction set is portable", "[core][isa]") {
  const bool portable = std::string(isa_path()) == "portable";
  WiderVectors::allowed = portable;
  run_cells({}, {});
  CHECK(WiderVectors::allowed == !portable);
  WiderVectors::allowed = true;
}

TEST_CASE("a record holds a block only with equal tokens, weights and end", "[core]") {
  const SerialTeam team;
  Held<float> held(gaussian<float>(24, 7), 2);
  auto& cache = held.cache;
  const int32_t block = 4;
  const auto at = [&](int32_t round, int32_t begin, int32_t rows) {
    return WalkedBlock{round, begin, 1 + begin, std::min(block, rows - begin)};
  };
  Doubles numbers(size_t(WalkRecord::doubles(10)), NAN);
  const WalkRecord record(numbers);
  for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = i % 3 == 0 ? 1 : -1;
  record.open(team, 0, 10);
  for (const int32_t begin : {0, 4, 8}) record.keep(team, cache, at(0, begin, 10));
  record.open(team, 1, 5);
  for (const int32_t begin : {0, 4}) record.keep(team, cache, at(1, begin, 5));

  for (const int32_t begin : {0, 4, 8}) CHECK(record.holds(team, cache, at(0, begin, 10), block));
  for (const int32_t begin : {0, 4}) CHECK(record.holds(team, cache, at(1, begin, 5), block));
  CHECK_FALSE(record.holds(team, cache, at(0, 8, 9), block));   // a shorter end
  CHECK_FALSE(record.holds(team, cache, at(0, 8, 11), block));  // a longer one
  CHECK_FALSE(record.holds(team, cache, at(1, 8, 10), block));  // after the last row
  CHECK_FALSE(record.holds(team, cache, at(2, 0, 10), block));  // from a round that did not happen
  CHECK_FALSE(record.holds(team, cache, {0, 4, 6, 4}, block));  // other tokens
  cache.weigh(6, 2, 2);
  CHECK(record.holds(team, cache, at(0, 0, 10), block));
  CHECK_FALSE(record.holds(team, cache, at(0, 4, 10), block));
  for (int32_t i = 0; i < cache.size(); ++i) cache.score(i) = 7;
  record.give(team, cache, at(0, 4, 10));
  for (int32_t i = 0; i < cache.size(); ++i) CHECK(cache.score(i) == (i < 5 || i > 8 ? 7 : i % 3 == 0 ? 1 : -1));
}

TEST_CASE("a budget copies the signs that a larger one has found", "[core][methods]") {
  const int32_t n = 100, dim = 4;
  const auto keys = gaussian<float>(size_t(n * dim), 8);
  MethodContext context;
  context.shape = {.dim = dim, .v_dim = dim, .heads = 1};
  context.tokens = context.prompt_tokens = n;
  const auto cut = [&](int32_t budget, BalanceKv& policy, Doubles& state) {
    policy.walk = BalanceKv::Walk::paper, policy.block = 16, policy.sinks = 4, policy.recent = budget / 4;
    context.budget.tokens = budget;
    policy.resolve(context);
    state.resize(size_t(policy.layout(context).state_doubles));
    policy.state = state;
    Held<float> held(keys, dim);
    policy.evict(SerialTeam{}, held.cache);
    return std::vector<int32_t>(held.cache.tokens().begin(), held.cache.tokens().end());
  };
  Doubles of_larger, of_alone, of_smaller;
  BalanceKv larger, alone, smaller;
  cut(60, larger, of_larger);
  const auto truth = cut(40, alone, of_alone);
  smaller.larger = &larger;
  CHECK(cut(40, smaller, of_smaller) == truth);
  for (size_t row = 0; row < 16; ++row) {
    double& token = of_larger[size_t(WalkRecord::kMostRounds) + 2 * row];
    token = std::copysign(token, row < 8 ? 1.0 : -1.0);
  }
  BalanceKv misled;
  misled.larger = &larger;
  CHECK(cut(40, misled, of_smaller) != truth);
}

TEST_CASE("a serial team's extremes follow the order of scores wherever they stand", "[core]") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int32_t n : {1, 2, 8, 9, 10, 17, 40})
    for (int32_t at = 0; at < n; ++at)
      for (int32_t twin = at; twin < n; ++twin) {
        Doubles x(size_t(n), 0.0), y(size_t(n), kNan);
        x[size_t(at)] = x[size_t(twin)] = 1;
        y[0] = 0, y[size_t(at)] = y[size_t(twin)] = 1;
        const auto of = [](const Doubles& v) { return [&v](int32_t i) { return v[size_t(i)]; }; };
        const auto minus = [&](int32_t i) { return -x[size_t(i)]; };
        CHECK(SerialTeam{}.largest(n, of(x)).index == at);
        CHECK(SerialTeam{}.largest(n, of(y)).index == at);
        CHECK(SerialTeam{}.smallest(n, minus).index == twin);
      }
  CHECK(SerialTeam{}.largest(0, [](int32_t) { return 1.0; }).index == -1);
}

}  // namespace kvreplay
