#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "core/philox.hpp"
#include "methods/parts/walk.hpp"
#include "support.hpp"
#include "theory/walk.hpp"
#include "trace/h5_file.hpp"

// The walks and halvings: by hand, against recorded walks, and in distribution. Seeds are fixed. For a statistical
// bound a comment states the chance that a correct implementation would have missed it.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Tokens = std::vector<int32_t>;
using Doubles = std::vector<double>;

// The bare walk on vectors [n, dim]. Writes signs and probabilities, both 0 from a failure on, and W. Returns the index
// of the vector at which it failed, or -1.
int32_t self_balancing_walk(std::span<const double> vectors, int32_t dim, SelfBalancing rule,
                            std::span<const double> uniforms, std::span<double> signs, std::span<double> probabilities,
                            std::span<double> W) {
  const int32_t n = int32_t(vectors.size()) / dim;
  const auto u = [&](int32_t i) { return vectors.subspan(size_t(i) * size_t(dim), size_t(dim)); };
  for (int32_t i = 0; i < n; ++i) signs[size_t(i)] = probabilities[size_t(i)] = 0;
  for (double& w : W) w = 0;
  return sign_walk(
      n, [&](int32_t i) { return wide_dot(W, u(i)); },
      [&](int32_t i, double y) {
        const double p = rule.chance(y);
        probabilities[size_t(i)] = p < 0 ? 0 : p;
        return rule.sign(y, uniforms[size_t(i)]);
      },
      [&](int32_t i, double sign) {
        signs[size_t(i)] = sign;
        for (size_t c = 0; c < W.size(); ++c) W[c] += sign * u(i)[c];
      });
}

struct Walked {
  Doubles signs, probabilities, W;
  int32_t failed;
};
Walked walk(const Doubles& vectors, int32_t dim, SelfBalancing rule, const Doubles& uniforms) {
  const size_t n = vectors.size() / size_t(dim);
  Walked w{Doubles(n), Doubles(n), Doubles(size_t(dim)), -1};
  w.failed = self_balancing_walk(vectors, dim, rule, uniforms, w.signs, w.probabilities, w.W);
  return w;
}

// n uniforms of one stream of draws.
Doubles draw(uint32_t seed, size_t n) {
  const Rng rng{seed, 99, 0, 0, {}};
  Doubles u(n);
  for (size_t i = 0; i < n; ++i) u[i] = rng.uniform(RngStream::synthetic_traces, int64_t(i));
  return u;
}
// Vectors of length 1 in random directions (Box and Muller).
Doubles unit_vectors(uint32_t seed, size_t n, size_t dim) {
  const Doubles u = draw(seed, 2 * n * dim);
  Doubles x(n * dim);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sqrt(-2 * std::log(1 - u[2 * i])) * std::cos(6.283185307179586 * u[2 * i + 1]);
  for (size_t i = 0; i < n; ++i) {
    double norm2 = 0;
    for (size_t c = 0; c < dim; ++c) norm2 += x[i * dim + c] * x[i * dim + c];
    for (size_t c = 0; c < dim; ++c) x[i * dim + c] /= std::sqrt(norm2);
  }
  return x;
}
double theorem_c(int32_t n) { return theory::walk_constant(n, 0.01); }

// Root mean square of W per coordinate over `runs` walks, for each number of vectors.
using Discrepancy = std::function<double(uint32_t seed, size_t n)>;  // mean square of one run
double slope(const Discrepancy& square, const std::vector<size_t>& sizes, uint32_t first, uint32_t runs) {
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const double count = double(sizes.size());
  for (const size_t n : sizes) {
    double mean = 0;
    for (uint32_t s = 0; s < runs; ++s) mean += square(first + s, n) / runs;
    const double x = std::log(double(n)), y = std::log(mean) / 2;
    sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (count * sxy - sx * sy) / (count * sxx - sx * sx);
}
// Mean of 16 independent slopes and half the width of its interval. t(15) exceeds 5.5 once in 16 000 times.
struct Interval {
  double mean, half;
};
Interval slope_interval(const Discrepancy& square, const std::vector<size_t>& sizes, uint32_t runs) {
  constexpr uint32_t kGroups = 16;
  double sum = 0, squares = 0;
  for (uint32_t g = 0; g < kGroups; ++g) {
    const double x = slope(square, sizes, 1000 * g, runs);
    sum += x, squares += x * x;
  }
  const double mean = sum / kGroups, variance = (squares - kGroups * mean * mean) / (kGroups - 1);
  return {mean, 5.5 * std::sqrt(variance / kGroups)};
}
double mean_square(const Doubles& w) {
  return std::inner_product(w.begin(), w.end(), w.begin(), 0.0) / double(w.size());
}
Discrepancy walk_of(size_t dim, double c, OnFail on_fail = OnFail::fail) {
  return [=](uint32_t seed, size_t n) {
    const Walked w = walk(unit_vectors(seed, n, dim), int32_t(dim), {c, on_fail}, draw(seed + 500000, n));
    REQUIRE(w.failed == -1);
    return mean_square(w.W);
  };
}
Discrepancy coin_of(size_t dim) { return walk_of(dim, 1e9); }
double root_mean_square(const Discrepancy& square, size_t n, uint32_t runs) {
  double mean = 0;
  for (uint32_t s = 0; s < runs; ++s) mean += square(s, n) / runs;
  return std::sqrt(mean);
}

// Chi-square's upper 1e-4 point (Wilson and Hilferty).
double chi_square_limit(double df) {
  const double a = 2 / (9 * df);
  return df * std::pow(1 - a + 3.719 * std::sqrt(a), 3);
}

// A file of uniforms that exists during a test.
class Uniforms {
 public:
  Uniforms(const std::string& name, const Doubles& values, const std::vector<int64_t>& shape)
      : path_(std::filesystem::temp_directory_path() / ("kvreplay-walk-" + std::to_string(::getpid()) + ".h5")) {
    H5Output out(path_);
    out.write(name, values, shape);
    out.close();
  }
  ~Uniforms() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

CellResult run(const StreamShape& s, const std::string& method, int32_t budget, const nlohmann::json& params,
               const std::string& uniforms = {}, uint32_t seed = 0) {
  const Cell cell = changed(make_cell(method, budget, s, params, default_options(method), seed),
                            [&](Variant& v) { v.uniforms = uniforms; });
  return replay(make_stream<double>(s), {cell}).only();
}
Doubles weights(const CellResult& r, const Doubles& of, size_t list = 0) {
  return {of.begin() + r.kept.off.at(list), of.begin() + r.kept.off.at(list + 1)};
}

}  // namespace

// With c = r = 1: p = 1/2, then W = 1 makes p = 0, then W = 0 again.
TEST_CASE("the walk turns back with a probability that grows with the sum", "[walk]") {
  const Walked w = walk({1, 1, 1, 1}, 1, {1}, {.3, 0, .7, .999});
  CHECK(w.probabilities == Doubles{.5, 0, .5, 1});
  CHECK(w.signs == Doubles{1, -1, -1, 1});
  CHECK(w.W == Doubles{0});
  const Walked softer = walk({1, 1, 2}, 1, {4}, {.3, .3, 0});
  CHECK(softer.probabilities == Doubles{.5, .375, .5 - 4.0 / 8});
  CHECK(softer.signs == Doubles{1, 1, -1});
}

TEST_CASE("a walk beyond its bound fails, is clamped or tosses a coin", "[walk]") {
  const Doubles vectors{1, 3, 1}, uniforms{.1, .4, .1};  // y = 0, then 3 > 2, then W is -2 or 4
  const Walked fails = walk(vectors, 1, {2, OnFail::fail}, uniforms);
  CHECK(fails.failed == 1);
  CHECK(fails.signs == Doubles{1, 0, 0});
  CHECK(fails.probabilities == Doubles{.5, 0, 0});
  const Walked clamps = walk(vectors, 1, {2, OnFail::clamp}, uniforms);
  CHECK(clamps.signs == Doubles{1, -1, 1});
  CHECK(clamps.probabilities == Doubles{.5, 0, 1});
  const Walked tosses = walk(vectors, 1, {2, OnFail::coin}, uniforms);
  CHECK(tosses.signs == Doubles{1, 1, 1});
  CHECK(tosses.probabilities == Doubles{.5, .5, .5});
}

TEST_CASE("the bare walk follows the recorded ones to the last sign and probability", "[walk]") {
  const std::filesystem::path file = std::filesystem::path(KVREPLAY_SOURCE_DIR) / "tests/golden/oracle_dev.h5";
  const std::pair<std::string, int32_t> cases[] = {{"L7h0n512", 70}, {"synth256", -1}};
  for (const auto& [name, fails_at] : cases)
    for (const bool theorys : {true, false}) {
      INFO(name << (theorys ? ", the theorem's c" : ", c = 2"));
      const std::string results = "cases/" + name + "/results/";
      std::vector<int64_t> shape, flat;
      const Doubles keys = read_dataset(file, "cases/" + name + "/k", shape);
      const int32_t n = int32_t(shape[1]), d = int32_t(shape[2]);
      double r2 = 0;
      for (int32_t i = 0; i < n; ++i) {
        const std::span<const double> k(keys.data() + int64_t(i) * d, size_t(d));
        r2 = std::max(r2, wide_dot(k, k));
      }
      const Walked w =
          walk(keys, d, {(theorys ? theorem_c(n) : 2) * r2}, read_dataset(file, results + "sbwalk/U", flat));
      const std::string key = results + (theorys ? "sbwalk/" : "sbwalk_c/");
      CHECK(w.failed == (theorys ? -1 : fails_at));
      CHECK(w.signs == read_dataset(file, key + "eps", flat));
      CHECK(relative_difference(w.probabilities, read_dataset(file, key + "p", flat)) < 1e-12);
    }
}

TEST_CASE("with the theorem's c no walk fails, with c = 2 its failure has an index", "[walk]") {
  int32_t failures = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const Doubles vectors = unit_vectors(seed, 1000, 2), u = draw(seed + 7000, 1000);
    CHECK(walk(vectors, 2, {theory::walk_constant(1000, 0)}, u).failed == -1);
    const Walked tight = walk(vectors, 2, {2}, u);
    failures += tight.failed >= 0;
    const auto first = std::find(tight.signs.begin(), tight.signs.end(), 0.0);
    CHECK((tight.failed < 0 ? 1000 : tight.failed) == int32_t(first - tight.signs.begin()));
  }
  CHECK(failures > 50);
}

// The root mean square of 800 unit normals is off by 15 % with probability below 1e-8.
TEST_CASE("the theorem's walk stays near sqrt(c/2) where the coin grows as sqrt(n/d)", "[walk][many]") {
  constexpr size_t kVectors = 1 << 14;
  const double c = theorem_c(kVectors);
  CHECK(c == Approx(429.3).epsilon(1e-3));
  CHECK(root_mean_square(walk_of(2, c), kVectors, 400) == Approx(theory::walk_plateau(c)).epsilon(0.15));
  CHECK(root_mean_square(coin_of(2), kVectors, 400) == Approx(std::sqrt(kVectors / 2)).epsilon(0.15));
}
TEST_CASE("c = 8 is a plateau of 2 in every dimension", "[walk][many]") {
  CHECK(root_mean_square(walk_of(2, 8, OnFail::clamp), 1 << 11, 400) == Approx(2).epsilon(0.15));
  CHECK(root_mean_square(walk_of(8, 8, OnFail::clamp), 1 << 11, 150) == Approx(2).epsilon(0.15));
  CHECK(root_mean_square(walk_of(64, 8, OnFail::clamp), 1 << 12, 20) == Approx(2).epsilon(0.15));
}
TEST_CASE("the walk grows like the coin until c d/2 vectors, and then no more", "[walk][many]") {
  const double c = theorem_c(1 << 14);  // c d/2 = 429
  const Interval coin = slope_interval(coin_of(2), {16, 64, 256, 1024, 4096}, 20);
  const Interval early = slope_interval(walk_of(2, c), {4, 8, 16, 32}, 60);
  const Interval late = slope_interval(walk_of(2, c), {1 << 11, 1 << 12, 1 << 13, 1 << 14}, 20);
  CAPTURE(coin.mean, coin.half, early.mean, early.half, late.mean, late.half);
  CHECK(std::abs(coin.mean - 0.5) < coin.half);
  CHECK(std::abs(early.mean - 0.49) < early.half);  // 0.5 except for the first pull of the walk
  CHECK(std::abs(late.mean) < late.half);
  CHECK(coin.half + late.half < 0.4);
}

// Keys with ||k||^2 scale <= 1/2; the signed sum of exp(scale <q, k_i>) v_i for a query of the same length.
TEST_CASE("SoftmaxBalance's signed sums level off where the coin's grow as sqrt(n)", "[walk][many]") {
  constexpr double kScale = 0.5;
  const auto discrepancy = [](double c) -> Discrepancy {
    return [=](uint32_t seed, size_t n) {
      const Doubles keys = unit_vectors(seed + 1, n + 1, 2), values = unit_vectors(seed + 2, n, 2);
      const Doubles u = draw(seed + 3, n);
      const auto dot = [](const Doubles& x, int32_t i, int32_t j) {
        const size_t a = 2 * size_t(i), b = 2 * size_t(j);
        return x[a] * x[b] + x[a + 1] * x[b + 1];
      };
      Doubles sign(n);
      const SoftmaxKernel kernel{kScale, 1, 1};
      const SelfBalancing rule{c, OnFail::clamp};
      Doubles packed(size_t(PackedRows::doubles(int64_t(n), 2, 2)));
      const auto number = [](const Doubles& x) {
        return [&x](int32_t i, int32_t at) { return x[2 * size_t(i) + size_t(at)]; };
      };
      const PackedRows rows(SerialTeam{}, int32_t(n), 2, 2, packed, number(keys), number(values));
      tile_walk(
          SerialTeam{}, int32_t(n), rows, kernel, [&](int32_t i, double y) { return rule.sign(y, u[size_t(i)]); },
          [&](int32_t i) -> double& { return sign[size_t(i)]; });
      Doubles sum(2);
      for (size_t i = 0; i < n; ++i)
        for (size_t x = 0; x < 2; ++x)
          sum[x] += sign[i] * std::exp(kScale * dot(keys, int32_t(i), int32_t(n))) * values[2 * i + x];
      return mean_square(sum);
    };
  };
  const std::vector<size_t> sizes{64, 128, 256, 512};
  const Interval coin = slope_interval(discrepancy(1e9), sizes, 12),
                 balanced = slope_interval(discrepancy(8), sizes, 12);
  CAPTURE(coin.mean, coin.half, balanced.mean, balanced.half);
  CHECK(std::abs(coin.mean - 0.5) < coin.half);
  CHECK(balanced.mean + balanced.half < coin.mean - coin.half);
  CHECK(balanced.mean + balanced.half < 0.35);
}

TEST_CASE("uniform keeps every middle token equally often, and its weights sum to M", "[walk]") {
  const StreamShape s{.tokens = 50, .prompt = 49, .dim = 2, .v_dim = 2, .heads = 1};
  constexpr int32_t kMiddle = 40, kSampled = 10, kSeeds = 2000;
  std::vector<int> counts(size_t(s.prompt), 0);
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const CellResult r = run(s, "uniform", 19, {{"sinks", 4}, {"recent", 5}}, {}, seed);
    REQUIRE(r.ok);
    for (const int32_t token : kept_list(r, 0)) ++counts[size_t(token)];
    CHECK(std::accumulate(r.num.begin(), r.num.end(), 0.0) == Approx(kMiddle + 4 + 5));
  }
  const double expected = double(kSeeds) * kSampled / kMiddle;
  double chi = 0;
  for (int32_t i = 4; i < 4 + kMiddle; ++i) chi += std::pow(counts[size_t(i)] - expected, 2) / expected;
  chi *= double(kMiddle - 1) / kMiddle / (1 - double(kSampled) / kMiddle);  // corrects for draws without replacement
  CAPTURE(chi);
  CHECK(chi < chi_square_limit(kMiddle - 1));  // false alarm 1e-4
  CHECK(counts[3] == kSeeds);
  CHECK(counts[s.prompt - 5] == kSeeds);
}

TEST_CASE("uniform's tail stays with weight 1 and counts among the m", "[walk]") {
  const StreamShape s{.tokens = 12, .prompt = 11, .heads = 1};
  const Uniforms u("u", {.9, .1, .5, .3, .8, .2, .0, .0}, {8});
  const nlohmann::json ends{{"sinks", 1}, {"recent", 2}};
  nlohmann::json tail = ends;
  tail["tail"] = 2, tail["m"] = 4;
  const CellResult r = run(s, "uniform", 7, tail, u.path());
  CHECK(kept_list(r, 0) == Tokens{0, 2, 6, 7, 8, 9, 10});
  CHECK(r.num == Doubles{1, 3, 3, 1, 1, 1, 1});
  nlohmann::json halved = ends;
  halved["rounds"] = 2, halved["weights"] = "pow2";
  const CellResult paired = run(s, "uniform", 7, halved, u.path());
  CHECK(kept_list(paired, 0) == Tokens{0, 7, 8, 9, 10});
  CHECK(paired.num == Doubles{1, 4, 4, 1, 1});
  CHECK_THROWS_AS(run(s, "uniform", 7, {{"sinks", 1}, {"recent", 2}, {"tail", 5}}), ParameterError);
  CHECK_THROWS_AS(run(s, "uniform", 7, {{"weights", "pow2"}}), ParameterError);
  CHECK_THROWS_AS(run(s, "uniform", 7, {{"variant", "coin"}, {"tail", 1}}), ParameterError);
}

// Blocks of 4: + - + - | + + + -. Minus comes first, so 1 3 7 and then 0.
TEST_CASE("the notebook's sampler sorts coins by block and keeps the first half", "[walk]") {
  const StreamShape s{.tokens = 12, .prompt = 11, .heads = 1};
  const Uniforms u("u", {.9, .9, .1, .9, .9, .1, .1, .9}, {8});
  const CellResult r = run(
      s, "uniform", 7, {{"sinks", 1}, {"recent", 2}, {"rounds", 1}, {"block", 4}, {"variant", "notebook"}}, u.path());
  CHECK(kept_list(r, 0) == Tokens{0, 1, 2, 4, 8, 9, 10});
  CHECK(r.num == Doubles{1, 2, 2, 2, 2, 1, 1});
}

// The second round's coins fall on 1 3 7 0: + + - +, so that 7 and then 1 stay.
TEST_CASE("tokens that the notebook's sampler keeps continue in the order of the signs", "[walk]") {
  const StreamShape s{.tokens = 12, .prompt = 11, .heads = 1};
  const Uniforms u("u", {.9, .9, .1, .9, .9, .1, .1, .9, .9, .1, .9, .1, 0, 0, 0, 0}, {2, 8});
  const CellResult r = run(
      s, "uniform", 7, {{"sinks", 1}, {"recent", 2}, {"rounds", 2}, {"block", 4}, {"variant", "notebook"}}, u.path());
  CHECK(kept_list(r, 0) == Tokens{0, 2, 8, 9, 10});
  CHECK(r.num == Doubles{1, 4, 4, 1, 1});
}

TEST_CASE("BalanceKV's truncation keeps the other sign up to the cut and the exact tail", "[walk]") {
  const StreamShape s{.tokens = 8, .prompt = 7, .heads = 1};
  const nlohmann::json coin{{"sinks", 0}, {"recent", 0}, {"rounds", 1}, {"gamma", 0.0}};
  const auto kept = [&](const Doubles& u, nlohmann::json more = {}) {
    const Uniforms file("U", u, {1, 7});
    nlohmann::json params = coin;
    params.update(more.is_null() ? nlohmann::json::object() : more);
    return run(s, "balancekv", 7, params, file.path());
  };
  // Signs + + - + - - -, h = 3. Both reach 3 by index 5, whose sign is -, so the + before it stay.
  const CellResult balanced = kept({.9, .1, .9, .1, .9, .9, .9});
  CHECK(kept_list(balanced, 0) == Tokens{0, 1, 3});
  CHECK(balanced.num == Doubles{2, 2, 2});
  // Signs + + + - + + +. The - never reach 3, and the cut is index 2 without a - before it, so 3, 4, 5 stay with
  // weight 1.
  const CellResult tail = kept({.9, .1, .1, .9, .1, .1, .1});
  CHECK(kept_list(tail, 0) == Tokens{3, 4, 5});
  CHECK(tail.num == Doubles{1, 1, 1});
  CHECK(tail.den == Doubles{2, 2, 2});
  CHECK(tail.measures.extras.at("tail") == 3);
  CHECK(kept({.9, .1, .1, .9, .1, .1, .1}, {{"den", "w"}}).den.empty() == false);
  CHECK(kept({.9, .1, .1, .9, .1, .1, .1}, {{"den", "w"}}).den == Doubles{1, 1, 1});
}

TEST_CASE("every round of BalanceKV keeps half of the tokens", "[walk]") {
  for (const int32_t prompt : {1, 2, 3, 30, 61, 64})
    for (const char* walk_name : {"reference", "paper"})
      for (const int32_t block : {2, 7, 256}) {
        INFO(prompt << " tokens, " << walk_name << ", block " << block);
        const StreamShape s{.tokens = prompt + 2, .prompt = prompt};
        const bool paper = std::string(walk_name) == "paper";
        const CellResult r = run(s, "balancekv", prompt,
                                 {{"walk", walk_name}, {"block", block}, {"rounds", 2}, {"sinks", 0}, {"recent", 0}});
        REQUIRE(r.ok);
        const auto half = [&](int32_t m) { return paper ? m / block * (block / 2) + m % block / 2 : m / 2; };
        CHECK(int32_t(kept_list(r, 0).size()) == half(half(prompt)));
        for (const double w : r.num) CHECK((w == 4 || (!paper && (w == 1 || w == 2))));
        const CellResult once = run(s, "balancekv", prompt, {{"rounds", 1}, {"sinks", 0}, {"recent", 0}});
        CHECK(std::accumulate(once.num.begin(), once.num.end(), 0.0) <= prompt);
      }
}

TEST_CASE("ends and rounds follow from the budget, and presets set the published values", "[walk]") {
  const StreamShape s{.tokens = 3100, .prompt = 3000};
  const auto resolved = [&](int32_t budget, const nlohmann::json& params) {
    MethodContext context;
    context.budget.tokens = budget, context.prompt_tokens = s.prompt, context.tokens = s.tokens,
    context.shape = {8, 8, 1, 1};
    return resolved_params("balancekv", params, context);
  };
  CHECK(resolved(200, {})["sinks"] == 4);
  CHECK(resolved(200, {})["recent"] == 50);
  CHECK(resolved(1024, {})["recent"] == 256);
  CHECK_THROWS_AS(resolved(200, {{"sinks", 1}}), ParameterError);  // if only one is set, the other is 256
  const auto longbench = resolved(200, {{"preset", "longbench"}});
  CHECK(longbench["sinks"] == 32);
  CHECK(longbench["rounds"] == 2);
  CHECK(longbench["block"] == 128);
  CHECK(longbench["tau"] == 1.0);
  CHECK(resolved(200, {{"c", "theory"}})["c"].get<double>() == Approx(90 * std::log(3100.0)));
  CHECK(resolved(200, {{"c", 0.0}})["c"] == 0.0);
  const StreamShape small;  // 64 tokens: 4 + 58/2^T + 2 <= 9 takes 4 rounds
  CHECK(run(small, "balancekv", 9, {}).measures.extras.at("rounds") == 4);
  CHECK(run(small, "balancekv", 64, {}).measures.extras.at("rounds") == 0);
}

TEST_CASE("MergeAndReduce holds the levels of the set bits of j/t", "[walk]") {
  const StreamShape s{.tokens = 200, .prompt = 50};
  constexpr int32_t kBatch = 8, kLevels = 4;
  const nlohmann::json params{{"batch", kBatch}, {"levels", kLevels}, {"c", 8.0}, {"on_fail", "clamp"}};
  const CellResult r = run(s, "balancekv_stream", 0, params);
  REQUIRE(r.ok);
  for (size_t list = 0; list + 1 < r.kept.off.size(); ++list) {
    const int32_t j = s.prompt + int32_t(list);
    std::vector<int32_t> sizes(kLevels + 1, 0);
    double total = 0;
    for (const double w : weights(r, r.den, list)) {
      if (w == 0) continue;
      ++sizes.at(size_t(std::log2(w)));
      total += w;
    }
    INFO("j = " << j);
    CHECK(sizes[0] == j % kBatch);
    CHECK(total <= j);
    for (int32_t level = 1; level <= kLevels; ++level) {
      const int32_t bits = j / kBatch >> (level - 1);
      const bool occupied = level == kLevels ? bits > 0 : bits % 2 != 0;  // the last level is never emptied
      CHECK((sizes[size_t(level)] > 0) == occupied);
      if (level < kLevels) CHECK(sizes[size_t(level)] <= kBatch);
    }
  }
}

TEST_CASE("MergeAndReduce with a batch of the whole trace is exact attention", "[walk]") {
  for (const Look look : {Look::clustered, Look::zero_rows, Look::huge_norms}) {
    const StreamShape s;
    const auto stream = make_stream<double>(s, 3, look);
    const CellResult r =
        replay(stream, {make_cell("balancekv_stream", {}, s, {{"bucket_erase", look == Look::clustered}})}).only();
    CHECK(*r.measures["rel_err_out_max"] < 1e-10);
    CHECK(*r.measures["peak_kept_tokens"] == s.tokens);
  }
}

TEST_CASE("a failed walk is a failed cell that names the token", "[walk]") {
  const StreamShape s{.tokens = 80, .prompt = 64};
  const CellResult stream = run(s, "balancekv_stream", 0, {{"batch", 8}, {"levels", 3}, {"c", 1e-6}});
  CHECK(!stream.ok);
  CHECK_THAT(stream.error, Catch::Contains("a walk failed at token"));
  const CellResult walked = run(s, "self_balancing_walk", 40, {{"c", 1e-6}});
  CHECK(!walked.ok);
  CHECK_THAT(walked.error, Catch::Contains("set a larger c, or on_fail"));
  const CellResult radius = run(s, "self_balancing_walk", 40, {{"kernel", "k"}, {"r", 0.1}});
  CHECK(!radius.ok);
  CHECK_THAT(radius.error, Catch::Contains("r is below the norm of token"));
  CHECK_THROWS_AS(run(s, "self_balancing_walk", 40, {{"r", 1.0}}), ParameterError);
}

TEST_CASE("buckets of negligible values are erased only from the numerator", "[walk]") {
  const StreamShape s{.tokens = 40, .prompt = 30};
  auto stream = make_stream<double>(s);
  for (int32_t x = 0; x < s.v_dim; ++x) stream.values[size_t(5 * s.v_dim + x)] = 1e-9;
  nlohmann::json params{{"r", 0.1}};
  const CellResult erased = replay(stream, {make_cell("balancekv_stream", {}, s, params)}).only();
  params["bucket_erase"] = false;
  const CellResult held = replay(stream, {make_cell("balancekv_stream", {}, s, params)}).only();
  CHECK(weights(erased, erased.num)[5] == 0);
  CHECK(weights(erased, erased.den)[5] == 1);
  CHECK(held.num.empty() == false);
  CHECK(weights(held, held.num)[5] == 1);
}

TEST_CASE("kernel halving leaves 2^g sqrt(N) tokens that represent the middle", "[walk]") {
  const StreamShape s{.tokens = 310, .prompt = 300};  // M = 290, N = 256
  for (const int32_t g : {0, 1, 2, 4, 6}) {
    INFO("g = " << g);
    const CellResult r = run(s, "kernel_halving", 290, {{"sinks", 4}, {"recent", 6}, {"g", g}});
    REQUIRE(r.ok);
    const int32_t survivors = std::min(256, 16 << g);
    CHECK(int32_t(kept_list(r, 0).size()) == survivors + 10);
    CHECK(weights(r, r.num)[10] == Approx(290.0 / survivors));
  }
  CHECK(params_of(make_cell("kernel_halving", 100, s, {{"sinks", 4}, {"recent", 6}}))["g"] == 2);
  CHECK_THROWS_AS(run(s, "kernel_halving", 20, {{"sinks", 4}, {"recent", 6}}), ParameterError);
}

// At g = 0 and M = 4 each bucket is one pair: {0,1} and {2,3} keep their even tokens unless the coin flips.
TEST_CASE("kernel halving keeps even tokens of first pairs, and a coin takes the others", "[walk]") {
  const StreamShape s{.tokens = 6, .prompt = 5, .heads = 1};
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("kvreplay-kh-" + std::to_string(::getpid()) + ".h5");
  for (const bool flips : {false, true}) {
    H5Output out(file);
    out.write("U", Doubles{.5, 1 - 1e-12}, {1, 2});  // the second pair's threshold is the largest possible
    out.write("UF", Doubles{flips ? .49 : .5}, {1, 1});
    out.close();
    const CellResult r = run(s, "kernel_halving", 4, {{"sinks", 1}, {"recent", 0}}, file.string());
    std::filesystem::remove(file);
    CHECK(kept_list(r, 0) == (flips ? Tokens{0, 2, 4} : Tokens{0, 1, 3}));
    CHECK(r.num == Doubles{1, 2, 2});
  }
}

// Queries are 1 and keys ln w, so the last row's votes are w. h = 3: sink 0, window 6, best of the rest 3. Among the
// others 1 2 4 5 the two with the smallest u stay with weight two.
TEST_CASE("hybrid keeps a scorer's best and a sample of all others", "[walk]") {
  HeadStream<double> stream = make_stream<double>({.tokens = 8, .prompt = 7, .dim = 1, .v_dim = 1, .heads = 1});
  stream.rule.scale = 1;
  std::fill(stream.queries.begin(), stream.queries.end(), 1.0);
  const Doubles w{1, 2, 3, 9, 4, 1, 1, 1};
  for (size_t i = 0; i < w.size(); ++i) stream.keys[i] = std::log(w[i]);
  const Uniforms u("u", {.9, .1, .5, .3}, {4});
  const Cell cell = changed(
      make_cell("hybrid", 5, {8, 7, 1, 1, 1},
                {{"sinks", 1}, {"top_frac", 0.6}, {"scorer", {{"name", "snapkv"}, {"window", 1}, {"kernel", 1}}}},
                default_options("hybrid")),
      [&](Variant& v) { v.uniforms = u.path(); });
  const CellResult r = replay(stream, {cell}).only();
  CHECK(kept_list(r, 0) == Tokens{0, 2, 3, 5, 6});
  CHECK(r.num == Doubles{1, 2, 1, 2, 1});
  CHECK_THROWS_AS(make_cell("hybrid", 5, {8, 7, 1, 1, 1}, {{"sinks", 4}, {"top_frac", 0.6}}), ParameterError);
}
