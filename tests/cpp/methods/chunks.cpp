#include <algorithm>

#include "hand_streams.hpp"
#include "property_exceptions.hpp"

// Layers that attend in chunks (Llama 4): a row sees the tokens of its own chunk alone.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;

// Ten tokens in chunks of four: 0..3, 4..7 and 8..9. The prompt ends within the second. A token's attention is
// proportional to its weight, and its value is its index.
const std::vector<double> kWeights = {1, 8, 2, 5, 1, 2, 4, 3, 6, 2};

HeadStream<double> in_chunks() {
  HeadStream<double> s = weighted_stream(kWeights, 6);
  s.window = {0, 4};
  return s;
}

CellResult run(const HeadStream<double>& s, const std::string& method, std::optional<int32_t> budget,
               const nlohmann::json& params = nlohmann::json::object()) {
  CommonOptions options = default_options(method);
  options.positions = Positions::original;
  const CellResult r = replay(s, {make_cell(method, budget, {s.tokens, s.prompt, 1, 1, 1}, params, options)}).only();
  INFO(r.error);
  REQUIRE(r.ok);
  return r;
}

std::vector<Tokens> lists(const CellResult& r) {
  std::vector<Tokens> all;
  for (size_t i = 0; i + 1 < r.kept.off.size(); ++i) all.push_back(kept_list(r, i));
  return all;
}

}  // namespace

TEST_CASE("A row of a chunk sees the chunk up to itself", "[hand][chunks]") {
  const LayerWindow chunks{0, 4};
  Tokens first, seen;
  for (int32_t t = 0; t < 10; ++t) first.push_back(chunks.first(t)), seen.push_back(chunks.seen(t));
  CHECK(first == Tokens{0, 0, 0, 0, 4, 4, 4, 4, 8, 8});
  CHECK(seen == Tokens{1, 2, 3, 4, 1, 2, 3, 4, 1, 2});
}

TEST_CASE("Exact rows of chunks by hand", "[hand][chunks]") {
  const CellResult r = run(in_chunks(), "exact", {});
  REQUIRE(r.rows == Tokens{6, 7, 8, 9});
  CHECK(output(r, 0, 0)[0] == Approx((1 * 4 + 2 * 5 + 4 * 6) / 7.0));
  CHECK(output(r, 0, 1)[0] == Approx((1 * 4 + 2 * 5 + 4 * 6 + 3 * 7) / 10.0));
  CHECK(output(r, 0, 2)[0] == 8);
  CHECK(output(r, 0, 3)[0] == Approx((6 * 8 + 2 * 9) / 8.0));
  CHECK(*r.measures["rel_err_out_max"] < 1e-12);
  // After the prompt and each step the cache holds 2, 3, 4, 1 and 2 tokens, of a key and a value of 4 bytes each.
  CHECK(*r.measures["prompt_bytes"] == 2 * 8);
  CHECK(*r.measures["prompt_full_bytes"] == 2 * 8);
  CHECK(*r.measures["full_bytes"] == 4 * 8);
  CHECK(*r.measures["peak_bytes"] == 4 * 8);
  CHECK(*r.measures["mean_full_bytes"] == Approx(12 / 5.0 * 8));
  CHECK(*r.measures["final_bytes"] == 2 * 8);
}

TEST_CASE("Tokens of an earlier chunk are evicted when a chunk begins", "[hand][chunks]") {
  const auto s = in_chunks();
  CHECK(lists(run(s, "window", 3)) == std::vector<Tokens>{{4, 5}, {4, 5, 6}, {5, 6, 7}, {8}, {8, 9}});
  // The sink, token 0, is in the first chunk, which no scored row sees: three recent tokens stay.
  CHECK(lists(run(s, "streaming_llm", 3, {{"sinks", 1}})) == lists(run(s, "window", 3)));
  const CellResult kept = run(s, "window", 2);
  CHECK(output(kept, 0, 1)[0] == Approx((2 * 5 + 4 * 6 + 3 * 7) / 9.0));  // token 7 sees 5 and 6 in the cache
  CHECK(output(kept, 0, 3)[0] == Approx((6 * 8 + 2 * 9) / 8.0));
}

TEST_CASE("A prompt that ends with a chunk leaves nothing to the tokens behind it", "[hand][chunks]") {
  HeadStream<double> s = weighted_stream(kWeights, 8);
  s.window = {0, 4};
  const CellResult r = run(s, "window", 2);
  CHECK(lists(r) == std::vector<Tokens>{{6, 7}, {8}, {8, 9}});
  CHECK(output(r, 0, 0)[0] == 8);
}

TEST_CASE("in a layer with chunks methods choose among what a query can see", "[properties][chunks]") {
  const StreamShape s{.tokens = 120, .prompt = 90};  // the prompt ends in the sixth chunk of 16, which it fills with 10
  for (const MethodCase& v : variants())
    for (const int32_t budget : {10, 24}) {
      if (v.entry().info.needs_every_token || (budget == 10 && excused("small budgets", v))) continue;
      if (excused("chunks", v)) continue;
      INFO(v.label() << " B=" << budget);
      auto stream = make_stream<double>(s, 21);
      stream.window = {0, 16};
      const CellResult r = replay(stream, {cell_of(v, budget, s)}).only();
      INFO(r.error);
      REQUIRE(r.ok);
      CHECK(*r.measures["peak_attended_tokens"] <= 16);
      CHECK(*r.measures["full_bytes"] == 16 * 8 * (s.dim + s.v_dim) / 2);
      const MethodInfo& info = v.entry().info;
      const bool obeys = info.takes_budget && info.exact_budget && !info.reads_full_cache;
      if (!obeys || excused("within the budget", v)) continue;
      CHECK(int32_t(kept_list(r, 0).size()) <= std::min(budget, 10));
      CHECK(kept_list(r, 0).front() >= 80);
      if (budget >= 16 && !excused("fills its budget", v)) CHECK(*r.measures["rel_err_out_max"] < 1e-10);
    }
}

TEST_CASE("a chunk that holds every token changes no bit", "[properties][chunks]") {
  const StreamShape s;
  for (const MethodCase& v : variants()) {
    if (v.entry().info.needs_every_token) continue;
    INFO(v.label());
    const Cell cell = cell_of(v, 40, s);
    auto stream = make_stream<double>(s, 33);
    const CellResult without = replay(stream, {cell}).only();
    stream.window = s.tokens;
    const CellResult sliding = replay(stream, {cell}).only();
    stream.window = {0, s.tokens};
    const CellResult r = replay(stream, {cell}).only();
    // Windows have an evaluator of their own, whose sums run in another order than those of layers without one.
    CHECK(r.out == sliding.out);
    CHECK(r.kept.flat == without.kept.flat);
    CHECK(relative_difference(r.out, without.out) < 1e-10);
    CHECK(r.measures["total_bytes"] == without.measures["total_bytes"]);
  }
}
