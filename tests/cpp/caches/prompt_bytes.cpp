#include "property_exceptions.hpp"

// Bytes that a cache and the exact cache take for the prompt: at the end of the prompt, and on average.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// A row is 8 + 8 numbers of 4 bytes.
constexpr StreamShape kShape{.tokens = 60, .prompt = 40};
constexpr double kRow = 64;

CellResult result(const Cell& cell, const StreamShape& s = kShape, int32_t window = 0, RunOptions options = {}) {
  auto stream = make_stream<double>(s, 51, Look::clustered);
  stream.window = window;
  const CellResult r = replay(stream, {cell}, options).only();
  INFO(r.error);
  REQUIRE(r.ok);
  return r;
}

Cell cell_with(const char* method, std::optional<int32_t> budget, Phase phase,
               const std::function<void(CommonOptions&)>& change = {}, const StreamShape& s = kShape) {
  CommonOptions options = default_options(method);
  options.phase = phase;
  if (change) change(options);
  return make_cell(method, budget, s, params_of(method), options);
}

Cell exact(const StreamShape& s = kShape) { return make_cell("exact", {}, s, {}, default_options("exact")); }

}  // namespace

TEST_CASE("A cache's prompt bytes are those that it holds after the cut of the prompt", "[prompt bytes]") {
  for (const Phase phase : {Phase::stream, Phase::oneshot}) {
    const Measured m = result(cell_with("streaming_llm", 16, phase)).measures;
    CHECK(*m["prompt_bytes"] == 16 * kRow);  // positions are implied
    CHECK(*m["prompt_full_bytes"] == 40 * kRow);
    CHECK(*m["final_bytes"] == (phase == Phase::stream ? 16 : 16 + 20) * kRow);
  }
  const Measured h2o = result(cell_with("h2o", 16, Phase::stream)).measures;
  CHECK(*h2o["prompt_bytes"] == 16 * (kRow + 8 + 4));  // a score and a position each
  const Measured snapkv = result(cell_with("snapkv", 16, Phase::oneshot)).measures;
  CHECK(*snapkv["prompt_bytes"] == 16 * (kRow + 4));
}

TEST_CASE("A streamed prompt is counted like a cut one: after its last token", "[prompt bytes]") {
  const Measured m = result(streamed(cell_with("h2o", 16, Phase::stream))).measures;
  CHECK(*m["prompt_bytes"] == 16 * (kRow + 8 + 4));
}

TEST_CASE("Query heads that each keep a set are charged for each, and those that read one full cache once",
          "[prompt bytes]") {
  const auto by_query = [](CommonOptions& options) { options.gqa_level = GqaLevel::query; };
  CHECK(*result(cell_with("h2o", 16, Phase::stream, by_query)).measures["prompt_bytes"] == 2 * 16 * (kRow + 8 + 4));
  const Measured oracle = result(cell_with("topk_oracle", 16, Phase::stream, by_query)).measures;
  CHECK(*oracle["prompt_bytes"] == *oracle["prompt_full_bytes"]);
  const Measured quest = result(cell_with("quest", 16, Phase::stream)).measures;
  CHECK(*quest["prompt_bytes"] > *quest["prompt_full_bytes"]);  // plus the extremes of the pages
}

TEST_CASE("Rows of the prompt are charged in the form in which they are stored at its end", "[prompt bytes]") {
  const auto coded = [](CommonOptions& options) { options.row_format = format_with("int4", {{"group", "8"}}); };
  // Key and value take 4 bytes each, plus 2 bytes each for scale and offset.
  CHECK(*result(cell_with("streaming_llm", 16, Phase::stream, coded)).measures["prompt_bytes"] == 16 * (8 + 8));
  const auto kivi = [](CommonOptions& options) {
    options.row_format = format_with("kivi", {{"bits", "4"}, {"g", "8"}, {"R", "8"}});
  };
  const Measured m = result(cell_with("exact", {}, Phase::stream, kivi)).measures;
  CHECK(*m["prompt_bytes"] < *m["prompt_full_bytes"]);
  CHECK(*m["prompt_bytes"] <= *m["total_bytes"]);
}

TEST_CASE("The exact cache takes all of the prompt, and on average all of the full cache", "[prompt bytes]") {
  for (const int32_t window : {0, 7, 39, 40, 41, 59, 200})
    for (const int32_t prompt : {1, 39, 40}) {
      CAPTURE(window, prompt);
      const StreamShape s{.tokens = 60, .prompt = prompt};
      const Measured m = result(exact(s), s, window).measures;
      CHECK(*m["prompt_bytes"] == *m["prompt_full_bytes"]);
      CHECK(*m["mean_bytes"] == Approx(*m["mean_full_bytes"]).epsilon(1e-14));
      CHECK(*m["final_bytes"] == *m["full_bytes"]);
    }
}

TEST_CASE("A full cache grows after the prompt, up to the layer's window", "[prompt bytes]") {
  const Measured m = result(exact()).measures;
  CHECK(*m["mean_full_bytes"] == 50 * kRow);  // 40, 41, ... 60 tokens
  const StreamShape few{.tokens = 10, .prompt = 4};
  const Measured w = result(exact(few), few, 6).measures;  // 4, 5, 6, 6, 6, 6, 6
  CHECK(*w["prompt_full_bytes"] == 4 * kRow);
  CHECK(*w["mean_full_bytes"] == Approx(39 / 7.0 * kRow));
  CHECK(*w["full_bytes"] == 6 * kRow);
}

TEST_CASE("Without a prompt there are no prompt bytes", "[prompt bytes]") {
  const StreamShape s{.tokens = 20, .prompt = 0};
  const Measured m = result(streamed(cell_with("window", 8, Phase::stream, {}, s)), s).measures;
  CHECK_FALSE(m["prompt_bytes"].has_value());
  CHECK_FALSE(m["prompt_full_bytes"].has_value());
  CHECK(*m["mean_full_bytes"] == 10.5 * kRow);  // 1, 2, ... 20 tokens
}

// By definition, a text that ends with the prompt leaves equal bytes in the cache.
TEST_CASE("Prompt bytes are those of a text without later tokens", "[properties]") {
  const StreamShape s{};
  const auto whole = make_stream<double>(s, 52, Look::clustered);
  auto prompt_alone = make_stream<double>(s, 52, Look::clustered);
  prompt_alone.tokens = s.prompt;
  int32_t compared = 0;
  for (const MethodCase& v : variants_with("ends with its prompt"))
    for (const char* format : {"source", "int4", "kivi"}) {
      if (std::string(format) != "source" && v.entry().info.own_row_format) continue;
      MethodCase coded = v;
      if (std::string(format) != "source")
        coded.options.row_format = std::string(format) == "kivi"
                                       ? format_with("kivi", {{"bits", "4"}, {"g", "8"}, {"R", "8"}})
                                       : row_format(format);
      INFO(v.label() << ", format " << format);
      const CellResult r = replay(whole, {cell_of(coded, 40, s)}).only();
      const StreamShape shorter{.tokens = s.prompt, .prompt = s.prompt};
      const CellResult ended = replay(prompt_alone, {cell_of(coded, 40, shorter)}).only();
      REQUIRE(r.ok);
      CHECK(*r.measures["prompt_bytes"] <= *r.measures["total_bytes"]);
      REQUIRE(ended.ok);
      CHECK(*r.measures["prompt_bytes"] == *ended.measures["final_bytes"]);
      ++compared;
    }
  CHECK(compared > 100);
}

TEST_CASE("Rows written by merging count as prompt bytes", "[prompt bytes]") {
  const auto merging = [](Merge::Rule rule) { return [rule](CommonOptions& options) { options.merge.rule = rule; }; };
  const auto of = [&](Merge::Rule rule) {
    return *result(cell_with("window", 16, Phase::oneshot, merging(rule))).measures["prompt_bytes"];
  };
  CHECK(of(Merge::Rule::pivot) >= of(Merge::Rule::none));
  CHECK(of(Merge::Rule::gaussian) > of(Merge::Rule::none));  // writes additional rows
}
