#include <algorithm>
#include <numeric>

#include "caches/cache_state.hpp"
#include "core/attend.hpp"
#include "core/select.hpp"
#include "support.hpp"

using namespace kvreplay;

namespace {

const SerialTeam kTeam;

// A cache of `tokens` one-dimensional tokens whose key and value are their index.
struct SmallCache {
  HeadStream<double> stream;
  CacheMemory<double> memory;
  BasicCache<double> cache;
  explicit SmallCache(int32_t tokens, Layout layout = {.scores = true}) {
    stream.shape = {1, 1, 1};
    stream.tokens = tokens;
    for (int32_t i = 0; i < tokens; ++i) stream.keys.push_back(i), stream.values.push_back(i);
    memory.allocate(stream, stream.shape, layout, stream.tokens, false);
    cache = BasicCache<double>(memory.storage());
    cache.clear(kTeam);
  }
  void push(int32_t token, double num = 1, double den = 1) {
    const size_t i = size_t(token);
    cache.push(Token<double>({&stream.keys[i], 1}, {&stream.values[i], 1}, token), num, den);
  }
  std::vector<int32_t> tokens() const { return {cache.tokens().begin(), cache.tokens().end()}; }
};

}  // namespace

TEST_CASE("rows stay in order, and scores travel with their rows", "[core]") {
  SmallCache c(6);
  for (int32_t i = 0; i < 6; ++i) c.push(i), c.cache.score(i) = 10 * i;
  c.cache.drop(kTeam, 1);
  CHECK(c.tokens() == std::vector<int32_t>{0, 2, 3, 4, 5});
  CHECK(c.cache.score(1) == 20);
  c.cache.retain(kTeam, [&](int32_t i) { return c.cache.token(i) % 2 == 0; });
  CHECK(c.tokens() == std::vector<int32_t>{0, 2, 4});
  CHECK(c.cache.score(2) == 40);
  CHECK(c.cache.evictions() == 3);
}

TEST_CASE("pushing an evicted token again is detected", "[core]") {
  SmallCache c(3);
  c.push(0), c.push(1);
  c.cache.drop(kTeam, 0);
  CHECK(c.cache.returned_tokens() == 0);
  c.push(0);
  CHECK(c.cache.returned_tokens() == 1);
}

TEST_CASE("a token held twice counts as evicted when its last row is dropped", "[core]") {
  SmallCache c(3);
  c.push(0), c.push(0), c.push(1);
  c.cache.drop(kTeam, 0);
  CHECK(c.cache.evictions() == 0);
  c.cache.drop(kTeam, 0);
  CHECK(c.cache.evictions() == 1);
}

TEST_CASE("written rows hold the policy's numbers, and their memory is reused", "[core]") {
  SmallCache c(4, {.weights = true, .own_rows = 1});
  c.push(2), c.push(3);
  for (int round = 0; round < 3; ++round) {
    c.cache.push_own(
        kTeam, [&](int32_t) { return 0.5 * (c.cache.key(0)[0] + c.cache.key(1)[0]); }, [&](int32_t) { return 7.0; }, 2,
        3);
    CHECK_FALSE(c.cache.verbatim(2));
    CHECK(c.cache.key(2)[0] == 2.5);
    CHECK(c.cache.value(2)[0] == 7);
    CHECK(c.cache.den(2) == 3);
    c.cache.drop(kTeam, 2);
  }
}

TEST_CASE("rows are chosen in the order of C8: higher score, then lower index", "[core]") {
  const std::vector<double> score{2, 5, 2, -1, 5, 2, 0.0, -0.0};
  const auto chosen = [&](int32_t count) {
    std::vector<int32_t> kept;
    std::vector<uint8_t> mark(score.size());
    choose_top(
        kTeam, int32_t(score.size()), count, [&](int32_t i) { return score[size_t(i)]; },
        [&](int32_t i, bool yes) { mark[size_t(i)] = yes; });
    for (size_t i = 0; i < mark.size(); ++i)
      if (mark[i] != 0) kept.push_back(int32_t(i));
    return kept;
  };
  CHECK(chosen(0).empty());
  CHECK(chosen(1) == std::vector<int32_t>{1});
  CHECK(chosen(3) == std::vector<int32_t>{0, 1, 4});
  CHECK(chosen(6) == std::vector<int32_t>{0, 1, 2, 4, 5, 6});  // 0 and -0 are equal
  CHECK(chosen(8).size() == 8);
}

TEST_CASE("choosing agrees with a stable sort on random scores with ties", "[core]") {
  const Rng rng{11, 0, 0, 0};
  for (int32_t trial = 0; trial < 200; ++trial) {
    const int32_t n = 1 + trial % 40;
    std::vector<double> score;
    for (int32_t i = 0; i < n; ++i) score.push_back(std::floor(8 * rng.uniform(RngStream::bootstrap, i, trial)) - 4);
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return score[size_t(a)] > score[size_t(b)]; });
    const int32_t count = trial % (n + 1);
    std::vector<uint8_t> mark(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    for (int32_t i = 0; i < count; ++i) want[size_t(order[size_t(i)])] = 1;
    choose_top(
        kTeam, n, count, [&](int32_t i) { return score[size_t(i)]; },
        [&](int32_t i, bool yes) { mark[size_t(i)] = yes; });
    CHECK(mark == want);
  }
}

TEST_CASE("dropping the weakest of equals drops the higher index", "[core]") {
  SmallCache c(4);
  for (int32_t i = 0; i < 4; ++i) c.push(i), c.cache.score(i) = 1;
  keep_best(kTeam, c.cache, {}, 3, [&](int32_t i) { return c.cache.score(i); });
  CHECK(c.tokens() == std::vector<int32_t>{0, 1, 2});
}

TEST_CASE("protected rows are never candidates", "[core]") {
  SmallCache c(6);
  for (int32_t i = 0; i < 6; ++i) c.push(i), c.cache.score(i) = i == 0 || i == 5 ? -1 : i;
  keep_best(kTeam, c.cache, {.sinks = 1, .recent = 1}, 1, [&](int32_t i) { return c.cache.score(i); });
  CHECK(c.tokens() == std::vector<int32_t>{0, 4, 5});
}

// Computes the output of a head with one-dimensional values.
struct RowByRow {
  double* out;
  void add(const Team auto&, const Cache auto& cache, std::span<const double> coefficients) const {
    *out = 0;
    for (int32_t i = 0; i < cache.size(); ++i) *out += coefficients[size_t(i)] * cache.value(i)[0];
  }
};

TEST_CASE("two rows: the output is the softmax by hand, with weights and a sink logit", "[core]") {
  SmallCache c(3, {.weights = true});
  c.push(0, 1, 1), c.push(2, 3, 2);
  const double query = std::log(2.0) / 2;  // logits 0 and ln 2
  QueryView<double> view{{&query, 1}, {1, 0}, {}, 2};
  std::vector<double> e(3), coefficients(3), out(1);
  const auto run = [&] {
    return attend(kTeam, view, OwnDots<double>{view}, c.cache, std::span(e).first(2), std::span(coefficients).first(2),
                  RowByRow{out.data()});
  };
  const Normaliser plain = run();
  CHECK(plain.sum * std::exp(plain.shift) == Approx(1 * 1 + 2 * 2));
  CHECK(out[0] == Approx((1 * 1 * 0 + 3 * 2 * 2) / 5.0));
  CHECK(e[1] == Approx(4 / 5.0));
  view.sink_logit = std::log(5.0);  // as large as all other terms together
  run();
  CHECK(out[0] == Approx(12 / 10.0));
}

TEST_CASE("an empty cache or one without denominator gives tau 0 and no NaN", "[core]") {
  SmallCache c(2, {.weights = true});
  const double query = 1;
  const QueryView<double> view{{&query, 1}, {1, 0}, {}, 1};
  std::vector<double> e(2), coefficients(2), out(1, 99.0);
  const Normaliser empty = attend(kTeam, view, OwnDots<double>{view}, c.cache, std::span(e).first(0),
                                  std::span(coefficients).first(0), RowByRow{out.data()});
  CHECK(empty.sum == 0);
  CHECK(out[0] == 0);
  c.push(1, 1, 0);
  const Normaliser none = attend(kTeam, view, OwnDots<double>{view}, c.cache, std::span(e).first(1),
                                 std::span(coefficients).first(1), RowByRow{out.data()});
  CHECK(none.sum == 0);
  CHECK(out[0] == 0);
}

TEST_CASE("a strip whose kept rows underflow falls back to its own maximum", "[core]") {
  SmallCache c(3);
  c.push(1), c.push(2);
  const double query = 1;
  const QueryView<double> view{{&query, 1}, {1, 0}, {}, 2};
  const double strip[] = {1, std::exp(-900.0),
                          std::exp(-899.0)};  // token 0 is 900 nats above, so both others underflow to 0
  std::vector<double> e(2), coefficients(2), out(1);
  attend(kTeam, view, StripGather<double>{strip, 901, {view}}, c.cache, std::span(e), std::span(coefficients),
         RowByRow{out.data()});
  CHECK(out[0] == Approx((1 + 2 * std::exp(1.0)) / (1 + std::exp(1.0))));
}

TEST_CASE("the soft cap replaces a logit by cap tanh(l / cap)", "[core]") {
  const LogitRule<double> rule{0.5, 2};
  CHECK(rule(3) == Approx(2 * std::tanh(0.75)));
  CHECK(LogitRule<double>{0.5, 0}(3) == 1.5);
}

TEST_CASE("rotating a key forward turns each pair by offset times its frequency", "[core]") {
  Rope rope;
  rope.inv_freq = {0.5, 0.1};
  for (const auto layout : {Rope::Layout::half_split, Rope::Layout::interleaved}) {
    rope.layout = layout;
    const RotationTable<double> table(rope, 5);
    const std::vector<int32_t> positions{0, 1, 2, 3, 4};
    const Rotation<double> rotation{table.cosines.data(), table.sines.data(), positions.data(), 2, table.interleaved};
    const std::vector<double> key{1, 2, 3, 4, 5}, query{0.3, -1, 2, 0.7, 1.5};  // the fifth dimension is not rotated
    const auto turned = [&](int a, int b, double angle) {
      const double x = key[size_t(a)] * std::cos(angle) - key[size_t(b)] * std::sin(angle);
      const double y = key[size_t(a)] * std::sin(angle) + key[size_t(b)] * std::cos(angle);
      return x * query[size_t(a)] + y * query[size_t(b)];
    };
    const bool half = layout == Rope::Layout::half_split;
    const double by_hand = turned(0, half ? 2 : 1, 3 * 0.5) + turned(half ? 1 : 2, 3, 3 * 0.1) + key[4] * query[4];
    CHECK(rotation.dot(key, query, 3) == Approx(by_hand));
  }
}
