#include <catch2/catch.hpp>
#include <limits>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"

namespace kvreplay {
namespace {

// A layer [4, 10, 6], [2, 10, 6] whose tokens 0..3 and 4..7 are repeated by rows 0..4 and 5..11.
struct Repeated {
  std::vector<int32_t> rows = {0, 5, 12}, ctx = {0, 4, 8}, tokens = std::vector<int32_t>(12, 1);
  std::vector<int64_t> q = {4, 12, 6}, k = {2, 12, 6}, norm = {12};
  int64_t context_tokens = 8;
  bool group = true;
  float number = 1;

  void operator()(H5Output& file) const {
    const auto integers = [&](const char* name, const std::vector<int32_t>& x) {
      if (!x.empty())
        file.write("prompts/p0/repeat/" + std::string(name), std::span<const int32_t>(x),
                   {static_cast<int64_t>(x.size())});
    };
    const auto floats = [&](const char* name, const std::vector<int64_t>& shape) {
      if (shape.empty()) return;
      int64_t count = 1;
      for (const int64_t extent : shape) count *= extent;
      const std::vector<float> x(static_cast<size_t>(count), number);
      file.write("prompts/p0/layers/003/" + std::string(name), std::span<const float>(x), shape);
    };
    floats("repeat_q", q);
    floats("repeat_k", k);
    floats("repeat_in_norm", norm);
    if (!group) return;
    integers("rows", rows);
    integers("ctx", ctx);
    integers("tokens", tokens);
    if (context_tokens > 0) file.attribute("prompts/p0/repeat", "context_tokens", context_tokens);
  }
};

Trace opened(const Folder& folder, const Repeated& repeated) {
  SmallTrace small;
  small.more = repeated;
  return Trace(small.write(folder / "t.h5"));
}

std::string message(const Repeated& repeated) {
  const Folder folder;
  try {
    opened(folder, repeated);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

template <class Change>
Repeated with(const Change& change) {
  Repeated repeated;
  change(repeated);
  return repeated;
}

TEST_CASE("A repeated context is reported with its chunks, and its names are known") {
  const Folder folder;
  const Trace trace = opened(folder, {});
  const RepeatInfo& repeat = trace.prompt("p0").repeat;
  CHECK(repeat.context_tokens == 8);
  CHECK(repeat.chunks() == 2);
  CHECK(repeat.ctx == std::vector<int32_t>{0, 4, 8});
  CHECK(trace.layer("p0", 3).repeat_rows == 12);
  CHECK(trace.layer("p0", 3).has_repeat_norm);
  CHECK(unknown_names(trace).empty());
  CHECK_THAT(inspect_text(trace), Catch::Contains("12 repeat rows with norms"));
  CHECK_THAT(inspect_text(trace), Catch::Contains("its first 8 tokens repeated, in 2 chunks"));
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"context_tokens\": 8"));
  CHECK(deep_check(trace).empty());
}

TEST_CASE("A trace that repeats nothing says so") {
  const Folder folder;
  const Trace trace(SmallTrace().write(folder / "t.h5"));
  CHECK(trace.prompt("p0").repeat.chunks() == 0);
  CHECK(trace.layer("p0", 3).repeat_rows == 0);
  CHECK_THAT(inspect_json(trace), Catch::Contains("\"repeat\": null"));
}

TEST_CASE("The context is the prompt if the attribute is missing") {
  const Repeated whole = with([](Repeated& r) {
    r.context_tokens = 0;
    r.ctx = {0, 4, 10};
  });
  const Folder folder;
  CHECK(opened(folder, whole).prompt("p0").repeat.context_tokens == 10);
}

TEST_CASE("Chunks that do not fit context and rows are an error that says so") {
  using Catch::Contains;
  CHECK_THAT(message(with([](Repeated& r) { r.context_tokens = 9; })), Contains("ends at 8, but the attribute"));
  CHECK_THAT(message(with([](Repeated& r) { r.context_tokens = 0; })), Contains("context_tokens is 10"));
  CHECK_THAT(message(with([](Repeated& r) { r.context_tokens = 11; })), Contains("context_tokens"));
  CHECK_THAT(message(with([](Repeated& r) { r.ctx = {0, 8, 4}; })), Contains("must ascend, but 4 follows 8"));
  CHECK_THAT(message(with([](Repeated& r) { r.ctx = {0, 4, 11}; })), Contains("must stay between 0 and 10"));
  CHECK_THAT(message(with([](Repeated& r) { r.ctx = {0, 8}; })), Contains("has 1 chunks, but rows has 2"));
  CHECK_THAT(message(with([](Repeated& r) { r.ctx = {8}; })), Contains("it must be [chunks + 1]"));
  CHECK_THAT(message(with([](Repeated& r) { r.rows = {1, 5, 12}; })), Contains("must begin with 0"));
  CHECK_THAT(message(with([](Repeated& r) { r.rows = {}; })), Contains("repeat/rows: is missing"));
  CHECK_THAT(message(with([](Repeated& r) { r.rows = {0, 5, 11}; })), Contains("has shape [12], it must be [11]"));
}

TEST_CASE("Repeated rows that do not fit the layer are an error that says so") {
  using Catch::Contains;
  CHECK_THAT(message(with([](Repeated& r) { r.q = {3, 12, 6}; })), Contains("it must be [4, 12, 6]"));
  CHECK_THAT(message(with([](Repeated& r) { r.k = {2, 11, 6}; })), Contains("it must be [2, 12, 6]"));
  CHECK_THAT(message(with([](Repeated& r) { r.norm = {11}; })), Contains("it must be [12]"));
  CHECK_THAT(message(with([](Repeated& r) { r.k = {}; })), Contains("holds repeat_q without repeat_k"));
  CHECK_THAT(message(with([](Repeated& r) { r.q = {}; })), Contains("holds repeat_k without repeat_q"));
  CHECK_THAT(message(with([](Repeated& r) { r.group = false; })), Contains("needs the group repeat of the prompt"));
  CHECK_THAT(message(with([](Repeated& r) { r.q[1] = r.k[1] = r.norm[0] = 11; })),
             Contains("has 11 rows, but repeat/rows ends at 12"));
}

TEST_CASE("The deep check reads repeated rows") {
  const Folder folder;
  const Trace trace = opened(folder, with([](Repeated& r) { r.number = std::numeric_limits<float>::infinity(); }));
  const std::vector<std::string> problems = deep_check(trace);
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Catch::Contains("003/repeat_q"));
  CHECK_THAT(problems[1], Catch::Contains("003/repeat_k"));
}

TEST_CASE("Norms of a layer's input are known, and as many as there are tokens") {
  const Folder folder;
  SmallTrace small;
  std::vector<float> norms(10, 1.0f);
  small.more = [&](H5Output& file) {
    file.write("prompts/p0/layers/003/resid_in_norm", std::span<const float>(norms),
               {static_cast<int64_t>(norms.size())});
  };
  {
    const Trace trace(small.write(folder / "t.h5"));
    CHECK(trace.layer("p0", 3).has_in_norm);
    CHECK(unknown_names(trace).empty());
    CHECK_THAT(inspect_text(trace), Catch::Contains("input norms"));
  }
  norms.pop_back();
  CHECK_THROWS_WITH(Trace(small.write(folder / "u.h5")), Catch::Contains("has shape [9], it must be [10]"));
}

}  // namespace
}  // namespace kvreplay
