#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

constexpr int64_t kRows = 2500;  // more than two chunks of 1024 rows
constexpr int64_t kDim = 6, kValueDim = 3;

// Zeros, and the smallest and the largest numbers that a trace may hold.
std::vector<float> special_values(DType type) {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-24f, -0x3p-24f, 0x1p-14f, 65504.0f, 0.333251953125f, 1.5f};
  if (type == DType::bfloat16)
    x = {0.0f, -0.0f, 0x1p-133f, -0x1p-126f, 0x1.fep39f, 1.0f, -1.0078125f, 3.0f, 0.5f, 2.0f};
  if (type == DType::float32)
    x = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 0x1.fffffep39f, 1.0f, -1.0f, 0.1f, 3.14159274f, 1e-30f};
  return x;
}

void write_tensor(TraceWriter& file, const std::string& name, int64_t heads, int64_t width, DType type) {
  const std::vector<float> values = special_values(type);
  file.begin_tensor(name, heads, kRows, width, type);
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<float> rows = marked_tensor(1, kRows, width);
    for (float& x : rows) x += static_cast<float>(head);
    std::copy(values.begin(), values.end(), rows.begin());
    file.append(rows);
  }
  file.end_tensor();
}

std::filesystem::path write_trace(const std::filesystem::path& path, DType type) {
  TraceWriter file(path);
  write_tensor(file, "prompts/p0/layers/000/q", 4, kDim, type);
  write_tensor(file, "prompts/p0/layers/000/k", 2, kDim, type);
  write_tensor(file, "prompts/p0/layers/000/v", 2, kValueDim, type);
  file.attribute("prompts/p0/layers/000", "scaling", 0.25);
  file.close("");
  return path;
}

void check_head(std::span<const float> found, int64_t head, int64_t width, DType type) {
  std::vector<float> expected = marked_tensor(1, static_cast<int64_t>(found.size()) / width, width);
  for (float& x : expected) x += static_cast<float>(head);
  const std::vector<float> values = special_values(type);
  std::copy(values.begin(), values.end(), expected.begin());
  for (size_t i = 0; i < found.size(); ++i)
    REQUIRE(std::bit_cast<uint32_t>(found[i]) == std::bit_cast<uint32_t>(expected[i]));
}

TEST_CASE("A trace of every dtype is read bit for bit, head by head") {
  const DType type = GENERATE(DType::float32, DType::float16, DType::bfloat16);
  const Folder folder;
  const Trace trace(write_trace(folder / "t.h5", type));
  REQUIRE(trace.layer("p0", 0).dtype == type);
  REQUIRE(trace.layer("p0", 0).tokens == kRows);
  std::vector<float> keys(kRows * kDim), values(kRows * kValueDim);
  for (const int32_t head : {1, 0}) {
    trace.read_keys("p0", 0, head, kRows, keys);
    check_head(keys, head, kDim, type);
    trace.read_values("p0", 0, head, kRows, values);
    check_head(values, head, kValueDim, type);
  }
  trace.read_queries("p0", 0, 3, 0, kRows, keys);
  check_head(keys, 3, kDim, type);
}

TEST_CASE("The first tokens can be read without the rest") {
  const Folder folder;
  const Trace trace(write_trace(folder / "t.h5", DType::bfloat16));
  const int64_t count = GENERATE(int64_t{4}, int64_t{1024}, int64_t{1025});
  std::vector<float> keys(static_cast<size_t>(count * kDim));
  trace.read_keys("p0", 0, 1, count, keys);
  check_head(keys, 1, kDim, DType::bfloat16);
}

TEST_CASE("A trace of a few lines is read with the documented defaults") {
  const Folder folder;
  const Trace trace(SmallTrace{}.write(folder / "t.h5"));
  const TraceInfo& info = trace.info();
  CHECK(info.model == "unknown");
  CHECK(info.n_layers == 4);
  CHECK(info.trace_id.size() == 64);
  REQUIRE(info.prompts.size() == 1);
  const PromptInfo& prompt = info.prompts[0];
  CHECK(prompt.id == "p0");
  CHECK(prompt.tokens == 10);
  CHECK(prompt.n_prompt == 10);
  CHECK(prompt.n_generated == 0);
  CHECK_FALSE(prompt.has_tokens);
  const LayerInfo& layer = trace.layer("p0", 3);
  CHECK(layer.q_heads == 4);
  CHECK(layer.kv_heads == 2);
  CHECK(layer.group() == 2);
  CHECK(layer.head_dim == 6);
  CHECK(layer.v_head_dim == 5);
  CHECK(layer.query_rows == 10);
  CHECK(layer.scaling == 0.5);
  CHECK(layer.sliding_window == 0);
  CHECK(layer.softcap == 0);
  CHECK_FALSE(layer.q_prescaled);
  CHECK(layer.source_dtype == "float32");
  CHECK_FALSE(layer.rope.has_value());
  CHECK_FALSE(layer.rope_recorded);
  CHECK_FALSE(layer.has_out);
  CHECK(trace.sink_logits("p0", 3).empty());
  CHECK(trace.token_ids("p0").empty());
  CHECK(trace.token_classes("p0").empty());
  std::vector<int32_t> ascending(10);
  std::iota(ascending.begin(), ascending.end(), 0);
  CHECK(trace.position_ids("p0") == ascending);
  CHECK(trace.query_positions("p0", 3) == ascending);
}

TEST_CASE("The computed trace_id follows the content, not the name or the layout") {
  const Folder folder;
  const auto id = [&](const char* name, const SmallTrace& trace) {
    return Trace(trace.write(folder / name)).info().trace_id;
  };
  const SmallTrace same, scaled{.more = [](H5Output&f) { f.attribute("prompts/p0/layers/003", "scaling", 0.25); }};
  CHECK(id("a.h5", same) == id("b.h5", same));
  CHECK(id("a.h5", same) != id("c.h5", scaled));
  CHECK(id("d.h5", SmallTrace{.v = {2, 10, 4}}) != id("a.h5", same));
}

TEST_CASE("The attributes of a layer are read") {
  const Folder folder;
  const std::string layer = "prompts/p0/layers/003";
  const std::vector<int32_t> rows = {0, 2, 4, 9}, tokens = {5, 4, 3, 2, 1, 0, 9, 8, 7, 6},
                             positions = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<int32_t> classes = {2, 0, 0, 1, 0, 0, 1, 0, 0, 1};
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  SmallTrace small{.q = {4, 4, 6}};
  small.more = [&](H5Output& f) {
    f.write(layer + "/q_pos", std::span<const int32_t>(rows), {4});
    f.write(layer + "/sinks", std::span<const float>(sinks), {4});
    f.write(layer + "/out", std::span<const float>(marked_tensor(4, 4, 5)), {4, 4, 5});
    f.write("prompts/p0/tokens", std::span<const int32_t>(tokens), {10});
    f.write("prompts/p0/token_class", std::span<const int32_t>(classes), {10});
    f.write("prompts/p0/position_ids", std::span<const int32_t>(positions), {10});
    f.attribute("prompts/p0", "n_prompt", int64_t{7});
    f.attribute("/", "n_layers", 30.0);  // a float instead of the usual int
    f.attribute("/", "model", std::string("tiny"));
    f.attribute("/", "trace_id", std::string("abc"));
    f.attribute(layer, "sliding_window", int64_t{8});
    f.attribute(layer, "softcap", 50.0);
    f.attribute(layer, "q_prescaled", int64_t{1});
    f.attribute(layer, "source_dtype", std::string("bfloat16"));
  };
  const Trace trace(small.write(folder / "t.h5"));
  const LayerInfo& info = trace.layer("p0", 3);
  CHECK(trace.info().model == "tiny");
  CHECK(trace.info().trace_id == "abc");
  CHECK(trace.info().n_layers == 30);
  CHECK(trace.prompt("p0").n_prompt == 7);
  CHECK(trace.prompt("p0").n_generated == 3);
  CHECK(info.sliding_window == 8);
  CHECK(info.softcap == 50);
  CHECK(info.q_prescaled);
  CHECK(info.source_dtype == "bfloat16");
  CHECK(info.query_rows == 4);
  CHECK(trace.query_positions("p0", 3) == rows);
  CHECK(trace.token_ids("p0") == tokens);
  CHECK(trace.token_classes("p0") == std::vector<uint8_t>(classes.begin(), classes.end()));
  CHECK(trace.position_ids("p0") == positions);
  CHECK(trace.sink_logits("p0", 3) == sinks);
  std::vector<float> out(20);
  trace.read_out("p0", 3, 2, 4, out);
  CHECK(out[7] == marked(2, 1, 2));
}

TEST_CASE("A layer's own rope_json overrides the root's, and none means no rotation") {
  const Folder folder;
  const std::string layer = "prompts/p0/layers/003";
  SmallTrace small;
  SECTION("the root's, with frequencies computed from theta") {
    small.more = [&](H5Output& f) { f.attribute("/", "rope_json", std::string(R"({"theta": 100})")); };
    const Trace trace(small.write(folder / "t.h5"));
    const Rope& rope = trace.layer("p0", 3).rope.value();
    CHECK(rope.rotary_dims == 6);
    CHECK(rope.layout == Rope::Layout::half_split);
    REQUIRE(rope.inv_freq.size() == 3);
    CHECK(rope.inv_freq[1] == Approx(std::pow(100, -1.0 / 3)).epsilon(1e-15));
  }
  SECTION("the layer's") {
    small.more = [&](H5Output& f) {
      f.attribute("/", "rope_json", std::string(R"({"theta": 100})"));
      f.attribute(layer, "rope_json",
                  std::string(R"({"type": "yarn", "inv_freq": [1, 0.5], "rotary_dims": 4, "layout": "interleaved",
                                                      "attention_factor": 1.25})"));
    };
    const Trace trace(small.write(folder / "t.h5"));
    const Rope& rope = trace.layer("p0", 3).rope.value();
    CHECK(rope.type == "yarn");
    CHECK(rope.inv_freq == std::vector<double>{1, 0.5});
    CHECK(rope.layout == Rope::Layout::interleaved);
    CHECK(rope.attention_factor == 1.25);
  }
  SECTION("none") {
    small.more = [&](H5Output& f) {
      f.attribute("/", "rope_json", std::string(R"({"theta": 100})"));
      f.attribute(layer, "rope", std::string("none"));
    };
    const Trace trace(small.write(folder / "t.h5"));
    CHECK_FALSE(trace.layer("p0", 3).rope.has_value());
    CHECK(trace.layer("p0", 3).rope_recorded);
    CHECK_FALSE(trace.layer("p0", 3).rope_unknown);
  }
  SECTION("unknown, though the root has a table") {
    small.more = [&](H5Output& f) {
      f.attribute("/", "rope_json", std::string(R"({"theta": 100})"));
      f.attribute(layer, "rope", std::string("unknown"));
    };
    const Trace trace(small.write(folder / "t.h5"));
    CHECK_FALSE(trace.layer("p0", 3).rope.has_value());
    CHECK_FALSE(trace.layer("p0", 3).rope_recorded);
    CHECK(trace.layer("p0", 3).rope_unknown);
  }
  SECTION("a table for each of two ranges of positions") {
    small.more = [&](H5Output& f) {
      f.attribute("/", "rope_json", std::string(R"({"inv_freq": [1, 0.5], "rotary_dims": 4,
                                  "ranges": [{"from": 0, "inv_freq": [1, 0.5]}, {"from": 5, "inv_freq": [1, 0.2]}]})"));
    };
    const Trace trace(small.write(folder / "t.h5"));
    CHECK_FALSE(trace.layer("p0", 3).rope.has_value());
    CHECK(trace.layer("p0", 3).rope_unknown);
  }
}

TEST_CASE("A layer names an earlier layer whose keys it reads") {
  const Folder folder;
  SmallTrace small;
  const auto says = [&small](int64_t owner) {
    small.more = [owner](H5Output& f) { f.attribute("prompts/p0/layers/003", "kv_layer", owner); };
  };
  CHECK(Trace(small.write(folder / "own.h5")).layer("p0", 3).kv_layer == -1);
  says(1);
  CHECK(Trace(small.write(folder / "shared.h5")).layer("p0", 3).kv_layer == 1);
  says(3);
  CHECK_THROWS_WITH(Trace(small.write(folder / "itself.h5")),
                    Catch::Contains("attribute kv_layer is 3, it must be a layer before this one"));
}

TEST_CASE("Positions that are not those of one whole sequence are described") {
  const auto said = [](const std::vector<int64_t>& positions) { return odd_positions(positions); };
  CHECK(said({}).empty());
  CHECK(said({0, 1, 2, 3}).empty());
  CHECK_THAT(said({1, 1, 0, 1, 2}), Catch::Contains("do not rise at row 1 (1, then 1)"));
  CHECK_THAT(said({0, 1, 0, 1}), Catch::Contains("do not rise at row 2 (1, then 0)"));
  CHECK_THAT(said({0, 1, 10}), Catch::Contains("jump at row 2 from 1 to 10"));
  CHECK_THAT(said({40, 41}), Catch::Contains("begin at 40"));
}

// Samples of a gradient [2, 4, 3, 5] in rows 6, 7, 8.
void add_gradient(H5Output& file, std::vector<int64_t> shape, std::vector<int64_t> rows) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  std::vector<float> g(static_cast<size_t>(count));
  std::iota(g.begin(), g.end(), 0.0f);
  const std::string layer = "prompts/p0/layers/003/";
  file.write(layer + "g", std::span<const float>(g), shape);
  const std::vector<int32_t> tokens(rows.begin(), rows.end());
  file.write(layer + "g_rows", std::span<const int32_t>(tokens), {static_cast<int64_t>(tokens.size())});
}

TEST_CASE("The recorded gradient is read sample by sample and head by head") {
  const Folder folder;
  SmallTrace small;
  small.more = [](H5Output& file) { add_gradient(file, {2, 4, 3, 5}, {6, 7, 8}); };
  const Trace trace(small.write(folder / "t.h5"));
  const LayerInfo& layer = trace.layer("p0", 3);
  CHECK(layer.gradient_samples == 2);
  CHECK(layer.gradient_rows == 3);
  CHECK(trace.gradient_rows("p0", 3) == std::vector<int32_t>{6, 7, 8});
  std::vector<float> one(15);
  trace.read_gradient("p0", 3, 2, 1, one);
  CHECK(one.front() == 90);  // (1 * 4 + 2) * 15
  CHECK(one.back() == 104);
  CHECK_FALSE(layer.gradient_recorded);
}

TEST_CASE("The gradient of the recorded tokens is read after the samples") {
  const Folder folder;
  SmallTrace small;
  std::vector<int64_t> shape = {4, 3, 5};
  small.more = [&](H5Output& file) {
    add_gradient(file, {2, 4, 3, 5}, {6, 7, 8});
    std::vector<float> g(size_t(shape[0] * shape[1] * shape[2]));
    std::iota(g.begin(), g.end(), 1000.0f);
    file.write("prompts/p0/layers/003/g_recorded", std::span<const float>(g), shape);
  };
  {
    const Trace trace(small.write(folder / "t.h5"));
    CHECK(trace.layer("p0", 3).all_gradients() == 3);
    std::vector<float> one(15);
    trace.read_gradient("p0", 3, 2, 2, one);
    CHECK(one.front() == 1030);
    CHECK(one.back() == 1044);
  }
  shape = {4, 2, 5};
  CHECK_THROWS_WITH(Trace(small.write(folder / "u.h5")), Catch::Contains("must be [4, 3, 5]"));
}

TEST_CASE("The gradient of the answer is the last one, with or without that of the recorded tokens") {
  const Folder folder;
  for (const bool recorded : {false, true}) {
    SmallTrace small;
    small.more = [&](H5Output& file) {
      add_gradient(file, {2, 4, 3, 5}, {6, 7, 8});
      const std::vector<float> answer(60, 7.0f), other(60, 3.0f);
      file.write("prompts/p0/layers/003/g_answer", std::span<const float>(answer), {4, 3, 5});
      if (recorded) file.write("prompts/p0/layers/003/g_recorded", std::span<const float>(other), {4, 3, 5});
    };
    const Trace trace(small.write(folder / "t.h5"));
    const int32_t last = trace.layer("p0", 3).all_gradients() - 1;
    CHECK(last == (recorded ? 3 : 2));
    std::vector<float> one(15);
    trace.read_gradient("p0", 3, 2, last, one);
    CHECK(one.front() == 7);
    trace.read_gradient("p0", 3, 2, 2, one);
    CHECK(one.front() == (recorded ? 3 : 7));
  }
}

TEST_CASE("A gradient that does not fit the layer, or without its rows, is an error that says so") {
  const Folder folder;
  const auto message = [&](const std::function<void(H5Output&)>& more) -> std::string {
    SmallTrace small;
    small.more = more;
    try {
      const Trace trace(small.write(folder / "t.h5"));
      trace.gradient_rows("p0", 3);
    } catch (const TraceError& e) {
      return e.what();
    }
    return "";
  };
  const auto with = [](std::vector<int64_t> shape, std::vector<int64_t> rows) {
    return [=](H5Output& file) { add_gradient(file, shape, rows); };
  };
  using Catch::Contains;
  CHECK_THAT(message(with({2, 3, 3, 5}, {6, 7, 8})), Contains("must be [2, 4, 3, 5]"));
  CHECK_THAT(message(with({2, 4, 3, 5}, {6, 7})), Contains("has shape [2], it must be [3]"));
  CHECK_THAT(message(with({2, 4, 3, 5}, {6, 8, 7})), Contains("must ascend, but 7 follows 8"));
  CHECK_THAT(message(with({2, 4, 3, 5}, {6, 7, 10})), Contains("holds 10 at 2, it must be from 0 to 9"));
  CHECK_THAT(message(with({4, 3, 5}, {6, 7, 8})), Contains("must have 4 axes: [samples, heads, rows, v_head_dim]"));
  CHECK_THAT(message([](H5Output& file) {
               const std::vector<float> g(120, 1.0f);
               file.write("prompts/p0/layers/003/g", std::span<const float>(g), {2, 4, 3, 5});
             }),
             Contains("needs the dataset g_rows beside it"));
}

TEST_CASE("The deep check reads the gradient, and the trace's description says that there is one") {
  const Folder folder;
  SmallTrace small;
  small.more = [](H5Output& file) {
    std::vector<float> g(120, 1.0f);
    g[90] = std::numeric_limits<float>::quiet_NaN();
    file.write("prompts/p0/layers/003/g", std::span<const float>(g), {2, 4, 3, 5});
    file.write("prompts/p0/layers/003/g_rows", std::span<const int32_t>(std::vector<int32_t>{6, 7, 8}), {3});
  };
  const Trace trace(small.write(folder / "t.h5"));
  const std::vector<std::string> problems = deep_check(trace);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::Contains("003/g"));
  CHECK_THAT(inspect_text(trace), Catch::Contains("gradient of 3 rows, 2 samples"));
}

TEST_CASE("A layer without a gradient says how to record one") {
  const Folder folder;
  const Trace trace(SmallTrace().write(folder / "t.h5"));
  CHECK(trace.gradient_rows("p0", 3).empty());
  std::vector<float> one;
  CHECK_THROWS_WITH(trace.read_gradient("p0", 3, 0, 0, one), Catch::Contains("kvreplay record --with-gradient"));
}

TEST_CASE("A prompt or layer that the trace lacks is an error that lists those it has") {
  const Folder folder;
  const Trace trace(SmallTrace{}.write(folder / "t.h5"));
  CHECK_THROWS_WITH(trace.layer("p0", 5), Catch::Contains("no layer 5. It holds 3"));
  CHECK_THROWS_WITH(trace.prompt("p1"), Catch::Contains("no prompt p1. It holds p0"));
}

}  // namespace
}  // namespace kvreplay
