#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "backend/emulator/emulated_runtime.hpp"
#include "backend/kernels_of.hpp"
#include "device_under_test.hpp"
#include "gaussian.hpp"

// Who leaves a cache that follows a score rule, as a device decides, against the rule token by token.

using namespace kvreplay;
using namespace kvreplay::test;
using emulator::Schedule;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Logits are float32 sums of 64 products or so, and exponentials are float32: scores nearer to each other
// than this may change places.
double near_tie() { return 1e-6 * float32_slack(); }
// Of a score, for queries of size 1: what float32 logits leave. Three products also drop low x low, 2^-18 of
// every term, of which the absolute values add up to 5 here.
double score_error(bool two_planes) { return 2e-6 * float32_slack() + (two_planes ? 1.8e-5 : 0); }

struct Rule {
  double carry = 1, share = 1;
  int32_t sinks = 0, recent = 0, budget = 17;
};

// A chain on the host. Tokens below `first` are the prompt; what it left is `held`.
struct Chain {
  Rule rule;
  int32_t heads = 3, group = 3, width = 64, dim = 64, first = 40, tokens = 100, row_before = 0;
  float scale = 0.125f, softcap = 0, size = 1;  // size: of the queries
  bool two_planes = true;
  std::vector<float> q, k;  // [heads, rows, dim], [heads / group, tokens, dim]
  std::vector<float> sink_logits;
  std::vector<int32_t> held;
  std::vector<double> scores;

  int32_t rows() const { return tokens - first + row_before; }
  int32_t first_row() const { return first - row_before; }
  int32_t kv_heads() const { return heads / group; }
  Grade grade() const { return two_planes ? Grade::single : Grade::recorded; }
  float& query(int32_t head, int32_t token, int32_t x) {
    return q[size_t((head * rows() + token - first_row()) * dim + x)];
  }
  float& key(int32_t kv, int32_t token, int32_t x) { return k[size_t((kv * tokens + token) * dim + x)]; }

  // Random queries and keys, and `count` tokens of the prompt, the first and the last among them.
  void draw(uint32_t seed, int32_t count) {
    q = gaussian<float>(size_t(heads) * size_t(rows()) * size_t(dim), seed);
    k = gaussian<float>(size_t(kv_heads()) * size_t(tokens) * size_t(dim), seed + 1);
    for (float& x : q) x *= size;
    if (!two_planes) {
      for (float& x : q) x = from_bf16(bf16(x));
      for (float& x : k) x = from_bf16(bf16(x));
    }
    std::mt19937 random(seed + 2);
    std::set<int32_t> chosen{0, first - 1};
    while (int32_t(chosen.size()) < count) chosen.insert(int32_t(random() % uint32_t(first)));
    while (int32_t(chosen.size()) > count) chosen.erase(chosen.begin());
    held.assign(chosen.begin(), chosen.end());
    scores.clear();
    for (const int32_t t : held) scores.push_back(double(t % 7) * 0.3 + double(random() % 1000) * 1e-3);
  }
};

struct Outcome {
  std::vector<int32_t> victims, held;
  std::vector<double> scores;
  ScoreChainEnd end{};
  bool operator==(const Outcome& o) const {
    return victims == o.victims && held == o.held && end.why == o.end.why && end.token == o.end.token &&
           std::equal(scores.begin(), scores.end(), o.scores.begin(), o.scores.end(), [](double a, double b) {
             return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
           });
  }
};

// A chain in the memory of a device.
struct OnDevice {
  Planes q, k;
  DeviceArray<float> sink_logits, scratch;
  DeviceArray<int32_t> held, victims;
  DeviceArray<double> scores;
  DeviceArray<ScoreChainEnd> end;
  ScoreChain chain{};

  OnDevice(Runtime& runtime, const Chain& c, bool in_scratch)
      : q(packed(runtime, c.q, c.dim, c.width, c.grade())),
        k(packed(runtime, c.k, c.dim, c.width, c.grade())),
        sink_logits(uploaded(runtime, c.sink_logits)),
        victims(filled(runtime, size_t(c.tokens - c.first), -7)),
        end(filled(runtime, 1, ScoreChainEnd{ScoreChainEnd::Why(-7), -7})) {
    const size_t budget = size_t(c.rule.budget);
    std::vector<int32_t> tokens = c.held;
    std::vector<double> of_tokens = c.scores;
    tokens.resize(budget, -7), of_tokens.resize(budget, -7);
    held = uploaded(runtime, tokens), scores = uploaded(runtime, of_tokens);
    if (in_scratch) scratch = filled(runtime, score_chain_scratch_floats(c.heads, c.rule.budget), kNaN);
    chain = {.q_high = q.high.data(),
             .q_low = q.low.data(),
             .k_high = k.high.data(),
             .k_low = k.low.data(),
             .sink_logits = c.sink_logits.empty() ? nullptr : sink_logits.data(),
             .held = held.data(),
             .scores = scores.data(),
             .scratch = scratch.data(),
             .victims = victims.data(),
             .end = end.data(),
             .carry = c.rule.carry,
             .share = c.rule.share,
             .sinks = c.rule.sinks,
             .recent = c.rule.recent,
             .budget = c.rule.budget,
             .count = int32_t(c.held.size()),
             .first = c.first,
             .last = c.tokens,
             .first_row = c.first_row(),
             .rows = c.rows(),
             .tokens = c.tokens,
             .heads = c.heads,
             .group = c.group,
             .scale = c.scale,
             .softcap = c.softcap};
  }
  Outcome outcome(Runtime& runtime) const {
    return {downloaded(runtime, victims), downloaded(runtime, held), downloaded(runtime, scores),
            downloaded(runtime, end)[0]};
  }
};

enum class Strip { shared_if_it_fits, scratch };

// All in one launch, so of one width and grade.
std::vector<Outcome> run(const std::vector<Chain>& chains, Schedule schedule = Schedule::forward,
                         Strip strip = Strip::shared_if_it_fits) {
  const auto runtime = runtime_under_test(schedule);
  const int32_t width = chains[0].width;
  const Grade grade = chains[0].grade();
  std::vector<OnDevice> device;
  std::vector<ScoreChain> list;
  size_t shared = 0;
  for (const Chain& c : chains) {
    const auto bytes = [&](bool in_scratch) {
      return score_chain_shared_bytes(width, grade, c.heads, c.rule.budget, in_scratch);
    };
    const bool in_scratch = strip == Strip::scratch || bytes(false) > runtime->most_shared_bytes();
    device.emplace_back(*runtime, c, in_scratch);
    list.push_back(device.back().chain);
    shared = std::max(shared, bytes(in_scratch));
  }
  const DeviceArray<ScoreChain> on_device = uploaded(*runtime, list);
  runtime->score_chains(on_device.data(), int64_t(list.size()), shared, width, grade);
  std::vector<Outcome> out;
  for (const OnDevice& d : device) out.push_back(d.outcome(*runtime));
  return out;
}

// One after the other, by a kernel of another number of threads.
template <class Kernel>
std::vector<Outcome> emulated(const std::vector<Chain>& chains) {
  const auto runtime = emulator::open_runtime(Schedule::forward);
  std::vector<Outcome> out;
  for (const Chain& c : chains) {
    const OnDevice device(*runtime, c, false);
    const Kernel kernel{&device.chain, 1, Kernel::shared_bytes(c.heads, c.rule.budget, false)};
    emulator::launch(kernel, kernel.shape(), Schedule::forward);
    out.push_back(device.outcome(*runtime));
  }
  return out;
}

// The rule, token by token. It follows the victims it is shown, so that one near tie does not end the
// comparison, and counts those that it would not have chosen itself.
class Reference {
 public:
  explicit Reference(const Chain& chain) : c_(chain), tokens_(chain.held), scores_(chain.scores) {}

  void follow(const Outcome& device) {
    REQUIRE(device.end.why == ScoreChainEnd::done);
    for (int32_t t = c_.first; t < c_.tokens; ++t) {
      INFO("token " << t);
      step(t);
      const int32_t victim = device.victims[size_t(t - c_.first)];
      if (int32_t(tokens_.size()) > c_.rule.budget) leave(t, victim);
      else REQUIRE(victim == -1);
    }
    compare_state(device);
  }
  int32_t evictions = 0, near_ties = 0;
  double worst_score = 0;

 private:
  double logit(int32_t h, int32_t t, int32_t of) {
    double dot = 0;
    for (int32_t x = 0; x < c_.dim; ++x)
      dot += double(number(c_.query(h, t, x))) * double(number(c_.key(h / c_.group, of, x)));
    const double l = dot * double(c_.scale);
    return c_.softcap > 0 ? double(c_.softcap) * std::tanh(l / double(c_.softcap)) : l;
  }
  // What the planes hold.
  float number(float x) const {
    const float high = from_bf16(bf16(x));
    return c_.two_planes ? high + from_bf16(bf16(x - high)) : high;
  }
  void step(int32_t t) {
    tokens_.push_back(t), scores_.push_back(0);
    for (double& s : scores_) s *= c_.rule.carry;
    std::vector<double> e(tokens_.size());
    for (int32_t h = 0; h < c_.heads; ++h) {
      double top = c_.sink_logits.empty() ? -INFINITY : double(c_.sink_logits[size_t(h)]);
      for (size_t i = 0; i < e.size(); ++i) top = std::max(top, e[i] = logit(h, t, tokens_[i]));
      double z = c_.sink_logits.empty() ? 0 : std::exp(double(c_.sink_logits[size_t(h)]) - top);
      for (double& x : e) z += x = std::exp(x - top);
      for (size_t i = 0; i < e.size(); ++i) scores_[i] += c_.rule.share * e[i] / z;
    }
  }
  bool may_leave(int32_t token, int32_t t) const {
    return token >= c_.rule.sinks && token <= t - c_.rule.recent;
  }
  void leave(int32_t t, int32_t victim) {
    ++evictions;
    size_t lowest = tokens_.size(), named = tokens_.size();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i] == victim) named = i;
      if (!may_leave(tokens_[i], t)) continue;
      const bool first = lowest == tokens_.size();
      if (first || scores_[i] < scores_[lowest] ||
          (scores_[i] == scores_[lowest] && tokens_[i] > tokens_[lowest]))
        lowest = i;
    }
    INFO("lowest is " << tokens_[lowest] << " at " << scores_[lowest] << ", the device took " << victim);
    REQUIRE(named < tokens_.size());
    REQUIRE(may_leave(victim, t));
    if (named != lowest) {
      const double margin = scores_[named] / scores_[lowest] - 1;
      INFO("margin " << margin);
      REQUIRE(margin <= near_tie());
      ++near_ties;
    }
    tokens_.erase(tokens_.begin() + int64_t(named)), scores_.erase(scores_.begin() + int64_t(named));
  }
  void compare_state(const Outcome& device) {
    std::vector<std::pair<int32_t, double>> theirs;
    for (size_t i = 0; i < tokens_.size(); ++i) theirs.emplace_back(device.held[i], device.scores[i]);
    std::sort(theirs.begin(), theirs.end());
    for (size_t i = 0; i < tokens_.size(); ++i) {
      REQUIRE(theirs[i].first == tokens_[i]);
      INFO("token " << tokens_[i] << " has " << theirs[i].second << ", not " << scores_[i]);
      const double error = std::abs(theirs[i].second / scores_[i] - 1);
      worst_score = std::max(worst_score, error);
      CHECK(error <= double(c_.size) * score_error(c_.two_planes));
    }
    for (size_t i = tokens_.size(); i < device.held.size(); ++i) CHECK(device.held[i] == -7);  // untouched
  }

  Chain c_;
  std::vector<int32_t> tokens_;
  std::vector<double> scores_;
};

struct Count {
  int32_t evictions = 0, near_ties = 0;
};
Count compare(const std::vector<Chain>& chains, const std::vector<Outcome>& out) {
  Count count;
  for (size_t i = 0; i < chains.size(); ++i) {
    INFO("chain " << i);
    Reference reference(chains[i]);
    reference.follow(out[i]);
    count.evictions += reference.evictions, count.near_ties += reference.near_ties;
  }
  CHECK(count.near_ties * 1000 <= count.evictions);
  return count;
}

Chain small(uint32_t seed, int32_t steps = 37) {
  Chain c;
  c.rule = {1, 1, 2, 6, 20};
  c.tokens = c.first + steps;
  c.draw(seed, 20);
  return c;
}

// Key x of kv head `kv` becomes `value` for every token of the list.
void set_keys(Chain& c, const std::vector<int32_t>& tokens, float value) {
  for (const int32_t t : tokens)
    for (int32_t x = 0; x < c.dim; ++x) c.key(0, t, x) = value;
}

std::vector<int32_t> every_token(int32_t n) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("A chain evicts what the rule evicts, for every rule and budget", "[device][kernel]") {
  const bool two_planes = GENERATE(true, false);
  std::vector<Chain> chains;
  for (const int32_t heads : {1, 3})
    for (const double carry : {1.0, 0.0})
      for (const int32_t sinks : {0, 4})
        for (const int32_t budget : {5, 17, 64})
          for (const int32_t recent : {0, 1, budget / 2}) {
            if (sinks + recent >= budget) continue;
            Chain c;
            c.heads = c.group = heads, c.two_planes = two_planes;
            c.rule = {carry, heads == 3 && sinks == 0 ? 1.0 / 3 : 1.0, sinks, recent, budget};
            c.first = 70, c.tokens = 70 + 53;
            c.draw(uint32_t(chains.size() * 10 + 1), budget);
            chains.push_back(c);
          }
  CHECK(compare(chains, run(chains)).evictions == 64 * 53);
}

TEST_CASE("A chain that holds less than its budget fills it first", "[device][kernel]") {
  std::vector<Chain> chains;
  int32_t evictions = 0;
  for (const int32_t count : {1, 2, 13, 19}) {
    for (const int32_t steps : {1, 9, 16, 17, 32, 50}) {
      Chain c = small(uint32_t(100 + chains.size()), steps);
      c.draw(uint32_t(200 + chains.size()), std::max(count, 2));
      if (count == 1) c.held.resize(1), c.scores.resize(1);
      chains.push_back(c);
      evictions += std::max(0, steps - (c.rule.budget - count));
    }
  }
  CHECK(compare(chains, run(chains)).evictions == evictions);
}

TEST_CASE("A chain knows sink logits, soft caps and queries that begin before it", "[device][kernel]") {
  std::vector<Chain> chains;
  for (const float cap : {0.0f, 2.0f, 30.0f})
    for (const bool sinks : {false, true})
      for (const int32_t row_before : {0, 5}) {
        Chain c = small(uint32_t(300 + chains.size()));
        c.softcap = cap, c.row_before = row_before;
        if (sinks) c.sink_logits = {-1.5f, 2, 6};
        c.size = 3, c.draw(uint32_t(300 + chains.size()), 20);
        chains.push_back(c);
      }
  compare(chains, run(chains));
  // A sink far above every key takes all but 2^-50 or so of the probability.
  for (Chain& c : chains) c.sink_logits = {40, 45, 50}, c.rule.carry = 0;
  compare(chains, run(chains));
}

TEST_CASE("Rows of any width are padded with zeros", "[device][kernel]") {
  const auto of = [](int32_t width, int32_t dim, bool two_planes) {
    Chain c = small(1);
    c.width = width, c.dim = dim, c.two_planes = two_planes, c.scale = 1 / std::sqrt(float(dim));
    c.draw(uint32_t(400 + dim), 20);
    return std::vector<Chain>{c};
  };
  const auto check = [](const std::vector<Chain>& chains) { compare(chains, run(chains)); };
  check(of(64, 48, true));
  check(of(64, 48, false));
  check(of(128, 128, true));
  check(of(128, 80, false));
  check(of(256, 200, true));
  check(of(256, 256, false));
}

TEST_CASE("A chain takes any number of query heads and of kv heads", "[device][kernel]") {
  std::vector<Chain> chains;
  for (const auto& [heads, group] : {std::pair{2, 1}, {6, 3}, {5, 5}, {8, 8}, {14, 7}, {35, 35}}) {
    Chain c = small(1, 20);
    c.heads = heads, c.group = group;
    c.draw(uint32_t(500 + heads), 18);
    chains.push_back(c);
  }
  compare(chains, run(chains));
}

namespace {

std::vector<Chain> chains_of(std::initializer_list<int32_t> budgets) {
  std::vector<Chain> chains;
  for (const int32_t budget : budgets) {
    Chain c;
    c.rule = {1, 1, 4, budget / 2, budget};
    c.first = budget + 100, c.tokens = c.first + 40;
    c.draw(uint32_t(600 + budget), budget - 3);
    chains.push_back(c);
  }
  return chains;
}

// With what a launch may meet.
std::vector<Chain> mixed_chains() {
  std::vector<Chain> chains;
  for (uint32_t i = 0; i < 4; ++i) chains.push_back(small(700 + i, 33));
  chains[1].heads = chains[1].group = 1, chains[1].draw(700, 20);
  chains[2].rule = {0, 0.25, 0, 1, 7}, chains[2].first = 50, chains[2].tokens = 91, chains[2].size = 4,
  chains[2].draw(701, 7);
  chains[3].sink_logits = {1, 2, 3};
  return chains;
}

}  // namespace

TEST_CASE("A cache may be larger than what a block's threads take at once", "[device][kernel]") {
  const std::vector<Chain> chains = chains_of({113, 240, 400, 900, 1300});
  const auto runtime = runtime_under_test();
  const auto bytes = [](const Chain& c) {
    return score_chain_shared_bytes(c.width, c.grade(), c.heads, c.rule.budget, false);
  };
  CHECK(bytes(chains[4]) > runtime->most_shared_bytes());  // its strip is in scratch
  compare(chains, run(chains));
}

TEST_CASE("The number of threads is no matter of who leaves", "[emulator]") {
  const std::vector<Chain> chains = chains_of({20, 113, 240, 400});
  compare(chains, emulated<ScoreChainKernel<64, 3, 32>>(chains));
  compare(chains, emulated<ScoreChainKernel<64, 3, 96>>(chains));
  compare(chains, emulated<ScoreChainKernel<64, 3, 256>>(chains));
}

TEST_CASE("A strip in scratch and company in a launch change no bit", "[device][kernel]") {
  const std::vector<Chain> chains = mixed_chains();
  const std::vector<Outcome> first = run(chains);
  compare(chains, first);
  CHECK(run(chains) == first);
  CHECK(run(chains, Schedule::forward, Strip::scratch) == first);
  for (size_t i = 0; i < chains.size(); ++i) CHECK(run({chains[i]})[0] == first[i]);
}

TEST_CASE("The order of the threads changes no bit of a chain", "[emulator]") {
  const std::vector<Chain> chains = mixed_chains();
  const std::vector<Outcome> first = run(chains);
  for (const Schedule schedule : kSchedules)
    for (const Strip strip : {Strip::shared_if_it_fits, Strip::scratch})
      CHECK(run(chains, schedule, strip) == first);
}

TEST_CASE("A chain can go on where another launch left it", "[device][kernel]") {
  const Chain whole = small(800, 45);
  for (const int32_t cut : {3, 16, 21}) {
    Chain begin = whole, rest = whole;
    begin.tokens = whole.first + cut, rest.first += cut, rest.row_before = cut;
    begin.q.clear(), begin.k.clear();
    for (int32_t h = 0; h < whole.heads; ++h) {
      const float* const q = whole.q.data() + h * whole.rows() * whole.dim;
      begin.q.insert(begin.q.end(), q, q + cut * whole.dim);
    }
    begin.k.assign(whole.k.begin(), whole.k.begin() + begin.tokens * whole.dim);
    const Outcome half = run({begin})[0];
    rest.held = half.held, rest.scores = half.scores;
    Outcome second = run({rest})[0];
    second.victims.insert(second.victims.begin(), half.victims.begin(), half.victims.end());
    compare({whole}, {second});
  }
}

namespace {

// Some tokens of the prompt have key 1 in a coordinate where all others have 0. Queries are far below 0 there
// until token `turn`, so those tokens are the first to leave; then they are what queries look for.
struct Turn {
  float nats;  // above all others
  int32_t sought, turn;
};
std::vector<Chain> chains_that_turn(const Turn& at) {
  std::vector<Chain> chains;
  for (const double carry : {0.0, 1.0}) {
    Chain c = small(900, 40);
    c.rule.carry = carry, c.rule.sinks = c.rule.recent = 0;
    for (double& s : c.scores) s = 0;
    for (int32_t t = 0; t < c.tokens; ++t) c.key(0, t, 0) = 0;
    for (int32_t i = 0; i < at.sought; ++i) c.key(0, c.held[size_t(19 - i)], 0) = 1;
    for (int32_t h = 0; h < c.heads; ++h)
      for (int32_t t = c.first; t < c.tokens; ++t)
        c.query(h, t, 0) = (t < at.turn ? -20.0f : at.nats) / c.scale;
    chains.push_back(c);
  }
  return chains;
}
constexpr Turn kTurns[] = {{100, 1, 41}, {100, 1, 55}, {100, 3, 44}, {100, 20, 60},
                           {7, 5, 41},   {7, 5, 43},   {7, 5, 46}};

}  // namespace

TEST_CASE("A row whose mass left inside the tile is found anew", "[device][kernel]") {
  for (const Turn& at : kTurns) {
    CAPTURE(at.nats, at.sought, at.turn);
    const std::vector<Chain> chains = chains_that_turn(at);
    compare(chains, run(chains));
  }
}

TEST_CASE("A row that is found anew depends on no order of the threads", "[emulator]") {
  for (const Turn& at : kTurns) {
    CAPTURE(at.nats, at.sought, at.turn);
    const std::vector<Chain> chains = chains_that_turn(at);
    CHECK(run(chains) == run(chains, Schedule::backward, Strip::scratch));
  }
}

TEST_CASE("Of equal scores the largest token leaves", "[device][kernel]") {
  Chain c = small(1000, 24);
  c.rule = {0, 1, 0, 2, 20}, c.first = 64, c.tokens = 88;
  c.draw(1000, 20);
  std::fill(c.q.begin(), c.q.end(), 0.5f);
  set_keys(c, every_token(c.tokens), 0.25f);
  const std::vector<int32_t> weak{c.held[3], c.held[4], c.held[9], c.held[12], c.held[17]};
  set_keys(c, weak, -0.25f);
  Outcome out = run({c})[0];
  std::vector<int32_t> right(weak.rbegin(), weak.rend());
  for (int32_t t = c.first + 5; t < c.tokens; ++t) right.push_back(t - c.rule.recent);  // of equal ones
  CHECK(out.victims == right);

  // The newest may leave at once, and zero and minus zero are equal.
  c.rule.recent = 0;
  set_keys(c, weak, 0.25f);
  out = run({c})[0];
  right = every_token(c.tokens), right.erase(right.begin(), right.begin() + c.first);
  CHECK(out.victims == right);
  c.rule = {1, 0, 0, 1, 20};
  for (size_t i = 0; i < c.scores.size(); ++i) c.scores[i] = i % 2 == 0 ? 0.0 : -0.0;
  out = run({c})[0];
  for (int32_t& t : right) t -= 1;
  CHECK(out.victims == right);
}

TEST_CASE("Scores may be negative", "[device][kernel]") {
  Chain c = small(1100);
  for (size_t i = 0; i < c.scores.size(); ++i) c.scores[i] -= 1.0 + 0.01 * double(i);
  compare({c}, run({c}));
}

TEST_CASE("A chain says why it stopped, and leaves its state as it was", "[device][kernel]") {
  Chain c = small(1200);
  c.two_planes = false;
  const Chain sound = c;
  const Outcome undisturbed = run({sound})[0];
  Outcome out;
  const auto stops = [&](ScoreChainEnd::Why why, int32_t token) {
    out = run({c})[0];
    CHECK(out.end.why == why);
    CHECK(out.end.token == token);
    const int64_t steps = token - c.first;
    CHECK(std::equal(out.victims.begin(), out.victims.begin() + steps, undisturbed.victims.begin()));
    CHECK(std::all_of(out.victims.begin() + steps, out.victims.end(), [](int32_t v) { return v == -1; }));
    CHECK(out.held == c.held);
  };
  c.key(0, 52, 7) = kNaN;  // a token that arrives in the middle of a tile
  stops(ScoreChainEnd::denominator, 52);
  c = sound, c.key(0, c.held[4], 0) = kNaN;
  stops(ScoreChainEnd::denominator, c.first);
  c = sound, c.query(2, 61, 3) = kNaN;
  stops(ScoreChainEnd::denominator, 61);
  c = sound, c.query(0, 45, 3) = kInfinity;
  stops(ScoreChainEnd::denominator, 45);
  c = sound, c.sink_logits = {0, kNaN, 0};
  stops(ScoreChainEnd::denominator, c.first);

  c = sound;  // every logit of a row is minus infinity
  for (int32_t t = 0; t < c.tokens; ++t) c.key(0, t, 5) = -kInfinity;
  for (float& x : c.q) x = std::abs(x) + 1;
  stops(ScoreChainEnd::denominator, c.first);

  c = sound, c.scores[3] = double(kNaN);
  stops(ScoreChainEnd::score, c.first);
  c = sound, c.scores[19] = double(kInfinity);
  stops(ScoreChainEnd::score, c.first);
  c = sound, c.rule.recent = 40, c.rule.sinks = 0, c.held.clear(), c.scores.clear();
  for (int32_t t = c.first - 20; t < c.first; ++t) c.held.push_back(t), c.scores.push_back(1);
  stops(ScoreChainEnd::protection, c.first);
}
