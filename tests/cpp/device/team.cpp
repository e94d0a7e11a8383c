#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/cache.hpp"
#include "device/kernels/block_team.hpp"
#include "device/rows.hpp"
#include "emulator/emulated_block.hpp"

using namespace kvreplay;
using kvreplay::emulator::EmulatedBlock;
using kvreplay::emulator::Schedule;
using kvreplay::test::gaussian;

namespace {

static_assert(Team<BlockTeam<EmulatedBlock>>);
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Schedule kSchedules[] = {Schedule::forward, Schedule::backward, Schedule::shuffled};

// Runs f(team) on the threads of a block.
template <class F>
struct TeamKernel {
  F f;
  int threads;
  LaunchShape shape() const { return {1, threads, team_exchange_bytes(threads)}; }
  void operator()(const Block auto& block) const {
    const BlockTeam team(block, size_t{0});
    f(team);
  }
};
template <class F>
void run(int threads, Schedule schedule, F f) {
  const TeamKernel<F> kernel{f, threads};
  emulator::launch(kernel, kernel.shape(), schedule);
}
template <class F>
void run_every_way(F f) {
  for (const int threads : {32, 96, 256})
    for (const Schedule schedule : kSchedules) f(threads, schedule);
}

// The results of all reductions of a team.
struct Found {
  double sum = -7;
  int32_t count = -7;
  Scored largest{-7, -7}, smallest{-7, -7};
};
template <Team T>
Found reduce(const T& team, const std::vector<double>& x) {
  const auto score = [&](int32_t i) { return x[size_t(i)]; };
  const int32_t n = int32_t(x.size());
  return {team.sum(n, score), team.count(n, [&](int32_t i) { return x[size_t(i)] > 0; }), team.largest(n, score),
          team.smallest(n, score)};
}
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
bool same(Scored a, Scored b) { return a.index == b.index && same(a.score, b.score); }

// The results in a block of threads; all threads must agree with the first.
Found of_block(int threads, Schedule schedule, const std::vector<double>& x) {
  std::vector<Found> of_thread(size_t(threads), Found{});
  run(threads, schedule, [&](const auto& team) { of_thread[size_t(team.rank())] = reduce(team, x); });
  const Found& first = of_thread.front();
  for (const Found& f : of_thread) {
    REQUIRE(same(f.sum, first.sum));
    REQUIRE(f.count == first.count);
    REQUIRE(same(f.largest, first.largest));
    REQUIRE(same(f.smallest, first.smallest));
  }
  return first;
}

void check_against_one_thread(const std::vector<double>& x) {
  const Found want = reduce(SerialTeam{}, x);
  double size = 0;
  for (const double v : x) size += std::fabs(v);
  run_every_way([&](int threads, Schedule schedule) {
    CAPTURE(x.size(), threads, int(schedule));
    const Found found = of_block(threads, schedule, x);
    CHECK(found.count == want.count);
    CHECK(same(found.largest, want.largest));
    CHECK(same(found.smallest, want.smallest));
    CHECK((same(found.sum, want.sum) || std::fabs(found.sum - want.sum) <= 1e-15 * size));
  });
}

constexpr size_t kSizes[] = {0, 1, 31, 32, 33, 1000};

// A cache of tokens with its memory.
struct Rows {
  std::vector<int32_t> token, copies, evicted, slot, free_slots;
  std::vector<double> score;
  std::vector<float> num, den, numbers, own_keys, own_values;
  std::vector<uint8_t> mark;
  std::vector<int32_t> counts;
  CacheStorage<float> storage{};
  explicit Rows(int32_t tokens, int32_t own_rows = 0, int32_t capacity = 0) {
    const size_t n = size_t(capacity > 0 ? capacity : tokens);
    token.resize(n), evicted.resize(size_t(tokens), -7), score.resize(n), num.resize(n), den.resize(n), mark.resize(n),
        copies.resize(size_t(tokens)), counts.resize(Count::kCounts);
    numbers.resize(size_t(tokens));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i);
    if (own_rows > 0)
      slot.resize(n), free_slots.resize(size_t(own_rows)), own_keys.resize(size_t(own_rows)),
          own_values.resize(size_t(own_rows));
    storage.keys = storage.values = numbers.data();
    storage.token = token.data(), storage.score = score.data(), storage.num = num.data(), storage.den = den.data(),
    storage.mark = mark.data(), storage.copies = copies.data(), storage.evicted = evicted.data(),
    storage.counts = counts.data(), storage.capacity = int32_t(n), storage.own_rows = own_rows,
    storage.shape = {1, 1, 1};
    if (own_rows > 0)
      storage.slot = slot.data(), storage.free_slots = free_slots.data(), storage.own_keys = own_keys.data(),
      storage.own_values = own_values.data();
  }
  bool operator==(const Rows& o) const {
    const size_t n = size_t(counts[Count::rows]), gone = size_t(counts[Count::evicted]);
    const auto equal_prefix = [](const auto& a, const auto& b, size_t count) {
      return std::equal(a.begin(), a.begin() + int64_t(count), b.begin());
    };
    return counts == o.counts && copies == o.copies && equal_prefix(token, o.token, n) &&
           equal_prefix(score, o.score, n) && equal_prefix(num, o.num, n) && equal_prefix(den, o.den, n) &&
           equal_prefix(mark, o.mark, n) && equal_prefix(evicted, o.evicted, gone) &&
           (slot.empty() || equal_prefix(slot, o.slot, n)) && own_keys == o.own_keys;
  }
};

// Checks that `text` leaves equal caches on one thread and on blocks. start: the initial cache, which sets the extents.
template <class F>
Rows check_cache(const Rows& start, F text) {
  Rows want(int32_t(start.evicted.size()), start.storage.own_rows, start.storage.capacity);
  BasicCache<float> alone(want.storage);
  alone.clear(SerialTeam{});
  text(SerialTeam{}, alone);
  run_every_way([&](int threads, Schedule schedule) {
    CAPTURE(threads, int(schedule));
    Rows rows(int32_t(start.evicted.size()), start.storage.own_rows, start.storage.capacity);
    run(threads, schedule, [&](const auto& team) {
      BasicCache<float> cache(rows.storage);
      cache.clear(team);
      text(team, cache);
    });
    CHECK(rows == want);
  });
  return want;
}

}  // namespace

TEST_CASE("a block of threads reduces like one thread", "[device]") {
  for (const size_t n : kSizes) check_against_one_thread(gaussian<double>(n, 5));
}

TEST_CASE("a block breaks ties like one thread", "[device]") {
  for (const size_t n : kSizes) {
    check_against_one_thread(std::vector<double>(n, 3.0));
    std::vector<double> few(n), zeros(n);
    for (size_t i = 0; i < n; ++i) few[i] = double(i * 7 % 3), zeros[i] = i % 2 == 0 ? 0.0 : -0.0;
    check_against_one_thread(few);
    check_against_one_thread(zeros);
    check_against_one_thread(std::vector<double>(n, -double(INFINITY)));
  }
}

TEST_CASE("a block returns NaN only if the first number is NaN", "[device]") {
  for (const size_t n : {size_t{1}, size_t{33}, size_t{1000}}) {
    std::vector<double> x = gaussian<double>(n, 6);
    x[0] = kNaN;
    check_against_one_thread(x);
    CHECK(of_block(64, Schedule::forward, x).largest.index == 0);
    x = gaussian<double>(n, 7);
    for (size_t i = 1; i < n; i += 2) x[i] = kNaN;
    check_against_one_thread(x);
    check_against_one_thread(std::vector<double>(n, kNaN));
  }
}

TEST_CASE("a block always adds up in one fixed order", "[device]") {
  const std::vector<double> x = gaussian<double>(1000, 8);
  const double once = of_block(256, Schedule::forward, x).sum;
  CHECK(of_block(256, Schedule::backward, x).sum == once);
  CHECK(of_block(256, Schedule::shuffled, x).sum == once);
}

TEST_CASE("a block moves kept rows to the front in order", "[device]") {
  for (const size_t n : kSizes)
    for (const int32_t every : {1, 2, 3, 1000}) {
      std::vector<int32_t> want(n), first(n);
      std::iota(first.begin(), first.end(), 0);
      const auto stays = [&](int32_t i) { return i % every == every - 1; };
      const auto compact = [&](const auto& team, std::vector<int32_t>& x) {
        return team.compact(
            int32_t(n), stays, [&](int32_t i) { return x[size_t(i)]; },
            [&](int32_t to, int32_t v) { x[size_t(to)] = v; });
      };
      want = first;
      const int32_t left = compact(SerialTeam{}, want);
      run_every_way([&](int threads, Schedule schedule) {
        std::vector<int32_t> x = first;
        std::vector<int32_t> seen(n);
        run(threads, schedule, [&](const auto& team) {
          REQUIRE(compact(team, x) == left);
          const int32_t last = int32_t(n) - 1;
          team.each(int32_t(n), [&](int32_t i) { seen[size_t(i)] = x[size_t(last - i)]; });
        });
        CHECK(x == want);
        CHECK(std::equal(seen.rbegin(), seen.rend(), want.begin()));
      });
    }
}

TEST_CASE("a block closes a gap", "[device]") {
  for (const size_t n : {size_t{1}, size_t{33}, size_t{1000}, size_t{5000}})
    for (const size_t gap : {size_t{0}, n / 2, n - 1}) {
      std::vector<double> first(n);
      std::iota(first.begin(), first.end(), 0.0);
      std::vector<double> want = first;
      SerialTeam{}.close_gap(want.data(), int32_t(gap), int32_t(n));
      run_every_way([&](int threads, Schedule schedule) {
        std::vector<double> x = first;
        run(threads, schedule, [&](const auto& team) { team.close_gap(x.data(), int32_t(gap), int32_t(n)); });
        CHECK(x == want);
      });
    }
}

TEST_CASE("a block's reductions and other operations may follow each other without a barrier", "[device]") {
  run_every_way([&](int threads, Schedule schedule) {
    std::vector<double> x(100);
    std::vector<double> seen(size_t(threads), 0.0);
    run(threads, schedule, [&](const auto& team) {
      for (int32_t round = 0; round < 5; ++round) {
        team.each(100, [&](int32_t i) { x[size_t(i)] = i + round; });
        const double sum = team.sum(100, [&](int32_t i) { return x[size_t(i)]; });
        const Scored top = team.largest(100, [&](int32_t i) { return x[size_t(i)]; });
        const int32_t odd = team.count(100, [&](int32_t i) { return int32_t(x[size_t(i)]) % 2 == 1; });
        REQUIRE(sum == 4950 + 100 * round);
        REQUIRE(top.score == 99 + round);
        REQUIRE(odd == 50);
        seen[size_t(team.rank())] += sum + top.score + odd;
      }
    });
    CHECK(std::all_of(seen.begin(), seen.end(), [&](double s) { return s == seen.front(); }));
  });
}

TEST_CASE("all threads of a block see what each thread wrote", "[device]") {
  run_every_way([&](int threads, Schedule schedule) {
    std::vector<int32_t> x(500), y(500);
    run(threads, schedule, [&](const auto& team) {
      for (int32_t round = 0; round < 4; ++round) {
        team.each(500, [&](int32_t i) { x[size_t(i)] = round == 0 ? i : y[size_t(499 - i)]; });
        team.each(500, [&](int32_t i) { y[size_t(i)] = x[size_t((i + 250) % 500)] + 1; });
      }
    });
    std::vector<int32_t> want_x(500), want_y(500);
    for (int32_t round = 0; round < 4; ++round) {
      for (int32_t i = 0; i < 500; ++i) want_x[size_t(i)] = round == 0 ? i : want_y[size_t(499 - i)];
      for (int32_t i = 0; i < 500; ++i) want_y[size_t(i)] = want_x[size_t((i + 250) % 500)] + 1;
    }
    CHECK(y == want_y);
  });
}

TEST_CASE("many threads change a cache exactly as a single thread does", "[device]") {
  check_cache(Rows(300, 0, 400), [](const auto& team, auto& cache) {
    cache.push_run(team, 0, 280);
    team.each(cache.size(), [&](int32_t i) { cache.score(i) = i * 37 % 101; });
    cache.drop(team, 17), cache.drop(team, cache.size() - 1), cache.drop(team, 0);
    cache.retain(team, [&](int32_t i) { return cache.score(i) >= 20; });
    cache.weigh(team, 3, 2, 5);
    cache.weigh_rows(team, 5, 40, [&](int32_t row) { return RowWeights{cache.score(row), double(row)}; });
    cache.retain(team, [&](int32_t i) { return cache.token(i) % 3 != 0; });
    cache.push_run(team, 280, 20);
    cache.retain(team, [](int32_t) { return true; });
    for (int32_t i = 0; i < 20; ++i)  // all threads read before any of them writes
      if (cache.num(i) == 1) cache.weigh(team, i, 3, 1);
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = uint8_t(cache.token(i) % 5); });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) != 0; });
    cache.push_run(team, 0, 30);  // most of them were evicted
    for (int32_t i = 0; i < 30; ++i) cache.drop(team, i);
  });
}

TEST_CASE("pushing a run of tokens equals pushing its tokens one by one", "[device]") {
  const auto text = [](bool at_once) {
    return [at_once](const auto& team, auto& cache) {
      cache.push_run(team, 0, 20);
      cache.retain(team, [&](int32_t i) { return cache.token(i) % 3 == 0; });
      if (at_once) return cache.push_run(team, 1, 9);
      for (int32_t t = 1; t < 10; ++t) cache.push(team, Token<float>({}, {}, t));
    };
  };
  CHECK(check_cache(Rows(40, 0, 200), text(true)) == check_cache(Rows(40, 0, 200), text(false)));
}

TEST_CASE("marks move with their rows", "[device]") {
  const Rows left = check_cache(Rows(300), [](const auto& team, auto& cache) {
    cache.push_run(team, 0, 300);
    team.each(cache.size(), [&](int32_t i) { cache.mark(i) = uint8_t(cache.token(i) % 50); });
    cache.retain(team, [&](int32_t i) { return cache.mark(i) % 7 != 0; });
  });
  for (size_t i = 0; i < size_t(left.counts[Count::rows]); ++i) CHECK(left.mark[i] == left.token[i] % 50);
}

TEST_CASE("a token in several rows counts as evicted when a block drops the last of them", "[device]") {
  check_cache(Rows(40, 0, 200), [](const auto& team, auto& cache) {
    const auto token = [](int32_t i) { return Token<float>({}, {}, i); };
    for (int32_t i = 0; i < 20; ++i) cache.push(team, token(i % 7 == 0 ? 5 : i + 10));
    cache.push(team, token(39), 0, 0.5f);
    cache.replace(team, 4, token(39), 0, 2);
    cache.replace(team, 4, token(39), 1, 3);
    cache.retain(team, [](int32_t i) { return i % 4 != 0; });
    cache.retain(team, [](int32_t i) { return i % 4 != 1; });
    cache.push(team, token(11));  // it was evicted before: a violation
    cache.retain(team, [](int32_t i) { return i % 2 == 0; });
  });
}

TEST_CASE("written rows of a block are freed and reused", "[device]") {
  check_cache(Rows(50, 6), [](const auto& team, auto& cache) {
    cache.push_run(team, 0, 30);
    for (int32_t round = 0; round < 4; ++round) {
      for (int32_t i = 1; i < 7; ++i)
        cache.rewrite(
            team, i, [&](int32_t, int32_t) { return float(100 * round + i); },
            [&](int32_t, int32_t) { return cache.value(i)[0]; });
      if (round % 2 == 0) cache.retain(team, [](int32_t i) { return i == 0 || i > 6; });
      else
        for (int32_t i = 0; i < 6; ++i) cache.drop(team, 1);
      if (round == 0) cache.fail(team, 3, 4);
    }
  });
}
