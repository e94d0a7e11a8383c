#include <catch2/catch.hpp>
#include <limits>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

// A layer [4, 10, 6], [2, 10, 6] with three rows that were generated after its first eight tokens.
struct Ahead {
  std::vector<int64_t> q = {4, 3, 6};
  std::vector<int32_t> tokens = {5, 6, 7};
  int64_t context_tokens = 8, window = 0;
  bool group = true;
  float number = 1;

  void operator()(H5Output& file) const {
    if (!q.empty()) {
      int64_t count = 1;
      for (const int64_t extent : q) count *= extent;
      const std::vector<float> x(static_cast<size_t>(count), number);
      file.write("prompts/p0/layers/003/lookahead_q", std::span<const float>(x), q);
    }
    if (window > 0) file.attribute("prompts/p0/layers/003", "sliding_window", window);
    if (!group) return;
    if (!tokens.empty())
      file.write("prompts/p0/lookahead/tokens", std::span<const int32_t>(tokens),
                 {static_cast<int64_t>(tokens.size())});
    if (context_tokens > 0) file.attribute("prompts/p0/lookahead", "context_tokens", context_tokens);
    file.attribute("prompts/p0/lookahead", "budget", int64_t{4});
  }
};

Trace ahead_trace(const Folder& folder, const Ahead& ahead) {
  SmallTrace small;
  small.more = ahead;
  return Trace(small.write(folder / "t.h5"));
}

template <class Change>
std::string refused(const Change& change) {
  const Folder folder;
  Ahead ahead;
  change(ahead);
  try {
    ahead_trace(folder, ahead);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("Rows generated after a cut prompt are reported, and their names are known") {
  const Folder folder;
  const Trace trace = ahead_trace(folder, {});
  const LookaheadInfo& ahead = trace.prompt("p0").lookahead;
  CHECK(ahead.rows == 3);
  CHECK(ahead.context_tokens == 8);
  CHECK(ahead.budget == 4);
  CHECK(trace.layer("p0", 3).lookahead_rows == 3);
  CHECK(unknown_names(trace).empty());
  CHECK_THAT(inspect_text(trace), Catch::Contains("3 lookahead rows"));
  CHECK_THAT(inspect_text(trace), Catch::Contains("3 rows generated behind its first 8 tokens, cut to 4"));
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"lookahead_rows\": 3"));
  CHECK(deep_check(trace).empty());
  std::vector<float> rows(18);
  trace.read_lookahead_queries("p0", 3, 3, rows);
  CHECK(rows == std::vector<float>(18, 1));
}

TEST_CASE("A trace without generated rows says so, and how they are recorded") {
  const Folder folder;
  const Trace trace(SmallTrace().write(folder / "t.h5"));
  CHECK(trace.prompt("p0").lookahead.rows == 0);
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"lookahead\": null"));
  std::vector<float> rows(18);
  CHECK_THROWS_WITH(trace.read_lookahead_queries("p0", 3, 0, rows), Catch::Contains("kvreplay record --lookahead"));
}

TEST_CASE("Generated rows that do not fit layer or prompt are an error that names them") {
  using Catch::Contains;
  CHECK_THAT(refused([](Ahead& a) { a.q = {3, 3, 6}; }), Contains("lookahead_q") && Contains("it must be [4, 3, 6]"));
  CHECK_THAT(refused([](Ahead& a) { a.q = {4, 3}; }), Contains("[heads, rows, head_dim]"));
  CHECK_THAT(refused([](Ahead& a) { a.q = {4, 0, 6}; }), Contains("holds no rows"));
  CHECK_THAT(refused([](Ahead& a) { a.q = {4, 2, 6}; }), Contains("has 2 rows, but lookahead/tokens has 3"));
  CHECK_THAT(refused([](Ahead& a) { a.group = false; }), Contains("needs the group lookahead of the prompt"));
  CHECK_THAT(refused([](Ahead& a) { a.tokens = {}; }), Contains("lookahead/tokens: is missing"));
  CHECK_THAT(refused([](Ahead& a) { a.context_tokens = 11; }), Contains("context_tokens"));
  CHECK_THAT(refused([](Ahead& a) { a.window = 5; }), Contains("003/lookahead_q") && Contains("sliding window of 5"));
}

TEST_CASE("The deep check reads generated rows, and a reader names the row that is NaN") {
  const Folder folder;
  Ahead ahead;
  ahead.number = std::numeric_limits<float>::quiet_NaN();
  const Trace trace = ahead_trace(folder, ahead);
  const std::vector<std::string> problems = deep_check(trace);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::Contains("003/lookahead_q"));
  std::vector<float> rows(18);
  CHECK_THROWS_WITH(trace.read_lookahead_queries("p0", 3, 0, rows), Catch::Contains("003/lookahead_q"));
}

}  // namespace
}  // namespace kvreplay
