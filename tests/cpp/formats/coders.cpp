#include <cmath>

#include "formats/code_books.hpp"
#include "formats/coders/oscar.hpp"
#include "formats/row_coding.hpp"
#include "support.hpp"

// Every coder on numbers small enough to check by hand.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Numbers = std::vector<double>;
using Parameters = std::vector<std::pair<std::string, std::string>>;
const SerialTeam kTeam;

struct ReadBack {
  Numbers numbers;
  RowCoder::RowOutcome coded;
};
// Codes and decodes a row of `width` numbers as a part of a cache: `row`, then zeros. The prompt is that row.
ReadBack read_back(const PartFormat& f, RowPart part, const Numbers& row, int32_t width) {
  Numbers padded = row;
  padded.resize(size_t(width), 0.0);
  RowFormat format;
  (part == RowPart::key ? format.key : format.value) = f;
  const HeadShape shape{width, width, 1};
  RowCoding::Stream stream{shape, 1, {}, nullptr, {}};
  stream.read = [&](RowPart, int32_t, int32_t, std::span<double> to) {
    std::copy(padded.begin(), padded.end(), to.begin());
  };
  const RowCoding coding(format, stream, {});
  Numbers scratch(size_t(RowCoder::scratch_doubles(shape)));
  const auto numbers = [&](int32_t) { return std::span<const double>(padded); };
  ReadBack r;
  r.coded = coding.coder().code_numbers(kTeam, shape, 0, numbers, numbers, scratch.data());
  const auto from = scratch.begin() + (part == RowPart::key ? 0 : width);
  r.numbers.assign(from, from + std::ptrdiff_t(row.size()));
  return r;
}
Numbers back(const char* name, const Numbers& row, int32_t width, const Parameters& parameters = {},
             RowPart part = RowPart::key, RowRotation rotate = RowRotation::none) {
  PartFormat f = format_with(name, parameters).key;
  f.rotate = rotate, f.pre_rope = false;
  return read_back(f, part, row, width).numbers;
}
double off_by(const Numbers& a, const Numbers& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("fp8: the nearest number, ties to even, within the range", "[formats][coders]") {
  CHECK(back("fp8_e4m3", {0.3, 17, 19, 464, 1000, -1000, 0.001}, 8) == Numbers{0.3125, 16, 20, 448, 448, -448, 0x1p-9});
  CHECK(back("fp8_e5m2", {0.3, 22, 0x1p-17, 0x1.8p-16}, 8) == Numbers{0.3125, 24, 0, 0x1p-15});
  CHECK(back("fp8_e4m3", {1000, 3}, 8, {{"scale", "\"token\""}})[0] == Approx(1000).epsilon(1e-6));
  CHECK(back("fp8_e4m3", {1000, 3}, 8, {{"scale", "\"head\""}})[0] == Approx(1000).epsilon(1e-6));
  const auto counted = read_back(part_format("fp8_e4m3"), RowPart::key, {464, 465, -1000, 0x1p-11, 3}, 8).coded;
  CHECK(counted.numbers.clipped == 2);  // 464 rounds to the largest number
  CHECK(counted.numbers.flushed == 1);
  CHECK(counted.numbers.all == 8);
}

TEST_CASE("nvfp4: blocks of 16 over a scale in E4M3", "[formats][coders]") {
  CHECK(back("nvfp4", {1, -0.3, 0.05, 7}, 16) == Numbers{1.125, -0.5625, 0, 6.75});
  CHECK(back("nvfp4", {6 * 0x1p-10, 1e-4}, 16) == Numbers{0, 0});  // half of the smallest scale rounds to 0
  // With 4 instead of 6 the step is 7/4 = 1.75, and (1.75, 0, 0, 7) has the smaller error.
  CHECK(back("nvfp4", {1.7, 0, 0, 7}, 16, {{"search", "\"four_over_six\""}}) == Numbers{1.75, 0, 0, 7});
}

TEST_CASE("mx: blocks share a power of two, which may clip the largest number", "[formats][coders]") {
  CHECK(back("mxfp4", {1, -0.3, 0.05, 7}, 32) == Numbers{1, -0.5, 0, 6});
  CHECK(back("mxfp4", {1, -0.3, 0.05, 7}, 32, {{"scale_rounding", "\"ceil\""}}) == Numbers{1, 0, 0, 8});
  CHECK(back("mxfp8", {480, 1}, 32) == Numbers{448, 1});
  CHECK(back("mxfp8", {480, 1}, 32, {{"scale_rounding", "\"ceil\""}}) == Numbers{480, 1});
  CHECK(back("mxfp8", {0, 0}, 32) == Numbers{0, 0});
}

TEST_CASE("llama.cpp: the side opposite the extreme is clipped", "[formats][coders]") {
  CHECK(back("q4_0", {8, -1, 3.6, -8}, 32) == Numbers{8, -1, 4, -7});
  CHECK(back("q4_0", {0, 0}, 32) == Numbers{0, 0});
  CHECK(back("q5_0", {16, -1, 3.6, -16}, 32) == Numbers{16, -1, 4, -15});
  CHECK(back("q8_0", {127, -0.5, 0.4}, 32) == Numbers{127, -1, 0});  // half away from zero
  CHECK(back("q4_1", {-1, 14, 0.5, 0.4}, 32) == Numbers{-1, 14, 1, 0});
  CHECK(back("q5_1", {-1, 30, 0.5}, 32) == Numbers{-1, 30, 1});
}

TEST_CASE("ik_llama.cpp: the step with the least weighted error", "[formats][coders]") {
  const Numbers row{8, -1, 3.6, -8, 0};
  CHECK(off_by(back("iq4_nl", row, 32), {8.395, -0.8593, 4.297, -7.469, -0.0661}) < 1e-3);
  CHECK(back("iq4_nl", {0, 0}, 32) == Numbers{0, 0});
  CHECK(off_by(back("q6_0", row, 32), {8.125, -1.0156, 3.5547, -7.8711, 0}) < 1e-4);
  CHECK(back("q6_0", row, 32, {{"scale", "\"plain\""}}) == Numbers{8, -1, 3.5, -7.75, 0});
  CHECK(back("q6_0", {0, 0}, 32) == Numbers{0, 0});
}

TEST_CASE("fp8k_nvfp4v: each part as its own format codes it", "[formats][coders]") {
  const Numbers row{1, -0.3, 0.05, 7};
  CHECK(back("fp8k_nvfp4v", row, 16) == back("fp8_e4m3", row, 16));
  CHECK(back("fp8k_nvfp4v", row, 16, {}, RowPart::value) == back("nvfp4", row, 16, {}, RowPart::value));
}

TEST_CASE("oscar: two bits a number, within the clipped range", "[formats][coders]") {
  const auto coded = [](double clip) {
    Numbers constants(17, 0), row{0, 0.5, 1, 15}, work(12);
    for (size_t i = 0; i < 4; ++i) constants[5 * i] = 1;  // no rotation
    Oscar oscar;
    oscar.clip_key = clip;
    (void)oscar.code(kTeam, CodedRow{RowPart::key, row, work.data(), nullptr, constants.data(), nullptr});
    return row;
  };
  CHECK(coded(0) == Numbers{0, 0, 0, 15});
  CHECK(coded(0.75) == Numbers{0, 0, 0, 15});
  CHECK(off_by(coded(0.5), {0, 2.0 / 3, 1, 1}) < 1e-3);
}

TEST_CASE("one scale per row: the zero is stored in the scale's last bits", "[formats][coders]") {
  const double step = 1 + 4 * 0x1p-23;
  CHECK(back("int4_token_head", {-1, 0.25, 0.5, 2.75}, 4) == Numbers{-step, 0.25 * step, 0.5 * step, 2.75 * step});
  CHECK(back("int8_token_head", {127, 0.5, 1.5, -127}, 4) == Numbers{127, 0, 2, -127});
}

TEST_CASE("turboquant: rotated keys over their norm, values over their range", "[formats][coders]") {
  CHECK(off_by(back("turboquant_3bit_nc", {2, 0, 0, 0}, 4), {2, 0, 0, 0}) < 1e-12);
  PartFormat plain = format_with("tq_mse", {{"rotation", "\"hadamard\""}, {"codebook", "\"gauss\""}}).key;
  CHECK(off_by(read_back(plain, RowPart::key, {2, 0, 0, 0}, 4).numbers, {1.512010, 0, 0, 0}) < 2e-6);
  CHECK(back("turboquant_k8v4", {0, 0.5, 1, 15}, 4, {}, RowPart::value) == Numbers{0, 1, 1, 15});  // half up
  CHECK(back("int4", {0, 0.5, 1, 15}, 4, {}, RowPart::value) == Numbers{0, 0, 1, 15});             // half to even
  CHECK(back("turboquant_k8v4", {0.3, 1000}, 4) == Numbers{0.3125, 448});
}

TEST_CASE("a rotation mixes the numbers of a group", "[formats][coders]") {
  const double step = to_float16(0.2);
  CHECK(back("int4", {4, 1, 1, 1}, 4) == Numbers{15 * step + 1, 1, 1, 1});
  PartCoder hadamard;
  hadamard.rotation = RowRotation::hadamard, hadamard.rotate_block = 4;
  Numbers row{4, 1, 1, 1}, work(4);
  hadamard.turn(kTeam, row, work.data());
  CHECK(row == Numbers{3.5, 1.5, 1.5, 1.5});  // again two levels, which are exact
  CHECK(off_by(back("int4", {4, 1, 1, 1}, 4, {}, RowPart::key, RowRotation::hadamard), {4, 1, 1, 1}) < 1e-3);
}

TEST_CASE("polar: an angle and a radius for each pair", "[formats][coders]") {
  PartFormat f = format_with("polar", {{"levels", "[4]"}}).key;
  // One pair. The rotation is random, so the angle is checked after it.
  const auto levels = angle_levels(1, 4);
  CHECK(levels.size() == 16);
  CHECK(levels[2] == Approx(0.981748));
  CHECK(5 * std::cos(levels[2]) == Approx(2.7779).epsilon(1e-4));
  const auto r = read_back(f, RowPart::key, {3, 4}, 16).numbers;
  double norm = 0;
  for (const double x : read_back(f, RowPart::key, Numbers(16, 0.25), 16).numbers) norm += x * x;
  CHECK(norm == Approx(1).epsilon(1e-3));  // radii of pairs are kept
  CHECK(r.size() == 2);
}

TEST_CASE("code books are the published ones", "[formats][coders]") {
  CHECK(off_by(gauss_levels(2), {-1.510418, -0.452780, 0.452780, 1.510418}) < 1e-6);
  CHECK(off_by(gauss_levels(3), {-2.151946, -1.343909, -0.756005, -0.245094, 0.245094, 0.756005, 1.343909, 2.151946}) <
        1e-6);
  CHECK(off_by(beta_levels(3, 64),
               {-2.111311, -1.329343, -0.750658, -0.243753, 0.243753, 0.750658, 1.329343, 2.111311}) < 1e-6);
  const auto half = angle_levels(3, 2);  // symmetric about a quarter turn
  CHECK(half[0] + half[3] == Approx(std::acos(-1.0) / 2));
}

TEST_CASE("every rotation matrix is orthogonal", "[formats][coders]") {
  const int32_t n = 24;
  for (const RowRotation rotation : {RowRotation::hadamard, RowRotation::hadamard_signed, RowRotation::haar}) {
    RowFormat format;
    format.key = part_format("int8");
    format.key.rotate = rotation;
    const RowCoding coding(format, {{n, n, 1}, 0, {}, nullptr, {}}, RowUniforms{5, {}, {}, {}});
    std::vector<Numbers> rows;
    for (int32_t i = 0; i < n; ++i) {
      Numbers x(size_t(n), 0.0), work(size_t(n), 0.0);
      x[size_t(i)] = 1;
      coding.coder().key.turn(kTeam, x, work.data());
      rows.push_back(x);
      coding.coder().key.turn_back(kTeam, x, work.data());
      Numbers unit(size_t(n), 0.0);
      unit[size_t(i)] = 1;
      CHECK(off_by(x, unit) < 1e-14);
    }
    for (int32_t i = 0; i < n; ++i)
      for (int32_t j = 0; j < n; ++j) {
        double dot = 0;
        for (int32_t c = 0; c < n; ++c) dot += rows[size_t(i)][size_t(c)] * rows[size_t(j)][size_t(c)];
        CHECK(std::abs(dot - (i == j)) < 1e-14);
      }
  }
}

TEST_CASE("inner products with tq_prod are right on average over sketches", "[formats][coders]") {
  const int32_t n = 16, seeds = 2000;
  Numbers k, q;
  for (int32_t i = 0; i < n; ++i) k.push_back(std::sin(3.0 * i)), q.push_back(std::cos(2.0 * i));
  double sum = 0, squares = 0, exact = 0, norm = 0;
  for (int32_t i = 0; i < n; ++i) exact += k[size_t(i)] * q[size_t(i)], norm += k[size_t(i)] * k[size_t(i)];
  RowFormat format;
  format.key = format_with("tq_prod", {{"rotation", "\"hadamard\""}, {"bits", "2"}}).key;
  const HeadShape shape{n, n, 1};
  const auto numbers = [&](int32_t) { return std::span<const double>(k); };
  for (uint32_t seed = 0; seed < uint32_t(seeds); ++seed) {
    const RowCoding coding(format, {shape, 0, {}, nullptr, {}}, RowUniforms{seed, {}, {}, {}});
    Numbers scratch(size_t(RowCoder::scratch_doubles(shape)));
    (void)coding.coder().code_numbers(kTeam, shape, 0, numbers, numbers, scratch.data());
    double dot = 0;
    for (int32_t i = 0; i < n; ++i) dot += scratch[size_t(i)] * q[size_t(i)];
    sum += dot, squares += dot * dot;
  }
  const double mean = sum / seeds, error = std::sqrt((squares / seeds - mean * mean) / seeds);
  const double stored = exact * to_float16(std::sqrt(norm)) / std::sqrt(norm);
  CHECK(error > 0);
  CHECK(std::abs(mean - stored) < 4 * error);
}
