#include <catch2/catch.hpp>
#include <limits>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

// Three segments of the ten tokens of a SmallTrace.
struct Turns {
  std::vector<int32_t> start = {0, 4, 7, 10}, kind = {0, 1, 2};
  std::string names = R"(["system", "user", "assistant"])";

  void operator()(H5Output& file) const {
    const std::string group = "prompts/p0/segments";
    const auto write = [&](const char* name, const std::vector<int32_t>& values) {
      file.write(group + "/" + name, std::span<const int32_t>(values), {static_cast<int64_t>(values.size())});
    };
    write("start", start);
    write("kind", kind);
    if (!names.empty()) file.attribute(group, "names", names);
  }
};

// Two branches of 3 and 2 rows behind the first eight tokens of a SmallTrace.
struct Branches {
  std::vector<std::string> ids = {"000", "001"};
  std::vector<int64_t> rows = {3, 2};
  int64_t context_tokens = 8, input_tokens = 2, first_position = 8, width = 6;
  std::string layer = "003";
  double scaling = 0.5;
  float number = 0;

  void operator()(H5Output& file) const {
    for (size_t b = 0; b < ids.size(); ++b) {
      const std::string group = "prompts/p0/branches/" + ids[b];
      const auto tensor = [&](const char* name, int64_t heads, int64_t dim) {
        std::vector<float> x = marked_tensor(heads, rows[b], dim);
        for (float& value : x) value += static_cast<float>(1000 * b);
        if (number != 0) x.back() = number;
        file.write(group + "/layers/" + layer + "/" + name, std::span<const float>(x), {heads, rows[b], dim});
      };
      tensor("q", 4, width), tensor("k", 2, width), tensor("v", 2, 5);
      std::vector<int32_t> positions(static_cast<size_t>(rows[b])), tokens(positions.size(), 7);
      for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(first_position + i);
      file.write(group + "/position_ids", std::span<const int32_t>(positions), {rows[b]});
      file.write(group + "/tokens", std::span<const int32_t>(tokens), {rows[b]});
      file.attribute(group, "input_tokens", input_tokens);
      file.attribute(group, "name", std::string("question ") + ids[b]);
      file.attribute(group + "/layers/" + layer, "scaling", scaling);
    }
    file.attribute("prompts/p0/branches", "context_tokens", context_tokens);
  }
};

Trace trace_with(const Folder& folder, const std::function<void(H5Output&)>& more) {
  SmallTrace small;
  small.more = more;
  return Trace(small.write(folder / "t.h5"));
}

template <class Group, class Change>
std::string refused(const Change& change) {
  const Folder folder;
  Group group;
  change(group);
  try {
    trace_with(folder, group);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("Segments are read, and the first output ends the prompt") {
  const Folder folder;
  const Trace trace = trace_with(folder, Turns{});
  const PromptInfo& prompt = trace.prompt("p0");
  CHECK(prompt.segments.count() == 3);
  CHECK(prompt.segments.start == std::vector<int32_t>{0, 4, 7, 10});
  CHECK(prompt.segments.kind == std::vector{SegmentKind::context, SegmentKind::input, SegmentKind::output});
  CHECK(prompt.segments.names == std::vector<std::string>{"system", "user", "assistant"});
  CHECK(prompt.n_prompt == 7);
  CHECK(prompt.n_generated == 3);
  CHECK(unknown_names(trace).empty());
  CHECK(deep_check(trace).empty());
  CHECK_THAT(inspect_text(trace), Catch::Contains("turns: 3 segments, 1 of them outputs"));
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"outputs\": 1"));
}

TEST_CASE("Inputs behind the first output do not belong to the prompt") {
  const Folder folder;
  Turns turns;
  turns.start = {0, 3, 5, 6, 10}, turns.kind = {1, 2, 1, 2}, turns.names = "";
  CHECK(trace_with(folder, turns).prompt("p0").n_prompt == 3);
  turns.kind = {1, 0, 1, 1};
  CHECK(trace_with(folder, turns).prompt("p0").n_prompt == 10);
}

TEST_CASE("Segments that do not fit the prompt are an error that says why") {
  using Catch::Contains;
  const auto says = [](auto change) { return refused<Turns>(change); };
  CHECK_THAT(says([](Turns& t) { t.start = {0, 7, 4, 10}; }), Contains("segments/start: must ascend, but 4 follows 7"));
  CHECK_THAT(says([](Turns& t) { t.start = {0, 4, 4, 10}; }), Contains("must ascend, but 4 follows 4"));
  CHECK_THAT(says([](Turns& t) { t.start = {1, 4, 7, 10}; }), Contains("from 1 to 10, it must go from 0"));
  CHECK_THAT(says([](Turns& t) { t.start = {0, 4, 7, 11}; }), Contains("the prompt's 10 tokens"));
  CHECK_THAT(says([](Turns& t) { t.start = {0}; }), Contains("it must be [segments + 1]"));
  CHECK_THAT(says([](Turns& t) { t.kind = {0, 1}; }), Contains("segments/kind: has shape [2], it must be [3]"));
  CHECK_THAT(says([](Turns& t) { t.kind = {0, 1, 3}; }), Contains("holds 3 at 2"));
  CHECK_THAT(says([](Turns& t) { t.kind = {0, -1, 2}; }), Contains("holds -1 at 1"));
  CHECK_THAT(says([](Turns& t) { t.kind = {2, 1, 2}; }), Contains("begins with 2"));
  CHECK_THAT(says([](Turns& t) { t.names = R"(["a", "b"])"; }), Contains("names must be a JSON list of 3"));
  CHECK_THAT(says([](Turns& t) { t.names = "[1, 2, 3]"; }), Contains("names must be a JSON list of 3"));
  CHECK_THAT(says([](Turns& t) { t.names = "["; }), Contains("names must be a JSON list of 3"));
}

TEST_CASE("Branches are read like the prompt's own tensors") {
  const Folder folder;
  const Trace trace = trace_with(folder, Branches{});
  const PromptInfo& prompt = trace.prompt("p0");
  REQUIRE(prompt.branches.size() == 2);
  CHECK(prompt.context_tokens == 8);
  CHECK(prompt.branches[1].id == "001");
  CHECK(prompt.branches[1].name == "question 001");
  CHECK(prompt.branches[0].tokens == 3);
  CHECK(prompt.branches[0].input_tokens == 2);
  CHECK(prompt.tokens == 10);
  CHECK(prompt.n_prompt == 10);
  std::vector<float> keys(12), values(10), queries(18);
  trace.read_branch_keys("p0", 1, 3, 1, keys);
  trace.read_branch_values("p0", 1, 3, 0, values);
  trace.read_branch_queries("p0", 0, 3, 2, queries);
  CHECK(keys[7] == 1000 + marked(1, 1, 1));
  CHECK(values[9] == 1000 + marked(0, 1, 4));
  CHECK(queries[13] == marked(2, 2, 1));
  trace.read_keys("p0", 3, 1, 2, keys);  // the prompt's own, after a branch's
  CHECK(keys[7] == marked(1, 1, 1));
  CHECK(trace.branch_position_ids("p0", 0) == std::vector<int32_t>{8, 9, 10});
  CHECK(trace.branch_token_ids("p0", 1) == std::vector<int32_t>{7, 7});
  CHECK(unknown_names(trace).empty());
  CHECK(deep_check(trace).empty());
  CHECK_THAT(inspect_text(trace), Catch::Contains("2 branches behind its first 8 tokens, 5 rows in all"));
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"name\": \"question 000\""));
}

TEST_CASE("A branch that the trace lacks is an error that says how many there are") {
  const Folder folder;
  std::vector<float> rows(18);
  const Trace trace = trace_with(folder, Branches{});
  CHECK_THROWS_WITH(trace.read_branch_queries("p0", 2, 3, 0, rows), Catch::Contains("no branch 002; the prompt has 2"));
}

TEST_CASE("Branches that do not continue the prompt are an error that says why") {
  using Catch::Contains;
  const auto says = [](auto change) { return refused<Branches>(change); };
  CHECK_THAT(says([](Branches& b) { b.context_tokens = 11; }), Contains("context_tokens is 11"));
  CHECK_THAT(says([](Branches& b) { b.first_position = 7; }),
             Contains("branches/000/position_ids: holds 7 at 0, it must be 8"));
  CHECK_THAT(says([](Branches& b) { b.ids = {"000", "002"}; }), Contains("branches/002: is no branch"));
  CHECK_THAT(says([](Branches& b) { b.layer = "004"; }), Contains("holds the layers 004, the prompt holds 003"));
  CHECK_THAT(says([](Branches& b) { b.width = 7; }),
             Contains("layers/003/k: has shape [2, 3, 7], it must be [2, 3, 6]"));
  CHECK_THAT(says([](Branches& b) { b.input_tokens = 4; }), Contains("input_tokens is 4"));
  CHECK_THAT(says([](Branches& b) { b.scaling = 0.25; }),
             Contains("scaling is 0.25, but the prompt's layer 3 has 0.5"));
}

TEST_CASE("Tensors and attributes that a branch lacks are named") {
  using Catch::Contains;
  const auto says = [](const std::string& leave_out) {
    const Folder folder;
    const auto more = [&](H5Output& file) {
      for (const char* name : {"q", "k", "v"}) {
        const int64_t heads = *name == 'q' ? 4 : 2, width = *name == 'v' ? 5 : 6;
        if (leave_out != name)
          file.write(std::string("prompts/p0/branches/000/layers/003/") + name,
                     std::span<const float>(marked_tensor(heads, 2, width)), {heads, 2, width});
      }
      if (leave_out != "input_tokens") file.attribute("prompts/p0/branches/000", "input_tokens", int64_t{1});
    };
    try {
      return std::to_string(trace_with(folder, more).prompt("p0").context_tokens);
    } catch (const TraceError& error) {
      return std::string(error.what());
    }
  };
  CHECK(says("") == "10");  // without the attribute, the prompt is the context
  CHECK_THAT(says("v"), Contains("branches/000/layers/003/v: is missing"));
  CHECK_THAT(says("input_tokens"), Contains("input_tokens is missing"));
}

TEST_CASE("The deep check reads every number of a branch") {
  const Folder folder;
  Branches branches;
  branches.number = std::numeric_limits<float>::quiet_NaN();
  const Trace trace = trace_with(folder, branches);
  CHECK(deep_check(trace).size() == 6);
  std::vector<float> rows(12);
  CHECK_THROWS_WITH(trace.read_branch_keys("p0", 1, 3, 1, rows), Catch::Contains("branches/001/layers/003/k"));
}

TEST_CASE("The identity of a trace covers the rows of branches and the kinds of segments") {
  const Folder folder;
  const auto id = [&](const std::function<void(H5Output&)>& more) { return trace_with(folder, more).info().trace_id; };
  Branches other;
  other.number = 3;
  CHECK(id(Branches{}) != id([](H5Output&) {}));
  CHECK(id(Branches{}) != id(other));
  Turns turns;
  turns.kind = {1, 1, 2};
  CHECK(id(Turns{}) != id(turns));
}

}  // namespace
}  // namespace kvreplay
