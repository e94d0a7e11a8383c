#include <algorithm>
#include <numeric>

#include "core/bf16.hpp"
#include "device/beside_cores.hpp"
#include "score_rule_cells.hpp"

// Methods that follow a score rule decide on a device as on the CPU, under every rule. Easy cases are checked by hand.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Rounds queries, keys and values to 16 bits, as in a trace.
void round_numbers(HeadStream<float>& stream) {
  stream.stored_bytes = 2;
  for (std::vector<float>* numbers : {&stream.keys, &stream.values, &stream.queries})
    for (float& x : *numbers) x = from_bf16(to_bf16(x));
}

}  // namespace

TEST_CASE("a device keeps the CPU's tokens, for every score rule and budget", "[device][replay]") {
  const StreamShape s{.tokens = 90, .prompt = 60, .heads = 3};
  check_device(make_stream<float>(s, 71), every_rule(s));
  // After a short prompt no token is far ahead of the others, so that every vote decides.
  const StreamShape early{.tokens = 90, .prompt = 8, .heads = 3};
  check_device(make_stream<float>(early, 83), every_rule(early));
  auto rounded = make_stream<float>(s, 72, Look::clustered);
  round_numbers(rounded);
  std::vector<Cell> cells = both(17, s, {{"sinks", 2}});
  for (const char* method : {"snapkv", "streaming_llm", "subgen"})
    cells.push_back(make_cell(
        method, 17, s, method == std::string("snapkv") ? nlohmann::json{{"window", 6}} : nlohmann::json::object(),
        default_options(method)));
  check_device(rounded, cells);
}

TEST_CASE("caches of any number of slots, in registers and in memory", "[device][replay]") {
  const StreamShape s{.tokens = 1150, .prompt = 1090};
  std::vector<Cell> cells;
  for (const int32_t budget : {159, 160, 287, 288, 500, 900, 1055, 1056, 1100})
    for (const char* method : {"h2o", "scissorhands"}) cells.push_back(cell_of_rule(method, budget, s));
  for (const int32_t budget : {100, 1080}) cells.push_back(cell_of_rule("keyformer", budget, s));
  check_device(make_stream<float>(s, 82, Look::clustered), cells);
}

TEST_CASE("a cache on a device that holds less than its budget fills it first", "[device][replay]") {
  const StreamShape s{.tokens = 70, .prompt = 20};
  std::vector<Cell> cells;
  for (const int32_t budget : {20, 21, 45, 69, 70})
    for (const Cell& cell : both(budget, s)) cells.push_back(cell);
  check_device(make_stream<float>(s, 73, Look::sinks), cells);
}

TEST_CASE("scores on a device respect sink logits and soft caps", "[device][replay]") {
  const StreamShape s{.tokens = 70, .prompt = 40, .heads = 3};
  struct Logits {
    float cap;
    std::vector<float> sinks;
  };
  // The last one takes all but about 2^-50 of the probability; measures of missed mass mean nothing there.
  const std::vector<float> above_all{40, 45, 50};
  for (const Logits& logits : {Logits{0, {-1.5f, 2, 6}}, {30, {}}, {2, {-1.5f, 2, 6}}, {0, above_all}}) {
    auto stream = make_stream<float>(s, 74);
    for (float& x : stream.queries) x *= 3;
    stream.rule.softcap = logits.cap, stream.sink_logits = logits.sinks;
    CAPTURE(logits.cap, logits.sinks);
    RunOptions how;
    if (logits.sinks == above_all) how.wanted.drop(Work::masses);
    check_device(stream, both(20, s), how);
  }
}

TEST_CASE("scores on a device work for rows of any width and any number of heads", "[device][replay]") {
  StreamShape s{.tokens = 70, .prompt = 40};
  for (const auto& [dim, v_dim] : {std::pair{48, 64}, {128, 80}, {200, 256}}) {
    s.dim = dim, s.v_dim = v_dim;
    CAPTURE(dim, v_dim);
    check_device(make_stream<float>(s, 75), both(20, s));
  }
  s = {.tokens = 70, .prompt = 40};
  for (const int32_t heads : {1, 5, 8, 35}) {
    s.heads = heads;
    CAPTURE(heads);
    check_device(make_stream<float>(s, 76), both(20, s));
  }
}

TEST_CASE("other caches in a launch change no bit of a cache", "[device][replay]") {
  const StreamShape s{.tokens = 70, .prompt = 40};
  const auto stream = make_stream<float>(s, 77, Look::clustered);
  std::vector<Cell> cells = both(20, s, {{"sinks", 2}});
  for (const char* method : kOthers) cells.push_back(cell_of_rule(method, 20, s));
  cells.push_back(cell_of_rule("h2o", 33, s)), cells.push_back(streamed(cells[0]));
  RunOptions options = on_device();
  const RunResult together = replay(stream, cells, options), again = replay(stream, cells, options);
  for (size_t i = 0; i < cells.size(); ++i) {
    CAPTURE(i);
    REQUIRE(together.cells[i].ok);
    CHECK(same_bits(again.cells[i], together.cells[i]));
    CHECK(same_bits(replay(stream, {cells[i]}, options).only(), together.cells[i]));
  }
}

TEST_CASE("a device that streams the prompt continues after it as the CPU does", "[device][replay]") {
  const StreamShape s{.tokens = 70, .prompt = 40};
  std::vector<Cell> cells = both(20, s);
  for (const char* method : kOthers) cells.push_back(cell_of_rule(method, 20, s));
  for (Cell& cell : cells) cell = streamed(cell);
  check_device(make_stream<float>(s, 78, Look::sinks), cells);
}

namespace {

// Prompt tokens have key 1 in a coordinate where all other tokens have 0. Queries are far below 0 there until token
// `turn`, so prompt tokens are evicted first. From `turn` on, queries prefer prompt tokens by so many nats.
struct Turn {
  float nats;
  int32_t sought, turn;
};
HeadStream<float> rotating_stream(const StreamShape& s, const Turn& at) {
  auto stream = make_stream<float>(s, 79);
  for (int32_t t = 0; t < s.tokens; ++t) {
    stream.keys[size_t(t * s.dim)] = t >= s.prompt - at.sought && t < s.prompt ? 1 : 0;
    for (int32_t h = 0; h < s.heads; ++h)
      stream.queries[size_t((h * s.tokens + t) * s.dim)] = (t < at.turn ? -20.0f : at.nats) / stream.rule.scale;
  }
  return stream;
}

}  // namespace

TEST_CASE("a row whose attended tokens were evicted on a device is summed over the tokens that stayed",
          "[device][replay]") {
  const StreamShape s{.tokens = 80, .prompt = 40};
  RunOptions how;
  how.wanted.drop(Work::recalls);  // most probabilities are zero in float32, and tie
  for (const Turn& at : {Turn{100, 1, 41}, {100, 3, 44}, {100, 20, 60}, {7, 5, 43}}) {
    CAPTURE(at.nats, at.sought, at.turn);
    check_device(rotating_stream(s, at), both(40, s, {{"recent", 0}}), how);
  }
}

namespace {

std::vector<int32_t> first_tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}
// Equal keys, except for some with lower logits.
HeadStream<float> uniform_stream(const StreamShape& s, const std::vector<int32_t>& weak) {
  auto stream = make_stream<float>(s, 80);
  std::fill(stream.queries.begin(), stream.queries.end(), 0.5f);
  std::fill(stream.keys.begin(), stream.keys.end(), 0.25f);
  for (const int32_t t : weak) std::fill_n(stream.keys.begin() + t * s.dim, s.dim, -0.25f);
  return stream;
}

}  // namespace

TEST_CASE("a device evicts the largest token among equal scores", "[device][replay]") {
  const StreamShape s{.tokens = 40, .prompt = 10};
  const std::vector<int32_t> weak{3, 4, 9};
  const auto stream = uniform_stream(s, weak);
  RunOptions options = on_device();
  const CellResult r = replay(stream, {cell_of_rule("tova", 20, s, {{"recent", 2}})}, options).only();
  REQUIRE(r.ok);
  // List 0 is that of the prompt; list t - prompt + 1 is the one after token t.
  const auto kept_at = [&](const CellResult& of, int32_t t) { return kept_list(of, size_t(t - s.prompt + 1)); };
  CHECK(kept_at(r, 19) == first_tokens(20));
  std::vector<int32_t> right = first_tokens(20);
  for (int32_t t = 20; t < s.tokens; ++t) {
    right.push_back(t);
    const size_t left = size_t(t - 20);
    std::erase(right, left < weak.size() ? weak[weak.size() - 1 - left] : t - 2);
    CAPTURE(t);
    CHECK(kept_at(r, t) == right);
  }
  // The newest token may be evicted at once.
  const CellResult newest =
      replay(uniform_stream(s, {}), {cell_of_rule("tova", 20, s, {{"recent", 0}})}, options).only();
  for (int32_t t = 19; t < s.tokens; ++t) CHECK(kept_at(newest, t) == first_tokens(20));
}

TEST_CASE("a NaN score ends its cell on a device at the same token as on the CPU", "[device][replay]") {
  const StreamShape s{.tokens = 70, .prompt = 40};
  const auto sound = [&] { return make_stream<float>(s, 81); };
  const auto stops = [&](const HeadStream<float>& stream, int32_t token) {
    CAPTURE(token);
    for (const CellResult& r : replay(stream, both(50, s), on_device()).cells) {
      CHECK_FALSE(r.ok);
      CHECK(r.error.find("denominator at token " + std::to_string(token) + " ") != std::string::npos);
    }
    check_device(stream, both(50, s));
  };
  auto stream = sound();
  stream.keys[size_t(52 * s.dim + 7)] = NAN;  // a key of a later token
  stops(stream, 52);
  stream = sound();
  stream.queries[size_t((s.tokens + 61) * s.dim + 3)] = NAN;  // a query of the second head
  stops(stream, 61);
  stream = sound();
  stream.queries[size_t(45 * s.dim + 3)] = INFINITY;
  stops(stream, 45);
}
