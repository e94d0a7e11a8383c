#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "device/under_test.hpp"

// Attention over lists of tokens on tensor cores, against plain loops in double.

using namespace kvreplay;
using namespace kvreplay::test;
using emulator::Schedule;

namespace {

struct Problem {
  int32_t heads = 3, blocks = 1, tokens = 200, rows = 70, dim = 48, width = 64;
  float scale = 0.15f, softcap = 0;
  int32_t window = 0;
  bool rounded = false;  // round numbers to bf16
  std::vector<float> q, k, v;
  std::vector<int32_t> row_token;

  std::vector<float> numbers(size_t count, uint32_t seed) const {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> all(count);
    for (float& x : all) x = rounded ? from_bf16(to_bf16(normal(engine))) : normal(engine);
    return all;
  }
  void fill() {
    q = numbers(size_t(heads * rows * dim), 1);
    k = numbers(size_t(blocks * tokens * dim), 2);
    v = numbers(size_t(blocks * tokens * dim), 3);
    for (int32_t r = 0; r < rows; ++r) row_token.push_back(tokens - 2 * (rows - r));
  }
  int32_t group() const { return heads / blocks; }
  double logit(int32_t head, int32_t row, int32_t token) const {
    double dot = 0;
    for (int32_t c = 0; c < dim; ++c)
      dot += double(q[size_t((head * rows + row) * dim + c)]) *
             double(k[size_t((head / group() * tokens + token) * dim + c)]);
    const double l = dot * double(scale);
    return softcap > 0 ? double(softcap) * std::tanh(l / double(softcap)) : l;
  }
  double value(int32_t head, int32_t token, int32_t c) const {
    return double(v[size_t((head / group() * tokens + token) * dim + c)]);
  }
};

// A list as the host writes it. Without tokens it is the run first..last.
struct List {
  int32_t first = 0, last = 0;
  std::vector<int32_t> tokens, until;
  std::vector<float> num, den;
  int32_t first_head = 0, heads = 3;
};

struct Row {
  double top = -INFINITY, z = 0, tokens = 0, squares = 0;
  std::vector<double> out;
};

Row by_hand(const Problem& p, const List& list, int32_t head, int32_t row) {
  Row r;
  r.out.assign(size_t(p.dim), 0.0);
  const int32_t t = p.row_token[size_t(row)];
  const size_t count = list.tokens.empty() ? size_t(list.last - list.first + 1) : list.tokens.size();
  std::vector<std::pair<size_t, int32_t>> seen;  // entry, token
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = list.tokens.empty() ? list.first + int32_t(i) : list.tokens[i];
    const bool left = !list.until.empty() && t >= list.until[i];
    if (token <= t && !left && (p.window == 0 || token > t - p.window)) seen.emplace_back(i, token);
  }
  for (const auto& [i, token] : seen) r.top = std::max(r.top, p.logit(head, row, token));
  for (const auto& [i, token] : seen) {
    const double e = std::exp(p.logit(head, row, token) - r.top);
    r.z += e * (list.den.empty() ? 1.0 : double(list.den[i]));
    r.tokens += e, r.squares += e * e;
    for (int32_t c = 0; c < p.dim; ++c)
      r.out[size_t(c)] += e * (list.num.empty() ? 1.0 : double(list.num[i])) * p.value(head, token, c);
  }
  return r;
}

struct GroupSums {
  std::vector<float> top, z, tokens, squares, out;
};

// As DeviceHead does: uploads everything, packs it and attends to it.
GroupSums attend(const Problem& p, const std::vector<List>& lists, Grade grade, Schedule schedule = Schedule::forward) {
  const auto runtime = runtime_under_test(schedule);
  const Planes q = packed(*runtime, p.q, p.dim, p.width, grade), k = packed(*runtime, p.k, p.dim, p.width, grade),
               v = packed(*runtime, p.v, p.dim, p.width, grade);
  const DeviceArray<int32_t> row_token = uploaded(*runtime, p.row_token);
  std::vector<DeviceArray<int32_t>> integers;
  std::vector<DeviceArray<float>> reals;
  std::vector<DeviceArray<KeySpan>> spans;
  std::vector<AttendPart> parts;
  const auto up = [&](const auto& numbers, auto& arrays) {
    arrays.push_back(uploaded(*runtime, numbers));
    return numbers.empty() ? nullptr : arrays.back().data();
  };
  for (const List& list : lists) {
    std::vector<KeySpan> of_tile;
    for (int32_t row = 0; row < p.rows; row += 64) {
      const int32_t newest = p.row_token[size_t(std::min(row + 64, p.rows) - 1)];
      if (list.tokens.empty()) of_tile.push_back({list.first, std::min(list.last, newest) - list.first + 1});
      else of_tile.push_back({0, int32_t(list.tokens.size())});
    }
    parts.push_back({up(of_tile, spans), up(list.tokens, integers), up(list.until, integers), up(list.num, reals),
                     up(list.den, reals), list.first_head, list.heads});
  }
  const DeviceArray<AttendPart> device_parts = uploaded(*runtime, parts);
  const size_t cells = lists.size() * size_t(p.heads * p.rows);
  const auto array = [&](size_t count) { return filled(*runtime, count, NAN); };
  const DeviceArray<float> top = array(cells), z = array(cells), tokens = array(cells), squares = array(cells),
                           out = array(cells * size_t(p.width));
  AttendArgs args{};
  args.q_high = q.high.data(), args.q_low = q.low.data();
  args.k_high = k.high.data(), args.k_low = k.low.data();
  args.v_high = v.high.data(), args.v_low = v.low.data();
  args.row_token = row_token.data(), args.parts = device_parts.data();
  args.sums = {top.data(), z.data(), tokens.data(), squares.data(), out.data()};
  args.rows = p.rows, args.tokens = p.tokens, args.heads = p.heads, args.group = p.group();
  args.parts_count = int32_t(lists.size());
  args.scale = p.scale, args.softcap = p.softcap, args.window = p.window;
  runtime->attend(args, p.width, grade, true);
  return {downloaded(*runtime, top), downloaded(*runtime, z), downloaded(*runtime, tokens),
          downloaded(*runtime, squares), downloaded(*runtime, out)};
}

void check_rows(const Problem& p, const std::vector<List>& lists, const GroupSums& sums, double tolerance) {
  for (size_t part = 0; part < lists.size(); ++part)
    for (int32_t head = lists[part].first_head; head < lists[part].first_head + lists[part].heads; ++head)
      for (int32_t row = 0; row < p.rows; ++row) {
        CAPTURE(part, head, row);
        const Row expected = by_hand(p, lists[part], head, row);
        const size_t cell = (part * size_t(p.heads) + size_t(head)) * size_t(p.rows) + size_t(row);
        if (expected.z == 0) {
          REQUIRE(sums.top[cell] == -INFINITY);
          REQUIRE(sums.z[cell] == 0);
          continue;
        }
        const double lift = std::exp(double(sums.top[cell]) * std::log(2.0) - expected.top);
        REQUIRE(sums.z[cell] * lift == Approx(expected.z).epsilon(tolerance));
        REQUIRE(sums.tokens[cell] * lift == Approx(expected.tokens).epsilon(tolerance));
        REQUIRE(sums.squares[cell] * lift * lift == Approx(expected.squares).epsilon(tolerance));
        double off = 0, norm = 0;
        for (int32_t c = 0; c < p.dim; ++c) {
          const double difference = sums.out[cell * size_t(p.width) + size_t(c)] * lift - expected.out[size_t(c)];
          off += difference * difference, norm += expected.out[size_t(c)] * expected.out[size_t(c)];
        }
        REQUIRE(std::sqrt(off / norm) < tolerance);
        for (int32_t c = p.dim; c < p.width; ++c) REQUIRE(sums.out[cell * size_t(p.width) + size_t(c)] == 0);
      }
}

// The whole trace, a set with weights, and a set whose tokens are evicted.
std::vector<List> example_lists(const Problem& p) {
  List all{0, p.tokens - 1, {}, {}, {}, {}, 0, p.heads}, set = all, moving = all;
  for (int32_t i = 0; i < p.tokens; i += 3) {
    set.tokens.push_back(i), set.num.push_back(float(1 + i % 5)), set.den.push_back(float(1 + i % 4));
    moving.tokens.push_back(i), moving.until.push_back(i % 2 == 0 ? p.tokens : p.tokens - p.rows);
  }
  moving.first_head = 1, moving.heads = p.heads - 1;
  return {all, set, moving};
}

void same_bits(const GroupSums& a, const GroupSums& b) {
  const auto bits = [](const std::vector<float>& x) {
    std::vector<uint32_t> all(x.size());
    std::transform(x.begin(), x.end(), all.begin(), [](float one) { return float_bits(one); });
    return all;
  };
  CHECK(bits(a.top) == bits(b.top));
  CHECK(bits(a.z) == bits(b.z));
  CHECK(bits(a.tokens) == bits(b.tokens));
  CHECK(bits(a.squares) == bits(b.squares));
  CHECK(bits(a.out) == bits(b.out));
}

}  // namespace

TEST_CASE("attention over lists equals plain loops, in every grade", "[device][kernel]") {
  for (const auto& [grade, rounded, tolerance] :
       {std::tuple(Grade::single, false, 3e-5), std::tuple(Grade::recorded, true, 2e-5),
        std::tuple(Grade::bf16, true, 1e-2)}) {
    Problem p;
    p.rounded = rounded;
    p.fill();
    const auto lists = example_lists(p);
    check_rows(p, lists, attend(p, lists, grade), tolerance);
  }
}

TEST_CASE("attention respects the layer's window and soft cap", "[device][kernel]") {
  Problem p;
  p.window = 33, p.softcap = 1.5f;
  p.heads = 2, p.blocks = 2;
  p.fill();
  auto lists = example_lists(p);
  check_rows(p, lists, attend(p, lists, Grade::single), 3e-5);
}

TEST_CASE("heads of up to 128 and 256 numbers have separate kernels", "[device][kernel]") {
  for (const int32_t dim : {80, 200}) {
    Problem p;
    p.heads = 1, p.tokens = 90, p.rows = 20, p.dim = dim, p.width = padded_width(dim), p.scale = 0.08f;
    p.fill();
    const List all{0, p.tokens - 1, {}, {}, {}, {}, 0, 1};
    check_rows(p, {all}, attend(p, {all}, Grade::single), 3e-5);
  }
  CHECK(padded_width(257) == 0);
}

TEST_CASE("a float32 number is packed as two of 16 bits that add up to it", "[device][kernel]") {
  constexpr int32_t kDim = 5, kWidth = 64;
  Problem p;
  std::vector<float> x = p.numbers(7 * kDim, 4);
  x[0] = 1 + 0x1p-8f, x[1] = 1 + 0x3p-8f;  // ties go to even
  x[2] = NAN, x[3] = 0, x[4] = -3;
  const auto runtime = runtime_under_test();
  const Planes planes = packed(*runtime, x, kDim, kWidth, Grade::single);
  const std::vector<uint16_t> high = downloaded(*runtime, planes.high), low = downloaded(*runtime, planes.low);
  REQUIRE(high.size() == 7 * kWidth);
  CHECK(from_bf16(high[0]) == 1);
  CHECK(from_bf16(high[1]) == 1 + 0x1p-6f);
  CHECK(std::isnan(from_bf16(high[2])));
  for (size_t i = 0; i < high.size(); ++i) {
    CAPTURE(i);
    const size_t column = i % kWidth;
    const double number = column < kDim ? double(x[i / kWidth * kDim + column]) : 0, first = double(from_bf16(high[i])),
                 rest = double(from_bf16(low[i]));
    if (std::isnan(number)) continue;
    CHECK(std::abs(number - first) <= 0x1p-8 * std::abs(number));
    CHECK(std::abs(number - first - rest) <= 0x1p-17 * std::abs(number));
  }
}

TEST_CASE("attention repeats bit for bit", "[device][kernel][many]") {
  Problem p;
  p.fill();
  const auto lists = example_lists(p);
  same_bits(attend(p, lists, Grade::single), attend(p, lists, Grade::single));
}

TEST_CASE("the order of threads changes no bit of attention", "[emulator][many]") {
  Problem p;
  p.fill();
  const auto lists = example_lists(p);
  const GroupSums forward = attend(p, lists, Grade::single);
  for (const Schedule schedule : {Schedule::backward, Schedule::shuffled})
    same_bits(forward, attend(p, lists, Grade::single, schedule));
}

TEST_CASE("a NaN key makes every row that attends to it NaN", "[device][kernel]") {
  Problem p;
  p.fill();
  p.k[size_t(100 * p.dim)] = NAN;
  const List all{0, p.tokens - 1, {}, {}, {}, {}, 0, p.heads};
  const GroupSums sums = attend(p, {all}, Grade::single);
  for (int32_t row = 0; row < p.rows; ++row) {
    CAPTURE(row);
    CHECK(std::isnan(sums.z[size_t(row)]) == (p.row_token[size_t(row)] >= 100));
  }
}
