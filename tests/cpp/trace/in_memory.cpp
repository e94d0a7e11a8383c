#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/trace.hpp"

using namespace kvreplay;
using Catch::Contains;

// Traces in memory: the bytes of a file, and arrays that take the place of its tensors.

namespace {

constexpr int64_t kInMemoryTokens = 10, kInMemoryWidth = 6;

// The bytes of the smallest trace, whose tensors hold other numbers than the array for `name`.
struct InMemory {
  TraceInMemory trace;
  std::vector<float> numbers;

  explicit InMemory(const std::string& name, int64_t heads)
      : numbers(size_t(heads * kInMemoryTokens * kInMemoryWidth)) {
    const Folder folder;
    trace = {"live", read_bytes(SmallTrace{}.write(folder / "small.h5")), {}};
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i) / 8;
    trace.arrays["prompts/p0/layers/003/" + name] = {DType::float32,
                                                     {heads, kInMemoryTokens, kInMemoryWidth},
                                                     numbers.data(),
                                                     {kInMemoryTokens * kInMemoryWidth, kInMemoryWidth, 1},
                                                     {}};
  }
  std::vector<float> head(int64_t number) const {
    return {numbers.begin() + number * kInMemoryTokens * kInMemoryWidth,
            numbers.begin() + (number + 1) * kInMemoryTokens * kInMemoryWidth};
  }
};

}  // namespace

TEST_CASE("a trace in memory says what its file says", "[memory]") {
  const InMemory memory("k", 2);
  const Trace trace(memory.trace);
  CHECK(trace.info().prompts.at(0).id == "p0");
  CHECK(trace.layer("p0", 3).q_heads == 4);
  CHECK(trace.layer("p0", 3).scaling == 0.5);
  CHECK_THROWS_WITH(trace.layer("p0", 4), Contains("live") && Contains("holds no layer 4"));
}

TEST_CASE("its arrays are read in place of the file's tensors", "[memory]") {
  const InMemory memory("k", 2);
  const Trace trace(memory.trace);
  std::vector<float> keys(kInMemoryTokens * kInMemoryWidth), values(kInMemoryTokens * 5);
  trace.read_keys("p0", 3, 1, kInMemoryTokens, keys);
  CHECK(keys == memory.head(1));
  trace.read_values("p0", 3, 1, kInMemoryTokens, values);  // still the file's
  CHECK(values.front() == marked(1, 0, 0));
}

TEST_CASE("queries of a trace in memory begin at any row", "[memory]") {
  const InMemory memory("q", 4);
  const Trace trace(memory.trace);
  std::vector<float> rows(2 * kInMemoryWidth);
  trace.read_queries("p0", 3, 2, 7, 2, rows);
  const std::vector<float> head = memory.head(2);
  CHECK(rows == std::vector<float>(head.begin() + 7 * kInMemoryWidth, head.begin() + 9 * kInMemoryWidth));
}

TEST_CASE("an array that is fetched is asked for the rows that are read", "[memory]") {
  InMemory memory("k", 2);
  ArrayView& view = memory.trace.arrays.begin()->second;
  view.data = nullptr;
  view.fetch = [](int64_t head, int64_t first, int64_t rows, void* into) {
    std::fill_n(static_cast<float*>(into), rows * kInMemoryWidth, float(100 * head + first + rows));
  };
  std::vector<float> keys(3 * kInMemoryWidth);
  Trace(memory.trace).read_keys("p0", 3, 1, 3, keys);
  CHECK(keys == std::vector<float>(3 * kInMemoryWidth, 103));
}

TEST_CASE("NaN in an array is named by layer, head and token", "[memory]") {
  InMemory memory("k", 2);
  memory.numbers[kInMemoryTokens * kInMemoryWidth + 4 * kInMemoryWidth + 2] = NAN;
  const Trace trace(memory.trace);
  std::vector<float> keys(kInMemoryTokens * kInMemoryWidth);
  CHECK_THROWS_WITH(trace.read_keys("p0", 3, 1, kInMemoryTokens, keys),
                    Contains("live: /prompts/p0/layers/003/k") && Contains("head 1, token 4"));
  CHECK_NOTHROW(trace.read_keys("p0", 3, 0, kInMemoryTokens, keys));
}

TEST_CASE("two traces in memory are open at once", "[memory]") {
  const InMemory one("k", 2);
  InMemory other("k", 2);
  const Folder folder;
  SmallTrace tall;
  tall.q = {4, 12, 6}, tall.k = {2, 12, 6}, tall.v = {2, 12, 5};
  other.trace.image = read_bytes(tall.write(folder / "tall.h5"));
  const Trace first(one.trace), second(other.trace);
  CHECK(first.layer("p0", 3).tokens == 10);
  CHECK(second.layer("p0", 3).tokens == 12);
}

TEST_CASE("bytes that are no trace are refused", "[memory]") {
  TraceInMemory trace{"live", "no HDF5 at all", {}};
  CHECK_THROWS_AS(Trace(trace), TraceError);
}

TEST_CASE("a recorded rank numbers a prompt's random streams", "[memory]") {
  const Folder folder;
  SmallTrace ranked;
  ranked.more = [](H5Output& file) { file.attribute("prompts/p0", "rank", int64_t{7}); };
  CHECK(Trace(ranked.write(folder / "ranked.h5")).info().prompts.at(0).rank == 7);
  CHECK(Trace(SmallTrace{}.write(folder / "plain.h5")).info().prompts.at(0).rank == 0);
  ranked.more = [](H5Output& file) { file.attribute("prompts/p0", "rank", int64_t{-1}); };
  CHECK_THROWS_WITH(Trace(ranked.write(folder / "negative.h5")), Contains("rank"));
}
