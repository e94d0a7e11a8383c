#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "device/rows.hpp"
#include "device/under_test.hpp"

// Column sums on a device, against plain loops in double precision.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Tolerance of sums of rows (convention C11) against sums of the same products of 16-bit numbers.
double split_sum_tolerance() { return 1e-6 * float32_slack(); }
// Each factor is split into two numbers, which is off by 2^-18 of it. The omitted product of the low numbers costs as
// much. A logit whose terms add up to 6 in absolute value is off by at most 3 * 2^-18 * 6.
constexpr double kSplitSums = 7e-5;

// Rows and keys in device memory.
struct OnDevice {
  const PlainRows& rows;
  Runtime& runtime;
  int32_t width;
  Grade grade;
  Planes q, k;
  DeviceArray<int32_t> row_token;

  OnDevice(const PlainRows& plain, Runtime& on, int32_t padded, Grade of)
      : rows(plain),
        runtime(on),
        width(padded),
        grade(of),
        q(packed(on, plain.q, plain.dim, width, grade)),
        k(packed(on, plain.k, plain.dim, width, grade)),
        row_token(uploaded(on, plain.row_token)) {}
};

struct Normalisers {
  DeviceArray<float> top, z;  // [heads, rows]
};

// Runs the exact pass, then adds the sink logit.
Normalisers find_normalisers(const OnDevice& on) {
  const PlainRows& rows = on.rows;
  Runtime& runtime = on.runtime;
  const size_t count = rows.row_token.size(), cells = size_t(rows.heads) * count;
  std::vector<KeySpan> spans;
  for (size_t first = 0; first < count; first += 64)
    spans.push_back({0, rows.row_token[std::min(first + 64, count) - 1] + 1});
  const DeviceArray<KeySpan> of_tiles = uploaded(runtime, spans);
  const auto parts = filled(runtime, 1, AttendPart{of_tiles.data(), nullptr, nullptr, nullptr, nullptr, 0, rows.heads});
  const auto array = [&] { return filled(runtime, cells, NAN); };
  const DeviceArray<float> top = array(), z = array(), tokens = array(), squares = array(), l2 = array();
  AttendArgs args{};
  args.q_high = on.q.high.data(), args.q_low = on.q.low.data();
  args.k_high = on.k.high.data(), args.k_low = on.k.low.data();
  args.row_token = on.row_token.data(), args.parts = parts.data(), args.parts_count = 1;
  args.sums = {top.data(), z.data(), tokens.data(), squares.data(), nullptr};
  args.rows = rows.rows(), args.tokens = rows.tokens, args.heads = rows.heads, args.group = rows.group;
  args.scale = rows.scale, args.softcap = rows.softcap, args.window = rows.window;
  runtime.attend(args, on.width, on.grade, false);
  const DeviceArray<float> sinks = uploaded(runtime, rows.sink_logits);
  const auto refs = filled(runtime, 1, PartRef{0, 1, 1});
  Normalisers with_sinks{array(), array()};
  runtime.run(ExactMergeKernel{
      {args.sums, rows.sink_logits.empty() ? nullptr : sinks.data(), rows.heads, rows.rows(), on.width, rows.dim},
      {with_sinks.top.data(), with_sinks.z.data(), l2.data(), nullptr},
      refs.data(),
      1});
  return with_sinks;
}

enum class Of { heads, maxima };

// Sums of tokens 0..columns - 1 over the rows from token `first_row` on: [heads, columns], or [columns].
std::vector<double> column_sums(const PlainRows& rows, Grade grade, Of of, int32_t columns, int32_t first_row,
                                emulator::Schedule schedule = emulator::Schedule::forward) {
  const auto runtime = runtime_under_test(schedule);
  const OnDevice on(rows, *runtime, padded_width(rows.dim), grade);
  const Normalisers of_rows = find_normalisers(on);
  const DeviceArray<double> sums = filled(*runtime, size_t(of == Of::maxima ? 1 : rows.heads) * size_t(columns), -1.0);
  ColumnArgs args{};
  args.q_high = on.q.high.data(), args.q_low = on.q.low.data();
  args.k_high = on.k.high.data(), args.k_low = on.k.low.data();
  args.row_token = on.row_token.data(), args.top = of_rows.top.data(), args.z = of_rows.z.data();
  args.sums = sums.data();
  args.rows = rows.rows(), args.tokens = rows.tokens, args.heads = rows.heads, args.group = rows.group;
  args.columns = columns, args.first_row = first_row;
  args.scale = rows.scale, args.softcap = rows.softcap, args.window = rows.window;
  runtime->columns(args, on.width, grade, of == Of::maxima);
  return downloaded(*runtime, sums);
}

std::vector<double> plain_sums(const PlainRows& rows, int32_t columns, int32_t first_row, Of of) {
  const bool maxima = of == Of::maxima;
  std::vector<double> sums(size_t(maxima ? 1 : rows.heads) * size_t(columns), 0.0);
  for (int32_t r = 0; r < rows.rows(); ++r) {
    if (rows.row_token[size_t(r)] < first_row) continue;
    std::vector<double> most(size_t(columns), 0.0);
    for (int32_t h = 0; h < rows.heads; ++h) {
      const std::vector<double> p = rows.probabilities(h, r);
      for (size_t j = 0; j < std::min(p.size(), size_t(columns)); ++j)
        if (maxima) most[j] = std::max(most[j], p[j]);
        else sums[size_t(h) * size_t(columns) + j] += p[j];
    }
    for (size_t j = 0; j < size_t(columns) && maxima; ++j) sums[j] += most[j];
  }
  return sums;
}

// The largest relative error; empty sums are 0.
double worst_error(const std::vector<double>& mine, const std::vector<double>& plain) {
  REQUIRE(mine.size() == plain.size());
  double worst = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    const double error = std::abs(mine[i] - plain[i]);
    if (!(error == 0)) worst = std::max(worst, std::isnan(error) ? INFINITY : error / plain[i]);
  }
  return worst;
}

void check_sums(PlainRows rows, int32_t columns, int32_t first_row, Of of = Of::heads) {
  rows.draw(7, true);
  CHECK(worst_error(column_sums(rows, Grade::recorded, of, columns, first_row),
                    plain_sums(rows, columns, first_row, of)) <= split_sum_tolerance());
  rows.draw(7, false);
  const std::vector<double> sums = column_sums(rows, Grade::single, of, columns, first_row);
  CHECK(worst_error(sums, plain_sums(rows, columns, first_row, of)) <= kSplitSums);
  rows.split = true;
  CHECK(worst_error(sums, plain_sums(rows, columns, first_row, of)) <= split_sum_tolerance());
}

PlainRows prompt_rows(int32_t prompt, int32_t group) {
  PlainRows rows;
  rows.tokens = prompt + 10, rows.group = group, rows.heads = 2 * group;
  rows.row_token.resize(size_t(prompt));
  std::iota(rows.row_token.begin(), rows.row_token.end(), 0);
  return rows;
}

}  // namespace

TEST_CASE("column sums of a prompt are those of plain loops", "[device][kernel]") {
  for (const int32_t group : {1, 3}) {
    PlainRows rows = prompt_rows(150, group);
    INFO("group " << group);
    check_sums(rows, 150, 0);
  }
  PlainRows narrow = prompt_rows(64, 1);
  narrow.dim = 48;
  check_sums(narrow, 64, 0);
  check_sums(prompt_rows(1, 1), 1, 0);
  PlainRows wide = prompt_rows(70, 1);
  wide.dim = 80;
  check_sums(wide, 70, 0);
}

TEST_CASE("column sums respect a window, a soft cap and a sink logit", "[device][kernel]") {
  for (const int32_t window : {1, 66, 129}) {
    PlainRows rows = prompt_rows(300, 1);
    rows.heads = 1, rows.window = window;
    INFO("window " << window);
    check_sums(rows, 300, 0);
  }
  PlainRows rows = prompt_rows(90, 1);
  rows.softcap = 2, rows.sink_logits = {1.5f, 4};
  check_sums(rows, 90, 0);
}

TEST_CASE("column sums count rows from a token on", "[device][kernel]") {
  for (const int32_t first_row : {63, 64, 100, 149, 150}) {
    PlainRows rows = prompt_rows(150, 1);
    rows.heads = 1;
    INFO("from row " << first_row);
    check_sums(rows, 150, first_row);
  }
}

TEST_CASE("column sums take any ascending rows", "[device][kernel][many]") {
  PlainRows rows;
  rows.tokens = 290, rows.heads = 3, rows.group = 3;
  for (int32_t t = 110; t < rows.tokens; t += 1 + t % 2) rows.row_token.push_back(t);
  REQUIRE(rows.rows() % 64 != 0);
  check_sums(rows, rows.tokens, 0);
  rows.window = 90;
  check_sums(rows, rows.tokens, 0);
}

TEST_CASE("without rows column sums are 0", "[device][kernel]") {
  PlainRows rows;
  rows.tokens = 140;
  rows.draw(1, true);
  const std::vector<double> sums = column_sums(rows, Grade::recorded, Of::heads, 140, 0);
  CHECK(std::count(sums.begin(), sums.end(), 0.0) == 280);
}

TEST_CASE("maxima are over the heads of all blocks", "[device][kernel][many]") {
  for (const int32_t group : {1, 3, 6}) {
    PlainRows rows = prompt_rows(140, group);
    rows.heads = 6, rows.window = group == 3 ? 100 : 0;
    INFO("group " << group);
    check_sums(rows, 140, 20, Of::maxima);
  }
}

TEST_CASE("column sums repeat bit for bit", "[device][kernel][many]") {
  PlainRows rows = prompt_rows(150, 1);
  rows.draw(3, false);
  for (const Of of : {Of::heads, Of::maxima})
    CHECK(column_sums(rows, Grade::single, of, 150, 10) == column_sums(rows, Grade::single, of, 150, 10));
}

TEST_CASE("column sums do not depend on which thread comes first", "[emulator][many]") {
  PlainRows rows = prompt_rows(150, 1);
  rows.draw(3, false);
  for (const Of of : {Of::heads, Of::maxima}) {
    const std::vector<double> sums = column_sums(rows, Grade::single, of, 150, 10);
    for (const emulator::Schedule schedule : kSchedules)
      CHECK(column_sums(rows, Grade::single, of, 150, 10, schedule) == sums);
  }
}

TEST_CASE("a large column sum still grows by little", "[device][kernel]") {
  constexpr double kLittle = 0x1p-25;
  PlainRows rows;
  rows.heads = 1, rows.tokens = 2, rows.dim = 1, rows.scale = 1;
  rows.row_token.assign(64, 0);  // they see only token 0
  rows.row_token.resize(64 + 256, 1);
  rows.q.assign(64, 0);  // so that its probability is 1 to the last bit, on every device
  rows.q.resize(64 + 256, 1);
  rows.k = {from_bf16(to_bf16(float(std::log(kLittle)))), 0};
  const double little = std::exp(double(rows.k[0])), sum = column_sums(rows, Grade::recorded, Of::heads, 2, 0)[0];
  CHECK(std::abs(sum - (64 + 256 * little)) <= 1e-3 * 256 * little);
}

TEST_CASE("a NaN query makes the sums of the tokens that it sees NaN, and no others", "[device][kernel]") {
  PlainRows rows = prompt_rows(150, 1);
  rows.draw(5, true);
  rows.q[size_t(150 + 70) * 64 + 3] = NAN;  // head 1, row 70
  const std::vector<double> sums = column_sums(rows, Grade::recorded, Of::heads, 150, 0),
                            most = column_sums(rows, Grade::recorded, Of::maxima, 150, 0);
  for (int32_t j = 0; j < 150; ++j) {
    CAPTURE(j);
    CHECK_FALSE(std::isnan(sums[size_t(j)]));
    CHECK(std::isnan(sums[size_t(150 + j)]) == (j <= 70));
    CHECK(std::isnan(most[size_t(j)]) == (j <= 70));
  }
}
