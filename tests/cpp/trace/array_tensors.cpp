#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "core/bf16.hpp"
#include "core/halves.hpp"
#include "trace/array_tensors.hpp"
#include "trace/files.hpp"

using namespace kvreplay;
using Catch::Contains;

namespace {

constexpr int64_t kTokens = 10, kWidth = 6;

// A view [heads, rows, width] in C order over `numbers`, which must exist as long as the view.
ArrayView view_of(const std::vector<float>& numbers, int64_t heads, int64_t rows, int64_t width) {
  return {DType::float32, {heads, rows, width}, numbers.data(), {rows * width, width, 1}, {}};
}

struct Arrays {
  std::vector<float> q = marked_tensor(4, kTokens, kWidth), k = marked_tensor(2, kTokens, kWidth),
                     v = marked_tensor(2, kTokens, 5);
  TraceArrays trace;

  Arrays() {
    trace.info.path = "arrays";
    PromptInfo prompt;
    prompt.id = "p0", prompt.tokens = kTokens, prompt.layer_numbers = {3};
    prompt.layers.resize(1);
    prompt.layers[0].layer = 3;
    trace.info.prompts = {prompt};
    LayerArrays& layer = trace.prompts["p0"].layers[3];
    layer.q = view_of(q, 4, kTokens, kWidth), layer.k = view_of(k, 2, kTokens, kWidth),
    layer.v = view_of(v, 2, kTokens, 5);
  }
  LayerArrays& layer() { return trace.prompts["p0"].layers[3]; }
  std::vector<float> keys(int32_t head) {
    std::vector<float> read(kTokens * kWidth);
    ArrayTensors(trace).read_keys("p0", 3, head, kTokens, read);
    return read;
  }
  std::string problem() {
    try {
      take_shapes(trace);
    } catch (const TraceError& e) {
      return e.what();
    }
    return "no error";
  }
};

std::vector<float> head_of(const std::vector<float>& all, int64_t head) {
  return {all.begin() + head * kTokens * kWidth, all.begin() + (head + 1) * kTokens * kWidth};
}

}  // namespace

TEST_CASE("arrays give the description of a file with equal numbers", "[arrays]") {
  Arrays a;
  take_shapes(a.trace);
  const ArrayTensors tensors(a.trace);
  const LayerInfo& layer = tensors.layer("p0", 3);
  CHECK(layer.q_heads == 4);
  CHECK(layer.kv_heads == 2);
  CHECK(layer.head_dim == 6);
  CHECK(layer.v_head_dim == 5);
  CHECK(layer.tokens == kTokens);
  CHECK(tensors.position_ids("p0").back() == 9);
  CHECK(tensors.query_positions("p0", 3).size() == 10);
  CHECK(tensors.sink_logits("p0", 3).empty());
  CHECK(a.keys(1) == head_of(a.k, 1));
  CHECK_THROWS_WITH(tensors.layer("p0", 4), Contains("holds no layer 4. It holds 3"));
}

TEST_CASE("any order of axes is read in place", "[arrays]") {
  Arrays a;
  std::vector<float> turned(a.k.size());  // [width, rows, heads]
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t r = 0; r < kTokens; ++r)
      for (int64_t c = 0; c < kWidth; ++c)
        turned[size_t((c * kTokens + r) * 2 + h)] = a.k[size_t((h * kTokens + r) * kWidth + c)];
  a.layer().k = {DType::float32, {2, kTokens, kWidth}, turned.data(), {1, 2, kTokens * 2}, {}};
  CHECK(a.keys(0) == head_of(a.k, 0));
  CHECK(a.keys(1) == head_of(a.k, 1));
}

TEST_CASE("halves are widened without rounding, from memory or by fetch", "[arrays]") {
  const DType type = GENERATE(DType::float16, DType::bfloat16);
  Arrays a;
  std::vector<uint16_t> bits;
  for (const float x : a.k) bits.push_back(type == DType::float16 ? narrow_float16(x) : to_bf16(x));
  ArrayView& k = a.layer().k;
  k.type = type, k.data = bits.data();
  CHECK(a.keys(1) == head_of(a.k, 1));
  k.data = nullptr;
  k.fetch = [&](int64_t head, int64_t first, int64_t rows, void* into) {
    const uint16_t* from = bits.data() + (head * kTokens + first) * kWidth;
    std::copy(from, from + rows * kWidth, static_cast<uint16_t*>(into));
  };
  CHECK(a.keys(1) == head_of(a.k, 1));
}

TEST_CASE("a number that overflows in products is reported with its place", "[arrays]") {
  Arrays a;
  a.k[size_t((1 * kTokens + 4) * kWidth + 2)] = NAN;
  CHECK(a.keys(0) == head_of(a.k, 0));
  CHECK_THROWS_WITH(a.keys(1), Contains("prompt p0, layer 3: k holds NaN at head 1, token 4, coordinate 2"));
}

TEST_CASE("shapes that do not fit together are reported with a remedy", "[arrays]") {
  Arrays a;
  SECTION("valid shapes") { CHECK(a.problem() == "no error"); }
  SECTION("values of other tokens") {
    a.layer().v.extents[1] = 9;
    CHECK_THAT(a.problem(), Contains("k is [2, 10, 6] and v is [2, 9, 5]: heads and tokens must agree"));
  }
  SECTION("three query heads on two kv heads") {
    a.layer().q.extents[0] = 3;
    CHECK_THAT(a.problem(), Contains("3 query heads are no multiple of 2 kv heads"));
  }
  SECTION("queries of other tokens") {
    a.layer().q.extents[1] = 5;
    CHECK_THAT(a.problem(), Contains("q has 5 rows, but 10 tokens have keys: give q_pos"));
    a.layer().q_pos = {0, 2, 4, 6, 8};
    CHECK(a.problem() == "no error");
    a.layer().q_pos = {0, 2, 2, 6, 8};
    CHECK_THAT(a.problem(), Contains("q_pos holds 2 at 2: it must ascend"));
  }
  SECTION("nothing at all") {
    a.layer().k.extents[2] = 0;
    CHECK_THAT(a.problem(), Contains("every extent must be at least 1"));
  }
  SECTION("sinks of other heads") {
    a.layer().sinks = {1, 2, 3};
    CHECK_THAT(a.problem(), Contains("3 sink logits, but 4 query heads"));
  }
  SECTION("positions of other tokens") {
    a.trace.prompts["p0"].position_ids = {0, 1};
    CHECK_THAT(a.problem(), Contains("2 position_ids, but 10 tokens"));
  }
}
