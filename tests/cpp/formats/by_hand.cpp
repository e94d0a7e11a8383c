#include <bit>
#include <numeric>

#include "caches/cache_state.hpp"
#include "core/halves.hpp"
#include "core/quantise.hpp"
#include "formats/formatter.hpp"
#include "support.hpp"

// Row formats on numbers small enough to check by hand.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const SerialTeam kTeam;

RowFormat by_token(const char* name, int32_t group) { return format_with(name, {{"group", std::to_string(group)}}); }
RowFormat by_block(const char* name, int32_t bits, int32_t g, int32_t R) {
  return format_with(name, {{"bits", std::to_string(bits)}, {"g", std::to_string(g)}, {"R", std::to_string(R)}});
}
RowFormat gear_with(int32_t bits, int32_t g, int32_t R, int32_t rank, int32_t outliers) {
  return format_with("gear", {{"bits", std::to_string(bits)},
                              {"g", std::to_string(g)},
                              {"R", std::to_string(R)},
                              {"rank", std::to_string(rank)},
                              {"outliers", std::to_string(outliers)}});
}

std::vector<double> quantised(std::vector<double> numbers, int32_t group, int32_t levels) {
  CHECK(quantise_row(std::span(numbers), group, levels));
  return numbers;
}

// A cache over tokens with known numbers, and a formatter that codes them.
struct Shelf {
  HeadStream<double> stream;
  CacheMemory<double> memory;
  BasicCache<double> cache;
  Formatter<double> formatter;
  Shelf(const RowFormat& format, HeadShape shape, std::vector<double> keys, std::vector<double> values,
        bool split = false) {
    stream.shape = shape;
    stream.keys = std::move(keys);
    stream.values = std::move(values);
    stream.tokens = int32_t(stream.keys.size()) / (shape.dim * shape.blocks);
    formatter = Formatter<double>(
        std::make_shared<RowCoding>(format, RowCoding::Stream{shape, 0, {}, nullptr, {}}, RowUniforms{}), 2, split);
    memory.allocate(stream, shape, {.weights = split, .split = split, .own_rows = stream.tokens + 1, .coded = true},
                    stream.tokens, false);
    cache = BasicCache<double>(memory.storage());
    cache.clear(kTeam);
  }
  void push(double num = 1, double den = 1) {
    cache.push(Token<double>({}, {}, next_++), num, den);
    formatter.code_new(cache, cache.size());
  }
  std::vector<double> keys() const {
    std::vector<double> all;
    for (int32_t row = 0; row < cache.size(); ++row) all.push_back(cache.key(row)[0]);
    return all;
  }
  int64_t bytes() { return formatter.payload(cache).bytes; }
  int64_t sketch() { return formatter.sketch_bytes(cache); }

 private:
  int32_t next_ = 0;
};

std::vector<double> counting(size_t n, double step = 1) {
  std::vector<double> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = step * double(i);
  return numbers;
}

}  // namespace

TEST_CASE("codes are the nearest of evenly spaced levels, ties to the even code", "[formats]") {
  CHECK(quantised({0, 0.5, 1.5, 2.5, 3, 1.2}, 6, 3) == std::vector<double>{0, 0, 2, 2, 3, 1});
  CHECK(quantised({-1, 2, 0.4, 0.6, 10, 40, 24, 26}, 4, 3) == std::vector<double>{-1, 2, 0, 1, 10, 40, 20, 30});
  CHECK(quantised({0, 3, 1, 8, 11}, 3, 3) == std::vector<double>{0, 3, 1, 8, 11});  // the last group is shorter
}

TEST_CASE("codes come from the exact extremes, values from offset and step in float16", "[formats]") {
  const double tenth = 0.0999755859375;  // 0.1 in float16
  const auto back = quantised({0.1, 1.6, 0.7, 0.74}, 4, 15);
  CHECK(back == std::vector<double>{tenth, 15 * tenth + tenth, 6 * tenth + tenth, 6 * tenth + tenth});
}

TEST_CASE("a group without range gives its offset back", "[formats]") {
  CHECK(quantised({2.5, 2.5, 2.5}, 3, 15) == std::vector<double>{2.5, 2.5, 2.5});
  CHECK(quantised({0, 0}, 2, 255) == std::vector<double>{0, 0});
  CHECK(quantised({0.1, 0.1}, 2, 15)[1] == 0.0999755859375);
}

TEST_CASE("rounding to 16 bits agrees with the trace reader's, bit by bit", "[formats]") {
  CHECK(to_float16(65519) == 65504);
  CHECK(std::isinf(to_float16(-65520)));
  CHECK(to_float16(0x1p-25) == 0);
  CHECK(to_float16(0x1.8p-24) == 0x1p-23);
  CHECK(to_float16(1 + 0x1p-11) == 1);
  CHECK(to_float16(1 + 0x1.8p-10) == 1 + 0x1p-9);
  const Rng rng{5, 0, 0, 0};
  for (int32_t i = 0; i < 20000; ++i) {
    const auto bits = uint32_t(rng.uniform(RngStream::bootstrap, i) * 4294967296.0);
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x)) continue;
    INFO(x);
    CHECK(float(to_float16(double(x))) == widen_float16(narrow_float16(x)));
    CHECK(float(to_bfloat16(double(x))) == from_bf16(to_bf16(x)));
  }
}

TEST_CASE("int4 charges 36 bytes for 64 numbers, offsets and steps as sketch", "[formats]") {
  Shelf shelf(by_token("int4", 64), {64, 64, 1}, counting(3 * 64), counting(3 * 64));
  shelf.push(), shelf.push();
  CHECK(shelf.bytes() == 2 * 2 * 32);
  CHECK(shelf.sketch() == 2 * 2 * 4);
  CHECK(shelf.formatter.quantised() == 2);
  shelf.cache.push(Token<double>({}, {}, 2));  // while attending, the newest row is exact, at source width
  CHECK(shelf.bytes() == 2 * 2 * 32 + 2 * 64 * 2);
  CHECK(row_bytes(by_token("int4", 64), 64, 64, 2) == 72);
  CHECK(row_bytes(by_token("int4", 64), 64, 64, 2) / row_bytes({}, 64, 64, 2) == 0.28125);
  CHECK(row_bytes(by_token("int8", 64), 64, 64, 2) == 136);
  CHECK(row_bytes(format_with("kvquant", {{"bits", "3"}}), 64, 64, 2) == Approx(24 + 2.56 + 24 + 4 + 8));
  CHECK(row_bytes(by_token("int4", 5), 11, 7, 2) == 6 + 4 + 4 * (3 + 2));
}

TEST_CASE("kivi: keys are coded when R wait, in groups of g tokens; values when R newer ones are held", "[formats]") {
  // Keys 0 1 3 6 10 ...: in a group of 2 both extremes are exact, so R = 4, g = 4 with 3 levels shows the
  // codes.
  Shelf shelf(by_block("kivi", 2, 4, 4), {1, 2, 1}, {0, 1, 2.5, 3, 10, 20, 30, 40, 7}, counting(18));
  const std::vector<std::pair<int32_t, int32_t>> coded{{0, 0}, {0, 0}, {0, 0}, {4, 0}, {4, 1},
                                                       {4, 2}, {4, 3}, {8, 4}, {8, 5}};
  for (const auto& [keys, values] : coded) {
    shelf.push();
    CHECK(shelf.cache.coded_keys() == keys);
    CHECK(shelf.cache.coded_values() == values);
  }
  CHECK(shelf.keys() == std::vector<double>{0, 1, 2, 3, 10, 20, 30, 40, 7});
  CHECK(shelf.cache.coding(4).value != Coding::kExact);
  CHECK(shelf.cache.coding(5).value_exact());
  CHECK(shelf.formatter.quantised() == 8);
  // 8 keys of a byte (2 bits) and 1 exact; 5 values of a byte (2 x 2 bits) and 4 exact, of 1 + 8 numbers of 2 bytes.
  CHECK(shelf.bytes() == 8 + 5 + 2 * (1 + 8));
  CHECK(shelf.sketch() == 4 * (2 * 1 + 5 * 1));
  CHECK(row_bytes(by_block("kivi", 2, 32, 128), 64, 64, 2) == 128 * (2 + 32.0 / 32) / 8);
}

TEST_CASE("kivi: a group is formed from surviving rows, and charged until its last row is evicted", "[formats]") {
  Shelf shelf(by_block("kivi", 2, 2, 4), {1, 2, 1}, counting(12), counting(24));
  for (int32_t i = 0; i < 3; ++i) shelf.push();
  shelf.cache.drop(kTeam, 1);  // the residual holds tokens 0 and 2
  shelf.push();
  CHECK(shelf.cache.coded_keys() == 0);
  shelf.push();  // tokens 0, 2, 3 and 4 fill it
  CHECK(shelf.cache.coded_keys() == 4);
  CHECK(shelf.cache.coding(0).key == shelf.cache.coding(1).key);
  CHECK(shelf.cache.coding(2).key == shelf.cache.coding(3).key);
  CHECK(shelf.cache.coding(1).key != shelf.cache.coding(2).key);
  CHECK(shelf.sketch() == 4 * 2);
  shelf.cache.drop(kTeam, 0);
  CHECK(shelf.sketch() == 4 * 2);
  CHECK(shelf.bytes() == 3 + 2 * (3 * 2));  // each row's code takes a separate byte
  shelf.cache.drop(kTeam, 0);
  CHECK(shelf.sketch() == 4 * 1);
}

TEST_CASE("data attached to a row survives evictions of earlier rows", "[formats]") {
  for (const RowFormat& format : {by_token("int4", 2), by_block("kivi", 2, 2, 2)}) {
    Shelf shelf(format, {2, 2, 1}, counting(20, 0.3), counting(20, 0.7));
    for (int32_t i = 0; i < 6; ++i) shelf.push();
    const auto before = shelf.cache.coding(4);
    const int64_t rows = shelf.formatter.quantised();
    const auto numbers = std::vector<double>(shelf.cache.key(4).begin(), shelf.cache.key(4).end());
    shelf.cache.drop(kTeam, 1);
    shelf.cache.retain(kTeam, [&](int32_t i) { return shelf.cache.token(i) != 2; });
    shelf.formatter.code_new(shelf.cache, shelf.cache.size());
    CHECK(shelf.cache.token(2) == 4);
    CHECK(shelf.cache.coding(2).key == before.key);
    CHECK(shelf.cache.coding(2).value == before.value);
    CHECK(std::equal(numbers.begin(), numbers.end(), shelf.cache.key(2).begin()));
    CHECK(shelf.formatter.quantised() == rows);
  }
}

TEST_CASE("a row that a policy writes is exact until the end of the step, then coded like any other", "[formats]") {
  Shelf shelf(by_token("int4", 4), {4, 1, 1}, counting(12), counting(3));
  shelf.push(), shelf.push();
  const double written[] = {0, 15, 7.4, 0.4};
  shelf.cache.rewrite(
      kTeam, 0, [&](int32_t, int32_t c) { return written[c]; }, [](int32_t, int32_t) { return 1.0; });
  CHECK(shelf.cache.coding(0).key_exact());
  CHECK(shelf.cache.coded_keys() == 1);
  shelf.cache.push_own(
      kTeam, [&](int32_t c) { return 2 * written[c]; }, [](int32_t) { return 1.0; }, 1, 1);
  CHECK(shelf.cache.coded_keys() == 1);
  shelf.formatter.code_new(shelf.cache, shelf.cache.size());
  CHECK(shelf.cache.coded_keys() == 3);
  CHECK(shelf.cache.key(0)[2] == 7);
  CHECK(shelf.cache.key(2)[2] == 14);
}

TEST_CASE("a token that replaces a coded row is exact again", "[formats]") {
  Shelf shelf(by_token("int4", 4), {4, 1, 1}, counting(12), counting(3));
  shelf.push();
  shelf.cache.replace(0, Token<double>({}, {}, 2), 1, 1);
  CHECK(shelf.cache.verbatim(0));
  CHECK(shelf.cache.coded_keys() == 0);
}

TEST_CASE("kivi: sinks stay exact wherever their rows are", "[formats]") {
  RowFormat format = by_block("kivi", 2, 2, 2);
  format.full_precision.sinks = 2;
  Shelf shelf(format, {1, 2, 1}, counting(12), counting(24));
  const auto again = [&](int32_t token) { shelf.cache.push(Token<double>({}, {}, token)); };
  for (int32_t i = 0; i < 5; ++i) shelf.push();
  again(0), again(1);  // held twice, as some methods do
  shelf.formatter.code_new(shelf.cache, shelf.cache.size());
  for (int32_t i = 0; i < 3; ++i) shelf.push();
  for (int32_t row = 0; row < shelf.cache.size(); ++row) {
    INFO(row);
    const bool sink = shelf.cache.token(row) < 2;
    CHECK(shelf.cache.coding(row).key_exact() == sink);
    CHECK(shelf.cache.coding(row).value_exact() == (sink || row >= shelf.cache.size() - 2));
  }
}

TEST_CASE("rows that count only in the denominator store no value to code", "[formats]") {
  Shelf shelf(by_block("kivi", 2, 2, 2), {1, 2, 1}, counting(8), counting(16), true);
  for (int32_t i = 0; i < 6; ++i) shelf.push(i % 2, 1);  // values of tokens 1, 3 and 5
  CHECK(shelf.cache.coded_keys() == 6);
  CHECK(shelf.cache.coded_values() == 1);
  CHECK_FALSE(shelf.cache.coding(1).value_exact());
  CHECK(shelf.bytes() == 6 + 1 + 2 * (2 * 2));
  CHECK(shelf.sketch() == 4 * (3 + 1));
}

TEST_CASE("a cache of a layer codes each kv head as if it were alone", "[formats]") {
  std::vector<double> keys[2], values[2];
  const Rng rng{9, 0, 0, 0};
  for (int32_t i = 0; i < 2 * 12 * 3; ++i) {
    keys[i / 36].push_back(rng.uniform(RngStream::bootstrap, i, 0));
    values[i / 36].push_back(rng.uniform(RngStream::bootstrap, i, 1));
  }
  const auto joined = [](const std::vector<double>* parts) {
    auto all = parts[0];
    all.insert(all.end(), parts[1].begin(), parts[1].end());
    return all;
  };
  const RowFormat gear = gear_with(2, 2, 4, 1, 10);
  for (const RowFormat& format : {by_token("int4", 2), by_block("kivi", 2, 2, 4), gear}) {
    Shelf layer(format, {3, 3, 2, 2}, joined(keys), joined(values));
    Shelf heads[] = {{format, {3, 3, 1}, keys[0], values[0]}, {format, {3, 3, 1}, keys[1], values[1]}};
    for (int32_t t = 0; t < 12; ++t) {
      layer.push();
      for (int32_t b = 0; b < 2; ++b) {
        heads[b].push();
        CHECK(layer.bytes() == heads[b].bytes());
        CHECK(layer.sketch() == heads[b].sketch());
        for (int32_t row = 0; row <= t; ++row) {
          const auto a = layer.cache.key(row, b), alone = heads[b].cache.key(row);
          const auto v = layer.cache.value(row, b), v_alone = heads[b].cache.value(row);
          CHECK(std::equal(a.begin(), a.end(), alone.begin()));
          CHECK(std::equal(v.begin(), v.end(), v_alone.begin()));
        }
      }
    }
  }
}

TEST_CASE("gear: a correction with the residual's rank restores it, and outliers are exact", "[formats]") {
  const int32_t rows = 6, width = 5;
  std::vector<double> exact, zero(size_t(rows * width), 0.0);
  for (int32_t i = 0; i < rows; ++i)
    for (int32_t c = 0; c < width; ++c) exact.push_back(double((i + 1) * (c - 1)) + double(i * i) * 0.5);
  auto coded = zero;
  const Correction two = correct(exact, width, 2, 0, coded);
  CHECK(two.rank == 2);
  CHECK(two.outliers == 0);
  CHECK(relative_difference(coded, exact) < 1e-12);
  coded = zero;
  CHECK(correct(exact, width, 0, 10, coded).outliers == 3);
  std::vector<size_t> restored;
  for (size_t i = 0; i < coded.size(); ++i)
    if (coded[i] != 0) restored.push_back(i);
  CHECK(restored == std::vector<size_t>{24, 28, 29});  // 30.5, 24.5 and 23
}

TEST_CASE("gear: outliers are removed before a row is coded, or are the numbers with the largest coding error",
          "[formats]") {
  const auto read_back = [](const char* order) {
    PartFormat format = gear_with(2, 4, 4, 0, 50).key;
    set_parameter(format, "order", order);
    Shelf shelf(row_format(format), {1, 2, 1}, {0, 100, 1, 3}, counting(8));
    for (int32_t i = 0; i < 4; ++i) shelf.push();
    return shelf.keys();
  };
  // The mean 26 replaces 0 and 100, so the step is 25 / 3, and 3 is coded as 1.
  CHECK(read_back("\"outliers_first\"") == std::vector<double>{0, 100, 1, 1});
  CHECK(read_back("\"residual\"") == std::vector<double>{0, 3 * to_float16(100.0 / 3), 1, 3});
}

TEST_CASE("gear charges codes, factors and outliers", "[formats]") {
  const RowFormat format = gear_with(2, 2, 4, 1, 50);
  std::vector<double> numbers(24);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(double(i * i));
  Shelf shelf(format, {4, 2, 1}, numbers, std::vector<double>(numbers.begin(), numbers.begin() + 12));
  for (int32_t i = 0; i < 4; ++i) shelf.push();
  // Keys 4 x 4 take 32 bits, factors 4 + 4, and the smallest and largest of each channel; values are exact.
  CHECK(shelf.bytes() == 4 + 2 * (4 + 4 + 8) + 2 * 8);
  CHECK(shelf.sketch() == 4 * (2 * 4) + 4 * 8);
  shelf.cache.drop(kTeam, 0);  // its codes, its share of the factors and its value are freed
  CHECK(shelf.bytes() == 3 + 2 * (3 + 4 + 8) + 2 * 6);
}

TEST_CASE("numbers beyond float16 fail the cell with a remedy", "[formats]") {
  const StreamShape s;
  auto stream = make_stream<float>(s);
  stream.keys[size_t(3 * s.dim)] = 1e6f;
  for (const RowFormat& format : {by_token("int4", 64), format_with("f16"), by_block("kivi", 2, 2, 8)}) {
    const Cell cell = changed(make_cell("exact", {}, s), [&](Variant& v) { v.options.row_format = format; });
    const CellResult r = replay(stream, {cell}).only();
    CHECK_FALSE(r.ok);
    CHECK_THAT(r.error, Catch::Contains("65504") && Catch::Contains("use row_format f32 or bf16"));
  }
}

TEST_CASE("a rounding that changes nothing leaves rows uncoded", "[formats]") {
  const StreamShape s;
  auto stream = make_stream<float>(s);
  for (float& x : stream.keys) x = float(to_float16(x));
  for (float& x : stream.values) x = float(to_float16(x));
  const Cell plain = make_cell("h2o", 20, s),
             rounded = changed(plain, [](Variant&v) { v.options.row_format = row_format("f16"); });
  const RunResult r = replay(stream, {plain, rounded});
  CHECK(*r.cells[1].measures["n_quantised"] == 0);
  CHECK(r.cells[0].kept.flat == r.cells[1].kept.flat);
  CHECK(relative_difference(r.cells[1].out, r.cells[0].out) < 1e-6);
  CHECK(*r.cells[1].measures["peak_bytes"] == 20 * 2 * (s.dim + s.v_dim) + 4 * (s.dim + s.v_dim));
}
