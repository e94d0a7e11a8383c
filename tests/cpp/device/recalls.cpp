#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <span>

#include "device/rows.hpp"
#include "device/under_test.hpp"

// Probabilities of rows, and recalls, computed on a device, against plain loops.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Tolerance of a dot product of 64 numbers and an exponential in float32.
double probability_tolerance() { return 2e-6 * float32_slack(); }
// Tolerance of a sum in double precision in another order.
constexpr double kMass = 1e-12;
// Probabilities this close may be in another order in float32 than in double precision.
constexpr double kTieTolerance = 1e-5;

// Probabilities of rows [first, first + count): [planes, count, pitch].
struct Probabilities {
  int32_t first, count, planes, pitch;
  std::vector<float> p;
  std::span<const float> row(int32_t plane, int32_t row, int32_t tokens) const {
    return {p.data() + (size_t(plane) * size_t(count) + size_t(row - first)) * size_t(pitch), size_t(tokens)};
  }
};

Probabilities find_probabilities(const PlainRows& rows, int32_t first, int32_t count, bool of_heads,
                                 emulator::Schedule schedule = emulator::Schedule::forward) {
  std::vector<float> top, z;
  for (int32_t h = 0; h < rows.heads; ++h)
    for (int32_t r = 0; r < rows.rows(); ++r) {
      const double largest = rows.largest(h, r);
      top.push_back(float(largest / std::log(2.0)));
      z.push_back(float(rows.normaliser(h, r, double(top.back()) * std::log(2.0))));
    }
  Probabilities all{first, count, of_heads ? 1 + rows.heads : 1, rows.tokens + 3, {}};
  const auto runtime = runtime_under_test(schedule);
  const DeviceArray<float> q = uploaded(*runtime, rows.q), k = uploaded(*runtime, rows.k),
                           of_top = uploaded(*runtime, top), of_z = uploaded(*runtime, z),
                           p = filled(*runtime, size_t(all.planes) * size_t(count) * size_t(all.pitch), NAN);
  const DeviceArray<int32_t> row_token = uploaded(*runtime, rows.row_token);
  ProbabilityArgs args{};
  args.q = q.data(), args.k = k.data(), args.row_token = row_token.data();
  args.top = of_top.data(), args.z = of_z.data(), args.p = p.data();
  args.rows = rows.rows(), args.tokens = rows.tokens, args.heads = rows.heads, args.group = rows.group;
  args.dim = rows.dim, args.first = first, args.count = count, args.planes = all.planes, args.pitch = all.pitch;
  args.scale = rows.scale, args.softcap = rows.softcap, args.window = rows.window;
  runtime->run(ProbabilityKernel{args});
  all.p = downloaded(*runtime, p);
  return all;
}

// The tokens that a cache holds, constant over every 64 rows.
struct TestCache {
  std::vector<int32_t> tokens, until;  // tokens empty: a run; until may be empty
  std::vector<KeySpan> spans;          // [row tiles]
  bool by_head = false;
  int32_t first_head = 0, heads = 2;
  int32_t later_from = kNoRun;
  std::vector<int32_t> attended(int32_t row, int32_t t, int32_t window) const {
    std::vector<int32_t> all;
    const KeySpan span = spans[size_t(row / 64)];
    for (int32_t i = span.first; i < span.first + span.count; ++i) {
      const int32_t token = tokens.empty() ? i : tokens[size_t(i)];
      if (token > t || (window > 0 && token <= t - window)) continue;
      if (until.empty() || t < until[size_t(i)]) all.push_back(token);
    }
    for (int32_t token = std::max(later_from, window > 0 ? t - window + 1 : 0); token <= t; ++token)
      all.push_back(token);
    return all;
  }
};

struct Recall {
  double top_mass, index_recall;
  bool operator==(const Recall&) const = default;
};
// Marks a row that the kernel did not get, or that attends to nothing.
constexpr Recall kUntouched = {-7, -7};

// Caches in device memory.
struct CachesOnDevice {
  std::vector<DeviceArray<int32_t>> integers;
  std::vector<DeviceArray<KeySpan>> spans;
  DeviceArray<RecallCache> caches;
  int64_t results = 0;  // results of all caches, [heads, rows] each

  CachesOnDevice(Runtime& runtime, const std::vector<TestCache>& from, size_t rows) {
    const auto up = [&](const std::vector<int32_t>& numbers) -> const int32_t* {
      if (numbers.empty()) return nullptr;
      integers.push_back(uploaded(runtime, numbers));
      return integers.back().data();
    };
    std::vector<RecallCache> all;
    for (const TestCache& cache : from) {
      spans.push_back(uploaded(runtime, cache.spans));
      const AttendPart part{spans.back().data(), up(cache.tokens), up(cache.until), nullptr, nullptr,
                            cache.first_head,    cache.heads};
      all.push_back({part, cache.later_from, cache.by_head ? 1 : 0, results});
      results += cache.heads * int64_t(rows);
    }
    caches = uploaded(runtime, all);
  }
};

using CacheRecalls = std::vector<std::vector<Recall>>;  // [heads of all caches][rows]

CacheRecalls find_recalls(const Probabilities& of, const std::vector<int32_t>& row_token,
                          const std::vector<TestCache>& caches, int32_t window = 0,
                          emulator::Schedule schedule = emulator::Schedule::forward) {
  const auto runtime = runtime_under_test(schedule);
  const size_t rows = row_token.size();
  const CachesOnDevice on_device(*runtime, caches, rows);
  const DeviceArray<float> p = uploaded(*runtime, of.p);
  const DeviceArray<int32_t> tokens = uploaded(*runtime, row_token);
  RowResult untouched;
  untouched.top_mass = kUntouched.top_mass, untouched.index_recall = kUntouched.index_recall;
  const DeviceArray<RowResult> results = filled(*runtime, size_t(on_device.results), untouched);
  RecallArgs args{};
  args.p = p.data(), args.row_token = tokens.data(), args.caches = on_device.caches.data();
  args.results = results.data();
  args.rows = int32_t(rows), args.caches_count = int32_t(caches.size());
  args.first = of.first, args.count = of.count, args.planes = of.planes, args.pitch = of.pitch;
  args.window = window;
  runtime->run(RecallKernel{args});
  const std::vector<RowResult> found = downloaded(*runtime, results);
  CacheRecalls all(found.size() / rows, std::vector<Recall>(rows));
  for (size_t i = 0; i < found.size(); ++i) all[i / rows][i % rows] = {found[i].top_mass, found[i].index_recall};
  return all;
}

template <class Real>
std::vector<int32_t> in_order(std::span<const Real> p) {
  std::vector<int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[size_t(a)] > p[size_t(b)]; });
  return order;
}

Recall plain_recall(std::span<const float> p, const std::vector<int32_t>& attended) {
  if (attended.empty()) return kUntouched;
  const std::vector<int32_t> order = in_order(p);
  double mass = 0;
  int32_t hits = 0;
  for (size_t i = 0; i < attended.size(); ++i) {
    mass += double(p[size_t(order[i])]);
    hits += std::count(attended.begin(), attended.end(), order[i]) > 0 ? 1 : 0;
  }
  return {mass, double(hits) / double(attended.size())};
}

void check_recall(const Recall& mine, const Recall& plain) {
  CHECK(mine.index_recall == plain.index_recall);
  CHECK(std::abs(mine.top_mass - plain.top_mass) <= kMass * std::abs(plain.top_mass));
}

void check_recalls(const Probabilities& p, const std::vector<int32_t>& row_token, const std::vector<TestCache>& caches,
                   int32_t window = 0) {
  const CacheRecalls all = find_recalls(p, row_token, caches, window);
  size_t result = 0;
  for (const TestCache& cache : caches)
    for (int32_t h = 0; h < cache.heads; ++h, ++result)
      for (int32_t r = 0; r < int32_t(row_token.size()); ++r) {
        const Recall& mine = all[result][size_t(r)];
        CAPTURE(result, r);
        if (r < p.first || r >= p.first + p.count) {
          CHECK(mine == kUntouched);
          continue;
        }
        const int32_t t = row_token[size_t(r)], plane = cache.by_head ? 1 + cache.first_head + h : 0;
        check_recall(mine, plain_recall(p.row(plane, r, t + 1), cache.attended(r, t, window)));
      }
}

// A cache of random tokens in no order.
TestCache random_cache(int32_t tokens, int32_t count, uint32_t seed) {
  TestCache cache;
  cache.tokens.resize(size_t(tokens));
  std::iota(cache.tokens.begin(), cache.tokens.end(), 0);
  std::shuffle(cache.tokens.begin(), cache.tokens.end(), std::mt19937(seed));
  cache.tokens.resize(size_t(count));
  cache.spans = {{0, count}};
  return cache;
}
TestCache run_cache(int32_t first, int32_t count) {
  TestCache cache;
  cache.spans = {{first, count}};
  return cache;
}

// One row with these probabilities.
Probabilities one_row(const std::vector<float>& p) { return {0, 1, 1, int32_t(p.size()), p}; }

void check_all_sizes(const std::vector<float>& p) {
  const int32_t tokens = int32_t(p.size());
  std::vector<TestCache> caches;
  for (int32_t size = 1; size <= tokens; size += 1 + size / 4) {
    caches.push_back(random_cache(tokens, size, uint32_t(size)));
    caches.push_back(run_cache(tokens - size, size));
    caches.push_back(run_cache(0, size));
  }
  caches.push_back(run_cache(0, tokens - 1)), caches.push_back(run_cache(0, tokens));
  check_recalls(one_row(p), {tokens - 1}, caches);
}

PlainRows scored_rows(int32_t group) {
  PlainRows rows;
  rows.heads = 2 * group, rows.group = group, rows.tokens = 180;
  for (int32_t t = 20; t < rows.tokens; t += 1 + t % 2) rows.row_token.push_back(t);
  return rows;
}

void check_probabilities(const PlainRows& rows, int32_t first, int32_t count) {
  REQUIRE(first + count <= rows.rows());
  const Probabilities of = find_probabilities(rows, first, count, true);
  double worst = 0;
  for (int32_t r = first; r < first + count; ++r) {
    const int32_t t = rows.row_token[size_t(r)];
    std::vector<double> mean(size_t(t) + 1, 0.0);
    const auto compare = [&](int32_t plane, const std::vector<double>& p) {
      for (size_t j = 0; j < p.size(); ++j) {
        const double error = std::abs(double(of.row(plane, r, t + 1)[j]) - p[j]);
        if (error != 0) worst = std::max(worst, std::isnan(error) ? INFINITY : error / p[j]);
      }
    };
    for (int32_t h = 0; h < rows.heads; ++h) {
      const std::vector<double> p = rows.probabilities(h, r);
      compare(1 + h, p);
      for (size_t j = 0; j < p.size(); ++j) mean[j] += p[j] / rows.heads;
    }
    compare(0, mean);
  }
  CHECK(worst <= probability_tolerance());
}

}  // namespace

TEST_CASE("probabilities of rows equal plain loops", "[device][kernel]") {
  for (const int32_t group : {1, 3})
    for (const int32_t dim : {6, 48, 64, 70}) {
      PlainRows rows = scored_rows(group);
      rows.dim = dim;
      rows.draw(17, false);
      INFO("group " << group << ", dim " << dim);
      check_probabilities(rows, 0, rows.rows());
    }
  PlainRows rows = scored_rows(1);
  rows.draw(18, false);
  check_probabilities(rows, 9, 70);
  rows.row_token = {128};  // the only row with a tile of tokens
  rows.draw(19, false);
  check_probabilities(rows, 0, 1);
  rows = scored_rows(1);
  rows.draw(18, false);
  rows.window = 33, rows.softcap = 2, rows.sink_logits = {1.5f, 3};
  check_probabilities(rows, 64, 9);
  rows.row_token = {95};  // sees one key of the first tile of tokens
  rows.draw(20, false);
  check_probabilities(rows, 0, 1);
}

TEST_CASE("without planes of heads only the mean probabilities are computed", "[device][kernel]") {
  PlainRows rows = scored_rows(3);
  rows.draw(4, false);
  const Probabilities mean = find_probabilities(rows, 3, 70, false), all = find_probabilities(rows, 3, 70, true);
  REQUIRE(mean.planes == 1);
  for (int32_t r = 3; r < 73; ++r) {
    const int32_t tokens = rows.row_token[size_t(r)] + 1;
    const std::span<const float> a = mean.row(0, r, tokens), b = all.row(0, r, tokens);
    CHECK(std::equal(a.begin(), a.end(), b.begin()));
  }
}

TEST_CASE("equal keys have equal probabilities, to the bit", "[device][kernel]") {
  PlainRows rows = scored_rows(3);
  rows.draw(21, false);
  for (int32_t b = 0; b < rows.blocks(); ++b)
    for (int32_t j = 1; j < rows.tokens; ++j)  // every third key is key 0 of its block
      if (j % 3 == 0)
        std::copy_n(rows.k.begin() + b * rows.tokens * rows.dim, rows.dim,
                    rows.k.begin() + (b * rows.tokens + j) * rows.dim);
  const Probabilities of = find_probabilities(rows, 0, rows.rows(), true);
  for (int32_t plane = 0; plane < of.planes; ++plane)
    for (int32_t r = 0; r < rows.rows(); ++r) {
      const std::span<const float> p = of.row(plane, r, rows.row_token[size_t(r)] + 1);
      for (size_t j = 0; j < p.size(); j += 3) CHECK(p[j] == p[0]);
    }
}

TEST_CASE("recalls of four tokens by hand", "[device][kernel]") {
  const Probabilities p = one_row({0.125f, 0.5f, 0.125f, 0.25f});
  TestCache cache;
  cache.tokens = {2, 1};
  cache.spans = {{0, 2}};
  const CacheRecalls all = find_recalls(p, {3}, {cache, run_cache(0, 1), run_cache(0, 3), run_cache(2, 0)});
  CHECK(all[0][0] == Recall{0.75, 0.5});         // tokens 1 and 3 are the best two
  CHECK(all[2][0] == Recall{0.5, 0});            // token 1
  CHECK(all[4][0] == Recall{0.875, 2.0 / 3.0});  // 1, 3 and 0, which comes before its equal 2
  CHECK(all[6][0] == kUntouched);
}

TEST_CASE("tokens after a list belong to a cache up to each row's own token", "[device][kernel]") {
  const Probabilities p = one_row({0.125f, 0.5f, 0.0625f, 0.25f, 0.0625f});
  TestCache cache = run_cache(0, 1);  // token 0
  cache.later_from = 2;
  CHECK(find_recalls(p, {4}, {cache})[0][0] == Recall{0.9375, 0.75});  // holds all of 1, 3, 0, 2 but 1
  CHECK(find_recalls(p, {4}, {cache}, 2)[0][0] == Recall{0.75, 0.5});  // holds 3 of a window's 3 and 4
  cache.later_from = 4;
  CHECK(find_recalls(p, {4}, {cache})[0][0] == Recall{0.75, 0});
}

TEST_CASE("recalls of sets of any size equal those of a sorted row", "[device][kernel]") {
  std::vector<float> p = gaussian<float>(3000, 5);
  for (float& x : p) x = std::exp(3 * x) / 100000;
  check_all_sizes(p);
  p.resize(1);
  check_all_sizes(p);
}

TEST_CASE("recalls take the first of tied tokens", "[device][kernel]") {
  std::vector<float> p = gaussian<float>(1500, 6);
  SECTION("few numbers, each of many tokens")
  for (float& x : p) x = std::exp2(std::round(x)) / 4096;
  SECTION("all the same")
  for (float& x : p) x = 1.0f / 1024;
  SECTION("numbers of one digit")
  for (float& x : p) x = bits_float(0x3a000000u + uint32_t(std::abs(x) * 40));
  SECTION("numbers too small for a digit")
  for (float& x : p) x = std::exp2(std::round(30 * x) - 100);
  SECTION("numbers about the end of the smallest digit")
  for (float& x : p) x = 0x1p-63f * (1 + std::abs(x) / 16);
  SECTION("nothing but zeros and one that holds all") {
    std::fill(p.begin(), p.end(), 0.0f);
    p[700] = 1;
  }
  check_all_sizes(p);
}

TEST_CASE("a set may end with the last of many tied tokens", "[device][kernel]") {
  std::vector<float> p(1000, 1.0f / 4096);
  for (size_t i = 0; i < 400; ++i) p[2 * i] = 1.0f / 1024;
  check_recalls(one_row(p), {999}, {run_cache(0, 399), run_cache(0, 400), run_cache(300, 401)});
}

TEST_CASE("the mass of many tokens is summed in double precision", "[device][kernel]") {
  const std::vector<float> p(40000, 1.0f / 300000);
  const double mass = find_recalls(one_row(p), {39999}, {run_cache(0, 30000)})[0][0].top_mass;
  CHECK(std::abs(mass / (30000 * double(p[0])) - 1) <= kMass);
}

TEST_CASE("recalls count only tokens that a row attends to", "[device][kernel]") {
  const int32_t tokens = 200;
  std::vector<int32_t> row_token(150);
  std::iota(row_token.begin(), row_token.end(), 50);
  Probabilities p{70, 75, 1, tokens, gaussian<float>(75 * 200, 9)};
  for (float& x : p.p) x = std::exp(2 * x) / 1000;
  std::vector<TestCache> caches = {random_cache(tokens, 90, 1), random_cache(tokens, 90, 2), run_cache(30, 100),
                                   random_cache(tokens, 40, 3), run_cache(0, 200)};
  for (TestCache& cache : caches) cache.spans.resize(3, cache.spans[0]);
  caches[0].until.resize(90), caches[2].until.resize(200);
  for (TestCache& cache : caches)
    for (size_t i = 0; i < cache.until.size(); ++i) cache.until[i] = int32_t(110 + 37 * i % 90);
  caches[1].spans = {{0, 10}, {10, 50}, {30, 60}}, caches[3].spans = {{0, 0}, {1, 39}, {0, 0}};
  check_recalls(p, row_token, caches);
  check_recalls(p, row_token, caches, 60);
}

TEST_CASE("heads with separate choices have separate rankings", "[device][kernel]") {
  PlainRows rows = scored_rows(3);
  rows.draw(13, false);
  const Probabilities p = find_probabilities(rows, 0, rows.rows(), true);
  std::vector<TestCache> caches = {random_cache(rows.tokens, 60, 1), random_cache(rows.tokens, 60, 2),
                                   random_cache(rows.tokens, 60, 3), run_cache(10, 60)};
  for (TestCache& cache : caches) cache.spans.resize(3, cache.spans[0]);
  caches[0].by_head = caches[2].by_head = caches[3].by_head = true;
  caches[0].first_head = 3, caches[0].heads = 3, caches[2].first_head = 1, caches[2].heads = 1, caches[3].heads = 6;
  check_recalls(p, rows.row_token, caches);
}

TEST_CASE("recalls take more caches than a block has threads", "[device][kernel]") {
  std::vector<float> p = gaussian<float>(400, 8);
  for (float& x : p) x = std::exp(x) / 1000;
  std::vector<TestCache> caches;
  for (int32_t i = 0; i < 600; ++i) caches.push_back(random_cache(400, 1 + i % 7 + i / 100, uint32_t(i)));
  check_recalls(one_row(p), {399}, caches);
}

TEST_CASE("a NaN probability is in every best set", "[device][kernel]") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> p(600, 1.0f / 1024);
    p[400] = p[500] = bad;
    const CacheRecalls all = find_recalls(one_row(p), {599}, {run_cache(0, 1), run_cache(0, 600), run_cache(300, 200)});
    for (const std::vector<Recall>& of_cache : all) CHECK(std::isnan(of_cache[0].top_mass));
  }
}

TEST_CASE("recalls of attention agree with double precision unless two tokens are nearly equal", "[device][kernel]") {
  PlainRows rows = scored_rows(3);
  rows.draw(31, false);
  for (int32_t b = 0; b < rows.blocks(); ++b)  // pairs of equal keys, so that there are ties
    for (int32_t j = 0; j + 1 < rows.tokens; j += 2)
      std::copy_n(rows.k.begin() + (b * rows.tokens + j) * rows.dim, rows.dim,
                  rows.k.begin() + (b * rows.tokens + j + 1) * rows.dim);
  std::vector<TestCache> caches = {random_cache(rows.tokens, 33, 1), run_cache(0, 50),
                                   random_cache(rows.tokens, 90, 2)};
  for (TestCache& cache : caches) cache.spans.resize(3, cache.spans[0]);
  const CacheRecalls all = find_recalls(find_probabilities(rows, 0, rows.rows(), false), rows.row_token, caches);
  int32_t compared = 0, ties = 0, close = 0;
  for (size_t i = 0; i < caches.size(); ++i)
    for (int32_t r = 0; r < rows.rows(); ++r) {
      const int32_t t = rows.row_token[size_t(r)];
      const std::vector<int32_t> attended = caches[i].attended(r, t, 0);
      std::vector<double> mean(size_t(t) + 1, 0.0);
      for (int32_t h = 0; h < rows.heads; ++h) {
        const std::vector<double> p = rows.probabilities(h, r);
        for (size_t j = 0; j < p.size(); ++j) mean[j] += p[j] / rows.heads;
      }
      const std::vector<int32_t> order = in_order(std::span<const double>(mean));
      const size_t m = attended.size();
      REQUIRE(m > 0);
      double mass = 0;
      int32_t hits = 0;
      for (size_t n = 0; n < m; ++n) {
        mass += mean[size_t(order[n])];
        hits += std::count(attended.begin(), attended.end(), order[n]) > 0 ? 1 : 0;
      }
      CAPTURE(i, r);
      CHECK(std::abs(all[2 * i][size_t(r)].top_mass - mass) <= probability_tolerance() * mass);
      if (m < order.size()) {
        const double last = mean[size_t(order[m - 1])], next = mean[size_t(order[m])];
        ties += last == next ? 1 : 0;
        if (last != next && last - next < kTieTolerance * last) {
          ++close;
          continue;
        }
      }
      ++compared;
      CHECK(all[2 * i][size_t(r)].index_recall == double(hits) / double(m));
    }
  CHECK(close <= compared / 100);
  CHECK(ties >= compared / 10);
}

namespace {

// A short row and long ones: a block finds their last token by different code.
std::vector<CacheRecalls> recalls_of_short_and_long_rows(emulator::Schedule schedule = emulator::Schedule::forward) {
  PlainRows rows = scored_rows(1);
  rows.draw(41, false);
  std::vector<TestCache> caches = {random_cache(rows.tokens, 33, 1), run_cache(0, 50)};
  for (TestCache& cache : caches) cache.spans.resize(3, cache.spans[0]);
  caches[1].by_head = true;
  const Probabilities p = find_probabilities(rows, 0, rows.rows(), true, schedule);
  std::vector<float> long_row = gaussian<float>(3000, 42);
  for (float& x : long_row) x = std::exp(x) / 10000;
  return {
      find_recalls(p, rows.row_token, caches, 0, schedule),
      find_recalls(one_row(long_row), {2999}, {random_cache(3000, 1000, 1), random_cache(3000, 50, 2)}, 0, schedule)};
}

}  // namespace

TEST_CASE("probabilities and recalls repeat bit for bit", "[device][kernel]") {
  CHECK(recalls_of_short_and_long_rows() == recalls_of_short_and_long_rows());
}

TEST_CASE("recalls do not depend on which thread comes first", "[emulator]") {
  const std::vector<CacheRecalls> first = recalls_of_short_and_long_rows();
  for (const emulator::Schedule schedule : kSchedules) CHECK(recalls_of_short_and_long_rows(schedule) == first);
}
