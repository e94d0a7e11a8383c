#include <algorithm>

#include "core/quantise.hpp"
#include "property_exceptions.hpp"

// Properties of every method of the registry under every row format (properties.md, section 3).

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr int32_t kBudget = 40;

// Every format of the registry, with blocks small enough for the tests' streams to fill.
std::vector<RowFormat> all_formats() {
  std::vector<RowFormat> all;
  for (const RowFormatEntry& entry : row_formats()) {
    if (entry.which == 0) continue;
    RowFormat format = row_format(entry.info.name);
    if (entry.info.by_block) format = format_with(entry.info.name, {{"g", "4"}, {"R", "8"}, {"bits", "2"}});
    all.push_back(format);
  }
  // Options that combine with a format.
  RowFormat guarded = row_format("int8"), at_once = row_format("int8"), apart = row_format("int8");
  guarded.full_precision = {.sinks = 2, .recent = 9};
  at_once.own_row_coded = true;
  apart.key = format_with("kivi", {{"g", "4"}, {"R", "8"}}).key;
  all.insert(all.end(), {guarded, at_once, apart});
  return all;
}
const RowFormat kInt8 = format_with("int8", {{"group", "4"}}), kInt4 = row_format("int4"),
                kKivi2 = format_with("kivi", {{"bits", "2"}, {"g", "4"}, {"R", "8"}}),
                kGear = format_with("gear", {{"bits", "2"}, {"g", "4"}, {"R", "8"}, {"rank", "1"}, {"outliers", "5"}});

std::vector<MethodCase> formatted() {
  std::vector<MethodCase> all = variants();
  std::erase_if(all, [](const MethodCase& v) { return v.entry().info.own_row_format; });
  return all;
}
Cell cell_of(const MethodCase& v, const RowFormat& format, int32_t budget, const StreamShape& s) {
  CommonOptions options = v.options;
  options.row_format = format;
  return make_cell(v.method, budget, s, params_of(v.method), options);
}
std::string label(const MethodCase& v, const RowFormat& format) {
  return v.method + " " + word(v.options.phase) + " " + row_format_json(format);
}

std::vector<double> noise(size_t n, uint32_t seed, double size) {
  const Rng rng{seed, 0, 0, 0};
  std::vector<double> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = size * (rng.uniform(RngStream::bootstrap, int64_t(i)) - 0.3);
  return numbers;
}

}  // namespace

TEST_CASE("the error of an element is at most half a step plus the float16 rounding of offset and step", "[formats]") {
  for (const int32_t bits : {2, 4, 8})
    for (const double size : {1e-3, 1.0, 300.0})
      for (uint32_t seed = 0; seed < 50; ++seed) {
        const auto exact = noise(33, seed, size);
        auto back = exact;
        REQUIRE(quantise_row(std::span(back), 33, levels_of(bits)));
        const auto [low, high] = std::minmax_element(exact.begin(), exact.end());
        const double step = (*high - *low) / levels_of(bits);
        const double stored = std::abs(to_float16(*low) - *low) + levels_of(bits) * std::abs(to_float16(step) - step);
        for (size_t i = 0; i < exact.size(); ++i)
          CHECK(std::abs(back[i] - exact[i]) <= (step / 2 + stored) * (1 + 1e-12));
      }
}

TEST_CASE("quantising decoded numbers changes nothing", "[formats]") {
  for (const int32_t bits : {2, 4, 8})
    for (uint32_t seed = 0; seed < 50; ++seed) {
      auto once = noise(29, seed, seed % 2 == 0 ? 5 : 0.01);
      REQUIRE(quantise_row(std::span(once), 8, levels_of(bits)));
      auto twice = once;
      REQUIRE(quantise_row(std::span(twice), 8, levels_of(bits)));
      CHECK(twice == once);
    }
}

namespace {
// Runs each method in every `nth` format, the next method in the neighbouring formats.
void check_methods_in_formats(size_t nth) {
  const StreamShape s{.dim = 32, .v_dim = 32};
  const auto stream = make_stream<double>(s, 31, Look::sinks);
  const std::vector<RowFormat> formats = all_formats();
  size_t first = 0;
  for (const MethodCase& v : formatted()) {
    if (!v.entry().info.takes_budget && v.method != "exact") continue;  // the keys determine its size
    const CellResult plain = replay(stream, {cell_of(v, {}, kBudget, s)}).only();
    for (size_t i = first++ % nth; i < formats.size(); i += nth) {
      const RowFormat& format = formats[i];
      INFO(label(v, format));
      const CellResult r = replay(stream, {cell_of(v, format, kBudget, s)}).only();
      INFO(r.error);
      REQUIRE(r.ok);
      CHECK(*r.measures["peak_kept_tokens"] == *plain.measures["peak_kept_tokens"]);
      CHECK(*r.measures["peak_attended_tokens"] == *plain.measures["peak_attended_tokens"]);
      CHECK(r.kept.off == plain.kept.off);
      CHECK((*r.measures["n_quantised"] > 0 || !quantises(format)));
      CHECK(*plain.measures["n_quantised"] == 0);
      if (row_bytes(format, s.dim, s.v_dim, 4) < 2.5 * (s.dim + s.v_dim))
        CHECK(*r.measures["peak_bytes"] < *plain.measures["peak_bytes"]);
    }
  }
}
}  // namespace

TEST_CASE("every method runs in every row format, and holds as many tokens as without one", "[formats][many]") {
  check_methods_in_formats(1);
}
TEST_CASE("every method runs in some row formats, and each format under some methods", "[formats]") {
  check_methods_in_formats(11);
}

TEST_CASE("poisoning the future and every evicted token changes no number under a row format", "[formats][many]") {
  const StreamShape s{.dim = 32, .v_dim = 32};
  const auto stream = make_stream<double>(s, 32, Look::clustered);
  RunOptions audit;
  audit.audit = true;
  for (const MethodCase& v : formatted())
    for (const RowFormat& format : all_formats()) {
      INFO(label(v, format));
      const CellResult plain = replay(stream, {cell_of(v, format, kBudget, s)}).only();
      const CellResult audited = replay(stream, {cell_of(v, format, kBudget, s)}, audit).only();
      REQUIRE(audited.ok);
      CHECK(plain.kept.flat == audited.kept.flat);
      CHECK(relative_difference(plain.out, audited.out) < 1e-12);
    }
}

TEST_CASE("a token may be held coded and exact at once", "[formats]") {
  const StreamShape s{.tokens = 160, .prompt = 16, .dim = 32, .v_dim = 32};
  const auto stream = make_stream<double>(s, 36, Look::clustered);
  RunOptions audit;
  audit.audit = true;
  RowFormat format = kInt4;
  for (format.full_precision.recent = 2; format.full_precision.recent < 40; format.full_precision.recent += 5) {
    INFO(format.full_precision.recent);
    CommonOptions options = default_options("subgen_stream");
    options.row_format = format;
    const nlohmann::json params = {{"delta", 2.0}, {"t", 2}, {"s", 8}};
    const Cell cell = make_cell("subgen_stream", std::nullopt, s, params, options);
    const CellResult plain = replay(stream, {cell}).only(), audited = replay(stream, {cell}, audit).only();
    REQUIRE(plain.ok);
    CHECK(relative_difference(plain.out, audited.out) < 1e-12);
  }
}

// For methods that are exact when everything fits, so the format is the only source of error.
TEST_CASE("with a full budget the error is small and falls as bits are added", "[formats][many]") {
  const StreamShape s{.tokens = 120, .prompt = 80, .dim = 32, .v_dim = 32};
  const auto stream = make_stream<double>(s, 33);
  for (const MethodCase& v : formatted()) {
    const auto error = [&](const RowFormat& format) {
      const CellResult r = replay(stream, {cell_of(v, format, s.tokens, s)}).only();
      REQUIRE(r.ok);
      return *r.measures["rel_err_out_mean"];
    };
    if (error({}) > 1e-8) continue;
    INFO(v.method);
    const double int8 = error(kInt8), int4 = error(kInt4), kivi2 = error(kKivi2);
    CHECK(error(row_format("f32")) < 1e-6);
    CHECK(error(row_format("f16")) < 1e-3);
    CHECK(error(row_format("bf16")) < 1e-2);
    CHECK(int8 > 0);
    CHECK(int8 < 0.01);
    CHECK(int8 < int4);
    CHECK(int4 < 0.2);
    CHECK(int4 < kivi2);
    CHECK(kivi2 < 1);
    CHECK(error(kGear) < kivi2);
  }
}

TEST_CASE("row formats compose with the other axes: where the same tokens are kept, int8 changes little",
          "[formats][many]") {
  const StreamShape s{.dim = 32, .v_dim = 32};
  const auto stream = make_stream<double>(s, 34, Look::sinks);
  int32_t compared = 0;
  for (const MethodCase& v : formatted()) {
    std::vector<MethodCase> combined;
    const auto with = [&](auto set) {
      combined.push_back(v);
      set(combined.back().options);
    };
    with([](CommonOptions& a) { a.gqa_level = GqaLevel::query; });
    if (v.entry().info.any_positions) with([](CommonOptions& a) { a.positions = Positions::cache; });
    if (v.options.phase == Phase::stream) with([](CommonOptions& a) { a.order = Order::evict_then_attend; });
    if (v.options.phase == Phase::oneshot && v.entry().scores_prompt)
      with([](CommonOptions& a) { a.reweight = Reweight::uniform; });
    for (const MethodCase& c : combined) {
      INFO(label(c, kInt8) << " " << options_json(c.options));
      const CellResult plain = replay(stream, {cell_of(c, {}, kBudget, s)}).only();
      const CellResult r = replay(stream, {cell_of(c, kInt8, kBudget, s)}).only();
      REQUIRE(plain.ok);
      REQUIRE(r.ok);
      if (r.kept.flat != plain.kept.flat || c.entry().info.reads_full_cache) continue;
      ++compared;
      CHECK(relative_difference(r.out, plain.out) < 0.03);
      CHECK(relative_difference(r.out, plain.out) > 0);
    }
  }
  CHECK(compared >= 10);
}

TEST_CASE("a prompt that streams is coded token by token", "[formats]") {
  const StreamShape s{.dim = 32, .v_dim = 32};
  for (const RowFormat& format : all_formats()) {
    const CellResult r =
        replay(make_stream<double>(s, 35), {streamed(cell_of({"h2o", default_options("h2o")}, format, kBudget, s))})
            .only();
    REQUIRE(r.ok);
    CHECK(*r.measures["peak_attended_tokens"] == kBudget + 1);
    CHECK((*r.measures["n_quantised"] >= kBudget - residual_of(format) || !quantises(format)));
  }
}
