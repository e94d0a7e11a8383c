#include <nlohmann/json.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/synth.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

constexpr double kSinglePrecision = 1e-5;  // tensors are stored in float32

SynthOptions small_options() {
  SynthOptions options;
  options.tokens = 200;
  options.prompt = 150;
  options.q_heads = 4;
  options.kv_heads = 2;
  options.head_dim = 16;
  options.v_head_dim = 12;
  options.clusters = 3;
  return options;
}

Trace make(const SynthOptions& options, const Folder& folder, const std::string& name = "t.h5") {
  write_synthetic_trace(options, folder / name);
  return Trace(folder / name);
}

std::vector<float> keys_of(const Trace& trace, int32_t head = 0) {
  const LayerInfo& l = trace.layer("synthetic", 0);
  std::vector<float> x(static_cast<size_t>(l.tokens * l.head_dim));
  trace.read_keys("synthetic", 0, head, l.tokens, x);
  return x;
}

std::vector<float> values_of(const Trace& trace, int32_t head = 0) {
  const LayerInfo& l = trace.layer("synthetic", 0);
  std::vector<float> x(static_cast<size_t>(l.tokens * l.v_head_dim));
  trace.read_values("synthetic", 0, head, l.tokens, x);
  return x;
}

std::vector<float> queries_of(const Trace& trace, int32_t head = 0) {
  const LayerInfo& l = trace.layer("synthetic", 0);
  std::vector<float> x(static_cast<size_t>(l.query_rows * l.head_dim));
  trace.read_queries("synthetic", 0, head, 0, l.query_rows, x);
  return x;
}

std::span<const float> row(const std::vector<float>& x, int64_t t, int64_t width) {
  return std::span(x).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width));
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum);
}

TEST_CASE("A synthetic trace has the requested shape and passes the deep check") {
  const Folder folder;
  SynthOptions options = small_options();
  options.layers = 2;
  options.type = GENERATE(SynthOptions::Type::float32, SynthOptions::Type::float16, SynthOptions::Type::bfloat16);
  const Trace trace = make(options, folder);
  CHECK(trace.info().model == "synthetic");
  CHECK(trace.info().n_layers == 2);
  CHECK(trace.prompt("synthetic").n_prompt == 150);
  REQUIRE(trace.prompt("synthetic").layers.size() == 2);
  const LayerInfo& layer = trace.layer("synthetic", 1);
  CHECK(layer.tokens == 200);
  CHECK(layer.q_heads == 4);
  CHECK(layer.v_head_dim == 12);
  CHECK(layer.scaling == 0.25);
  REQUIRE(layer.rope.has_value());
  CHECK(layer.rope->theta == 1e4);
  CHECK(layer.rope->rotary_dims == 16);
  CHECK(deep_check(trace).empty());
  const auto json = nlohmann::json::parse(inspect_json(trace));
  CHECK(json["prompts"][0]["layers"][1]["head_dim"] == 16);
  CHECK(json["checks"]["with_sha256"] == 6);
  CHECK_THAT(inspect_text(trace), Catch::Contains("200 tokens (150 prompt, 50 generated)"));
}

TEST_CASE("The seed decides every number, and a shorter trace is the beginning of a longer one") {
  const Folder folder;
  SynthOptions options = small_options();
  make(options, folder, "a.h5");
  make(options, folder, "b.h5");
  CHECK(read_bytes(folder / "a.h5") == read_bytes(folder / "b.h5"));
  const std::vector<float> keys = keys_of(Trace(folder / "a.h5"));
  options.tokens = 120;
  options.prompt = 100;
  const std::vector<float> fewer = keys_of(make(options, folder, "c.h5"));
  CHECK(std::equal(fewer.begin(), fewer.end(), keys.begin()));
  options.seed = uint64_t{1} << 32;
  CHECK(keys_of(make(options, folder, "d.h5")) != fewer);
}

TEST_CASE("The logits of sinks have exactly their advantage") {
  const Folder folder;
  SynthOptions options = small_options();
  options.sinks = 2;
  options.heavy_share = 0;
  const std::vector<float> with = keys_of(make(options, folder, "with.h5")),
                           queries = queries_of(Trace(folder / "with.h5"));
  options.sinks = 0;
  const std::vector<float> without = keys_of(make(options, folder, "without.h5"));
  for (const int64_t sink : {0, 1})
    for (const int64_t t : {3, 77, 199}) {
      double advantage = 0;
      for (size_t i = 0; i < 16; ++i)
        advantage +=
            double{row(queries, t, 16)[i]} * (double{row(with, sink, 16)[i]} - double{row(without, sink, 16)[i]});
      CHECK(0.25 * advantage == Approx(options.sink_strength).epsilon(kSinglePrecision));
    }
  CHECK(std::equal(with.begin() + 32, with.end(), without.begin() + 32));
}

TEST_CASE("Rotating keys back shows the clusters that were planted") {
  const Folder folder;
  SynthOptions options = small_options();
  options.sinks = 0;
  options.heavy_share = 0;
  const std::vector<float> rotated = keys_of(make(options, folder, "rotated.h5"));
  const Rope rope = Trace(folder / "rotated.h5").layer("synthetic", 0).rope.value();
  options.rope = false;
  const Trace plain = make(options, folder, "plain.h5");
  CHECK_FALSE(plain.layer("synthetic", 0).rope.has_value());
  CHECK(plain.layer("synthetic", 0).rope_recorded);
  const std::vector<float> expected = keys_of(plain);
  for (int64_t t = 0; t < 200; ++t)
    for (size_t i = 0; i < 7; ++i) {  // the eighth pair is kept free for sinks and heavy hitters
      const double angle = static_cast<double>(t) * rope.inv_freq[i], c = std::cos(angle), s = std::sin(angle);
      const double a = double{row(rotated, t, 16)[i]}, b = double{row(rotated, t, 16)[i + 8]};
      REQUIRE(a * c + b * s == Approx(double{row(expected, t, 16)[i]}).margin(kSinglePrecision));
      REQUIRE(b * c - a * s == Approx(double{row(expected, t, 16)[i + 8]}).margin(kSinglePrecision));
    }
}

TEST_CASE("Without spread, keys take as many values as there are topics") {
  const Folder folder;
  SynthOptions options = small_options();
  options.rope = false;
  options.cluster_spread = 0;
  options.sinks = 0;
  options.heavy_share = 0;
  const std::vector<float> keys = keys_of(make(options, folder));
  std::vector<int64_t> firsts;
  for (int64_t t = 0; t < 200; ++t) {
    const auto same = [&](int64_t f) { return distance(row(keys, t, 16), row(keys, f, 16)) == 0; };
    if (std::none_of(firsts.begin(), firsts.end(), same)) firsts.push_back(t);
  }
  CHECK(firsts.size() == 3);
}

TEST_CASE("At a fixed interval a token repeats an earlier key and value") {
  const Folder folder;
  SynthOptions options = small_options();
  options.duplicates = 5;
  const Trace trace = make(options, folder);
  const std::vector<float> keys = keys_of(trace), values = values_of(trace);
  for (int64_t t = 1; t < 200; ++t) {
    bool repeats = false;
    for (int64_t s = 0; s < t; ++s)
      repeats |=
          distance(row(keys, t, 16), row(keys, s, 16)) == 0 && distance(row(values, t, 12), row(values, s, 12)) == 0;
    CHECK(repeats == (t % 5 == 0));
  }
}

TEST_CASE("Large keys leave the attention unchanged") {
  const Folder folder;
  SynthOptions options = small_options();
  options.with_out = true;
  const Trace plain = make(options, folder, "plain.h5");
  options.key_norm = 64;
  const Trace large = make(options, folder, "large.h5");
  CHECK(keys_of(large)[5] == 64 * keys_of(plain)[5]);
  std::vector<float> a(200 * 12), b(200 * 12);
  plain.read_out("synthetic", 0, 3, 200, a);
  large.read_out("synthetic", 0, 3, 200, b);
  CHECK(distance(a, b) < kSinglePrecision);
}

TEST_CASE("The query norm scales every query and no key") {
  const Folder folder;
  SynthOptions options = small_options();
  const Trace plain = make(options, folder, "plain.h5");
  options.query_norm = 0.25;
  const Trace small = make(options, folder, "small.h5");
  CHECK(keys_of(small) == keys_of(plain));
  const auto plain_rows = queries_of(plain), small_rows = queries_of(small);
  for (size_t i = 0; i < plain_rows.size(); ++i) REQUIRE(small_rows[i] == 0.25f * plain_rows[i]);
}

TEST_CASE("The output it writes is exact attention over what it wrote") {
  const Folder folder;
  SynthOptions options = small_options();
  options.with_out = true;
  options.type = SynthOptions::Type::bfloat16;
  const Trace trace = make(options, folder);
  const std::vector<float> keys = keys_of(trace, 1), values = values_of(trace, 1), queries = queries_of(trace, 3);
  std::vector<float> out(200 * 12);
  trace.read_out("synthetic", 0, 3, 200, out);
  for (const int64_t t : {0, 1, 57, 199}) {
    std::vector<double> sum(12, 0.0);
    double mass = 0;
    for (int64_t s = 0; s <= t; ++s) {
      double logit = 0;
      for (size_t i = 0; i < 16; ++i) logit += double{row(queries, t, 16)[i]} * double{row(keys, s, 16)[i]};
      const double weight = std::exp(0.25 * logit);
      mass += weight;
      for (size_t i = 0; i < 12; ++i) sum[i] += weight * double{row(values, s, 12)[i]};
    }
    for (size_t i = 0; i < 12; ++i)  // stored in bfloat16: 8 bits
      CHECK(double{row(out, t, 12)[i]} == Approx(sum[i] / mass).epsilon(0x1p-8).margin(1e-6));
  }
}

TEST_CASE("Any shape works, down to one number") {
  const Folder folder;
  SynthOptions options;
  options.tokens = options.prompt = 1;
  options.q_heads = options.kv_heads = 1;
  options.head_dim = GENERATE(1, 2, 3, 5);
  options.v_head_dim = 1;
  options.with_out = true;
  CHECK(deep_check(make(options, folder)).empty());
}

TEST_CASE("Options out of range are errors that name the option and the range") {
  const Folder folder;
  const auto error = [&](auto change) {
    SynthOptions options = small_options();
    change(options);
    try {
      write_synthetic_trace(options, folder / "t.h5");
    } catch (const ConfigError& e) {
      CHECK_FALSE(std::filesystem::exists(folder / "t.h5"));
      CHECK_FALSE(std::filesystem::exists(folder / "t.h5.part"));
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(error([](SynthOptions& o) { o.tokens = 0; }), Catch::Contains("tokens is 0, it must be from 1"));
  CHECK_THAT(error([](SynthOptions& o) { o.prompt = 201; }),
             Catch::Contains("prompt is 201, it must be from 1 to 200"));
  CHECK_THAT(error([](SynthOptions& o) { o.q_heads = 3; }),
             Catch::Contains("q_heads is 3, it must be a multiple of kv_heads 2"));
  CHECK_THAT(error([](SynthOptions& o) { o.heavy_share = 1.5; }),
             Catch::Contains("heavy_share is 1.5, it must be from 0 to 1"));
  CHECK_THAT(error([](SynthOptions& o) { o.key_norm = std::nan(""); }), Catch::Contains("key_norm is nan"));
  CHECK_THAT(error([](SynthOptions& o) { o.duplicates = 1; }), Catch::Contains("duplicates is 1"));
  CHECK_THAT(error([](SynthOptions& o) {
               o.key_norm = 1e6;
               o.type = SynthOptions::Type::float16;
             }),
             Catch::Contains("overflows float16"));
}

}  // namespace
}  // namespace kvreplay
