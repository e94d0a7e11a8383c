#include <cmath>
#include <map>

#include "property_exceptions.hpp"
#include "replay/head_replay.hpp"

// A replay that begins with the prompt and advances as rows arrive gives what a replay of the complete rows gives.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr StreamShape kGrowing;
using RowOutputs = std::map<std::pair<int32_t, int32_t>, std::vector<double>>;  // by token and head

const auto kGoesOn = [] { return false; };

// The stream as it is before any row behind the prompt arrives: such rows are zero.
HeadStream<double> before_rows(const HeadStream<double>& all) {
  HeadStream<double> stream = make_stream<double>(kGrowing, 7, Look::sinks);
  stream.waiting = stream.tokens - stream.prompt;
  for (auto* rows : {&stream.keys, &stream.values, &stream.queries}) {
    const size_t width = rows->size() / (size_t(rows == &stream.queries ? all.shape.heads : 1) * size_t(all.tokens));
    for (size_t at = 0; at < rows->size(); ++at)
      if (int32_t(at / width % size_t(all.tokens)) >= all.prompt) (*rows)[at] = 0;
  }
  return stream;
}

void arrive(const HeadStream<double>& all, HeadStream<double>& stream, int32_t count) {
  for (auto rows : {&HeadStream<double>::keys, &HeadStream<double>::values, &HeadStream<double>::queries}) {
    const std::vector<double>& from = all.*rows;
    std::vector<double>& to = stream.*rows;
    const size_t heads = rows == &HeadStream<double>::queries ? size_t(all.shape.heads) : 1;
    const size_t width = from.size() / (heads * size_t(all.tokens));
    for (size_t h = 0; h < heads; ++h) {
      const size_t at = (h * size_t(all.tokens) + size_t(stream.arrived())) * width;
      std::copy_n(from.begin() + int64_t(at), size_t(count) * width, to.begin() + int64_t(at));
    }
  }
  stream.waiting -= count;
}

HeadReplay<double>::OnRow noted_in(RowOutputs& outputs) {
  return [&outputs](const Cell&, int32_t head, int32_t token, std::span<const double> out) {
    outputs[{token, head}] = {out.begin(), out.end()};
  };
}

RowOutputs replayed_at_once(const HeadStream<double>& stream, const Cell& cell) {
  RowOutputs outputs;
  const RunOptions options;
  HeadReplay<double> replay(stream, options);
  replay.add(cell);
  replay.on_row(noted_in(outputs));
  replay.run(kGoesOn);
  return outputs;
}

RowOutputs replayed_by_rows(const HeadStream<double>& all, const Cell& cell, int32_t count) {
  RowOutputs outputs;
  const RunOptions options;
  HeadStream<double> stream = before_rows(all);
  HeadReplay<double> replay(stream, options);
  replay.add(cell);
  replay.on_row(noted_in(outputs));
  replay.begin(kGoesOn);
  while (stream.waiting > 0) {
    arrive(all, stream, std::min(count, stream.waiting));
    replay.advance(stream.arrived(), kGoesOn);
  }
  return outputs;
}

}  // namespace

TEST_CASE("rows that arrive later give the outputs of a replay that has them all", "[replay][growing]") {
  const HeadStream<double> all = make_stream<double>(kGrowing, 7, Look::sinks);
  const std::vector<Cell> cells = {
      make_cell("h2o", 24, kGrowing, {}, default_options("h2o")),
      streamed(make_cell("tova", 24, kGrowing, {}, default_options("tova"))),
      make_cell("knorm", 24, kGrowing, {}, default_options("knorm")),
      make_cell("exact", std::nullopt, kGrowing, {}, default_options("exact")),
  };
  for (const Cell& cell : cells)
    for (const int32_t count : {1, 5}) {
      INFO(cell.method_name() << ", " << count << " rows at a time");
      const RowOutputs whole = replayed_at_once(all, cell), parts = replayed_by_rows(all, cell, count);
      REQUIRE(whole.size() == size_t(kGrowing.heads) * size_t(kGrowing.tokens - kGrowing.prompt));
      REQUIRE(parts.size() == whole.size());
      for (const auto& [place, out] : whole)
        for (size_t c = 0; c < out.size(); ++c)
          CHECK(std::abs(parts.at(place)[c] - out[c]) <= 1e-12 * (1 + std::abs(out[c])));
    }
}
