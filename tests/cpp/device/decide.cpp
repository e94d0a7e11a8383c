#include <catch2/catch.hpp>
#include <cmath>

#include "device/beside_cores.hpp"
#include "device/devices.hpp"
#include "device/under_test.hpp"
#include "emulator/emulated_runtime.hpp"

// Decisions by score rules on a device: small cases by hand, and what they cost.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr float kLog2e = 1.44269504088896341f;

// One cache whose row t has logit logits[t][j] for token j.
struct OneCache {
  ScoreRule rule;
  std::vector<std::vector<double>> logits;
  std::vector<int32_t> held;  // before the first row
  std::vector<double> scores;
  int32_t slots = 32;

  int32_t begin() const { return int32_t(held.size()); }
  // For each token the first row that does not see it; Residency::kStays for those that stay.
  std::vector<int32_t> until(Runtime& runtime) const {
    const int32_t rows = int32_t(logits.size()), tokens = begin() + rows;
    std::vector<float> strip(size_t(rows * tokens), NAN);
    for (int32_t r = 0; r < rows; ++r)
      for (size_t j = 0; j < logits[size_t(r)].size(); ++j)
        strip[size_t(r * tokens) + j] = float(logits[size_t(r)][j]) * kLog2e;
    std::vector<int32_t> token(size_t(slots), -1);
    std::vector<double> score(size_t(slots), 0);
    std::copy(held.begin(), held.end(), token.begin());
    std::copy(scores.begin(), scores.end(), score.begin());
    const auto on_strip = uploaded(runtime, strip);
    const auto on_token = uploaded(runtime, token);
    const auto on_score = uploaded(runtime, score);
    const auto on_marked = filled(runtime, size_t(slots), int32_t{0});
    const auto on_until = filled(runtime, size_t(tokens), Residency::kStays);
    const auto on_failed = filled(runtime, 1, int32_t{-1});
    DecideTask task{};
    task.rule = rule, task.heads = 1, task.begin = begin(), task.slots = slots;
    task.token = on_token.data(), task.score = on_score.data(), task.marked = on_marked.data();
    task.until = on_until.data(), task.failed = on_failed.data();
    const auto on_task = uploaded(runtime, std::vector<DecideTask>{task});
    runtime.run(DecideKernel{{on_task.data(), on_strip.data(), nullptr, 1, begin(), rows, tokens}});
    REQUIRE(downloaded(runtime, on_failed) == std::vector<int32_t>{-1});
    return downloaded(runtime, on_until);
  }
};

constexpr int32_t kStays = Residency::kStays;

}  // namespace

TEST_CASE("a score rule evicts the lowest sum of probabilities, by hand", "[device][kernel]") {
  const double ln2 = std::log(2.0);
  // Probabilities of tokens 0, 1, 2 in row 2: 1/4, 1/2, 1/4; the sums are 1.25, 1.5, 0.25, and 2 leaves. In row 3
  // tokens 0, 1, 3 get 1/6, 1/6, 4/6: sums 1.41, 1.67, 0.67, and 3 leaves. With carry 0 the present row alone decides:
  // a tie of 0 and 2 in row 2, of which the later token leaves, and one of 0 and 1 in row 3.
  OneCache cache{{.carry = 1, .budget = 2}, {{0, ln2, 0}, {0, 0, 0, 2 * ln2}}, {0, 1}, {1, 1}};
  const auto runtime = runtime_under_test();
  CHECK(cache.until(*runtime) == std::vector<int32_t>{kStays, kStays, 3, 4});
  cache.rule.carry = 0;
  CHECK(cache.until(*runtime) == std::vector<int32_t>{kStays, 4, 3, kStays});
  cache.rule.protect = {.sinks = 0, .recent = 1};
  CHECK(cache.until(*runtime) == std::vector<int32_t>{3, kStays, 4, kStays});
  cache.rule.protect = {.sinks = 1, .recent = 1};
  CHECK(cache.until(*runtime) == std::vector<int32_t>{kStays, 3, 4, kStays});
}

TEST_CASE("several tokens leave at once, whatever the size of the logits", "[device][kernel]") {
  // Row 3 holds tokens 0 to 3 and evicts the two of smallest probability, 1 and 2; row 4 holds three and evicts none.
  OneCache cache{{.carry = 1, .budget = 3, .drop = 2}, {{900, 830, 840, 890}, {1, 7, 7, 1, 1}}, {0, 1, 2}, {0, 0, 0}};
  const auto runtime = runtime_under_test();
  CHECK(cache.until(*runtime) == std::vector<int32_t>{kStays, 4, 4, kStays, kStays});
}

TEST_CASE("logits of evicted tokens count no more, however large", "[device][kernel]") {
  OneCache cache{{.carry = 1, .budget = 3, .drop = 2},
                 {{900, 830, 840, 890}, {1, 9000, 9000, 1, 1}, {1, 9000, 9000, 1, 1, 0}},
                 {0, 1, 2},
                 {0, 0, 0}};
  const auto runtime = runtime_under_test();
  CHECK(cache.until(*runtime) == std::vector<int32_t>{kStays, 4, 4, kStays, 6, 6});
}

TEST_CASE("decisions wait at no barrier of a block", "[emulator]") {
  OneCache cache{{.carry = 1, .budget = 2}, {{0, 1, 0}, {0, 0, 0, 2}}, {0, 1}, {1, 1}};
  emulator::Work work;
  cache.until(*emulator::open_runtime(emulator::Schedule::forward, &work));
  CHECK(work.launches == 1);
  CHECK(work.barriers == 0);
}

TEST_CASE("launches and copies of a run do not grow with its caches", "[emulator][replay]") {
  const StreamShape s{.tokens = 330, .prompt = 74};  // four tiles of rows
  const auto stream = make_stream<float>(s, 91, Look::clustered);
  const auto work_of = [&](int32_t copies, size_t rows) {
    emulator::Work work;
    RunOptions options;
    options.device =
        open_heads([&work] { return emulator::open_runtime(emulator::Schedule::forward, &work); }, {.rows = rows});
    std::vector<Cell> cells;
    for (int32_t i = 0; i < copies; ++i)
      for (const char* method : {"h2o", "tova", "window"})
        cells.push_back(make_cell(method, 20 + i, s, nlohmann::json::object(), default_options(method)));
    for (const CellResult& cell : replay(stream, cells, options).cells) CHECK_FALSE(cell.on_cpu);
    return work;
  };
  const emulator::Work one = work_of(1, 256), many = work_of(6, 256), tiles = work_of(6, 64);
  CHECK(many.launches == one.launches);
  CHECK((tiles.launches - many.launches) / 3 <= 10);  // for each further tile
  // What a step of a cache copies: the results of its heads with their outputs and projections, and a few numbers for
  // the tokens that arrive and leave.
  const double steps = double(s.tokens - s.prompt) * 3 * 5;
  const size_t results = size_t(s.heads) * (sizeof(RowResult) + 4 * size_t(s.v_dim + stream.sensitivity.samples));
  CHECK(double(many.copied - one.copied) / steps <= double(results) + 48);
}
