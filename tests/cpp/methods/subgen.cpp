#include <algorithm>
#include <set>

#include "caches/cache_state.hpp"
#include "exact/oracle_needs.hpp"
#include "methods/subgen_stream.hpp"
#include "support.hpp"
#include "trace/h5_file.hpp"

// SubGen's Algorithm 1: its state token by token, and the distributions in its lemmas. Statistical tests have fixed
// seeds; the chance that one fails on correct code was below 1e-4 when the seeds were picked.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const SerialTeam kTeam;
constexpr int32_t kSeeds = 3000;

SubGenStream policy_of(double delta, int32_t t, int32_t s, int32_t sinks = 0) {
  SubGenStream p;
  p.delta = delta, p.t = t, p.s = s, p.sinks = sinks;
  return p;
}

// The structures after every token of a stream.
struct Structures {
  CacheMemory<double> memory;
  BasicCache<double> cache;
  SubGenStream policy;
  std::vector<int32_t> clusters;  // after each token
  Structures(const HeadStream<double>& s, SubGenStream p, const Rng& rng) : policy(p) {
    const MethodContext context{{s.tokens, s.prompt}, {}, s.shape, 1, 0, 1, Phase::stream, double(s.rule.scale)};
    policy.resolve(context);
    memory.allocate(s, s.shape, policy.layout(context), s.tokens, false);
    policy.state = memory.state();
    policy.rng = rng;
    cache = BasicCache<double>(memory.storage());
    cache.clear(kTeam);
    const size_t d = size_t(s.shape.dim), dv = size_t(s.shape.v_dim);
    for (int32_t i = 0; i < s.tokens; ++i) {
      policy.append(kTeam, Token<double>({&s.keys[size_t(i) * d], d}, {&s.values[size_t(i) * dv], dv}, i), cache);
      clusters.push_back(policy.clusters(cache));
    }
  }
  int32_t count() const { return policy.clusters(cache); }
  std::vector<int32_t> representatives() const {
    std::vector<int32_t> found;
    for (int32_t i = 0; i < count(); ++i) found.push_back(cache.token(policy.representative(i)));
    return found;
  }
  std::vector<double> counts() const {
    std::vector<double> found;
    for (int32_t i = 0; i < count(); ++i) found.push_back(cache.score(policy.representative(i)));
    return found;
  }
  std::vector<int32_t> samples() const {
    std::vector<int32_t> found;
    for (int32_t i = 0; i < count(); ++i)
      for (int32_t j = 0; j < policy.samples; ++j) found.push_back(cache.token(policy.representative(i) + 1 + j));
    return found;
  }
  std::vector<int32_t> reservoir() const {  // -1: empty
    std::vector<int32_t> found;
    for (int32_t j = 0; j < policy.slots; ++j)
      found.push_back(cache.score(policy.sinks + j) > 0 ? cache.token(policy.sinks + j) : -1);
    return found;
  }
};

double distance(const HeadStream<double>& s, int32_t a, int32_t b) {
  double sum = 0;
  for (int32_t c = 0; c < s.shape.dim; ++c) {
    const double x = s.keys[size_t(a * s.shape.dim + c)] - s.keys[size_t(b * s.shape.dim + c)];
    sum += x * x;
  }
  return std::sqrt(sum);
}
// exp(l) of the last row's query of head 0.
std::vector<double> exponentials(const HeadStream<double>& s) {
  std::vector<double> e;
  for (int32_t i = 0; i < s.tokens; ++i) {
    double l = 0;
    for (int32_t c = 0; c < s.shape.dim; ++c) l += s.query(0, s.tokens - 1)[c] * s.keys[size_t(i * s.shape.dim + c)];
    e.push_back(std::exp(l * double(s.rule.scale)));
  }
  return e;
}
double squared_norm(const HeadStream<double>& s, int32_t i) {
  double w = 0;
  for (int32_t c = 0; c < s.shape.v_dim; ++c) w += std::pow(s.values[size_t(i * s.shape.v_dim + c)], 2);
  return w;
}
CellResult run(const HeadStream<double>& s, const nlohmann::json& params) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  Cell cell = make_cell("subgen_stream", {}, shape, params, default_options("subgen_stream"));
  const CellResult r = replay(s, {cell}).only();
  REQUIRE(r.ok);
  return r;
}

}  // namespace

TEST_CASE("Algorithm 1 reproduces the recorded clusters, samples and reservoir", "[subgen]") {
  const std::string file = std::string(KVREPLAY_SOURCE_DIR) + "/tests/golden/oracle_dev.h5";
  struct Recorded {
    std::string name;
    double delta;
    int32_t t, s;
  };
  for (const Recorded& c : {Recorded{"L7h0n512", 9.727, 8, 64}, Recorded{"synth256", 3.618, 3, 24}}) {
    INFO(c.name);
    std::vector<int64_t> shape;
    const auto of_case = [&](const std::string& name) {
      return read_dataset(file, "cases/" + c.name + "/" + name, shape);
    };
    const auto recorded = [&](const std::string& name) { return of_case("results/subgen_alg1/" + name); };
    HeadStream<double> stream;
    stream.keys = of_case("k");
    stream.tokens = int32_t(shape[1]), stream.shape = {int32_t(shape[2]), int32_t(shape[2]), 1};
    stream.values = of_case("v");
    const auto clusters = recorded("UD"), reservoir = recorded("UM");
    Rng rng;
    rng.injected[0] = {clusters.data(), RngStream::subgen_clusters, stream.tokens, c.t};
    rng.injected[1] = {reservoir.data(), RngStream::subgen_reservoir, stream.tokens, c.s};
    const Structures found(stream, policy_of(c.delta, c.t, c.s), rng);
    const auto same = [](const auto& a, const std::vector<double>& b) {
      return a.size() == b.size() &&
             std::equal(a.begin(), a.end(), b.begin(), [](auto x, double y) { return double(x) == y; });
    };
    CHECK(same(found.clusters, recorded("m")));
    CHECK(same(found.representatives(), recorded("reps")));
    CHECK(same(found.counts(), recorded("counts")));
    CHECK(same(found.samples(), recorded("lists")));
    CHECK(same(found.reservoir(), recorded("M")));
  }
}

// Keys 0, 1, 5, 1.4, 6, 0: 1 and 1.4 are within 2 of 0, 6 within 2 of 5.
TEST_CASE("a key joins the nearest representative within delta or opens a cluster", "[subgen]") {
  auto s = make_stream<double>({.tokens = 6, .prompt = 4, .dim = 1, .v_dim = 1, .heads = 1});
  s.keys = {0, 1, 5, 1.4, 6, 0};
  const Structures found(s, policy_of(2, 3, 2), {});
  CHECK(found.clusters == std::vector<int32_t>{1, 1, 2, 2, 2, 2});
  CHECK(found.representatives() == std::vector<int32_t>{0, 2});
  CHECK(found.counts() == std::vector<double>{4, 2});
  for (int32_t j = 1; j <= 3; ++j) {
    CHECK(found.cache.den(found.policy.representative(0) + j) == Approx(4 / 3.0));
    CHECK(found.cache.den(found.policy.representative(1) + j) == Approx(2 / 3.0));
    CHECK(found.cache.num(found.policy.representative(1) + j) == 0);
  }
}

TEST_CASE("a key at the same distance of two representatives joins the older one", "[subgen]") {
  auto s = make_stream<double>({.tokens = 3, .prompt = 2, .dim = 1, .v_dim = 1, .heads = 1});
  s.keys = {0, 4, 2};
  CHECK(Structures(s, policy_of(2, 1, 1), {}).counts() == std::vector<double>{2, 1});
}

// If all draws are 0, every coin with p > 0 succeeds. If all are just below 1, only coins with p = 1 do.
TEST_CASE("the extreme draws keep the newest tokens, or the first", "[subgen]") {
  auto s = make_stream<double>({.tokens = 20, .prompt = 12, .dim = 2, .v_dim = 2, .heads = 1}, 3);
  s.values[2 * 19] = s.values[2 * 19 + 1] = 0;  // a zero value is never drawn
  std::vector<double> low(20 * 4, 0.0), high(20 * 4, 1 - 0x1p-53);
  const auto rng = [](const std::vector<double>& u) {
    Rng d;
    d.injected[0] = {u.data(), RngStream::subgen_clusters, 20, 4};
    d.injected[1] = {u.data(), RngStream::subgen_reservoir, 20, 4};
    return d;
  };
  const Structures newest(s, policy_of(100, 4, 4), rng(low)), first(s, policy_of(100, 4, 4), rng(high));
  CHECK(newest.samples() == std::vector<int32_t>(4, 19));
  CHECK(newest.reservoir() == std::vector<int32_t>(4, 18));
  CHECK(first.samples() == std::vector<int32_t>(4, 0));
  CHECK(first.reservoir() == std::vector<int32_t>(4, 0));
}

TEST_CASE("clusters and counts do not depend on the draws, and obey delta", "[subgen]") {
  const double delta = 2.5;
  for (const Look look : {Look::gaussian, Look::clustered, Look::duplicates, Look::zero_rows}) {
    const auto s = make_stream<double>({}, 5, look);
    const Structures a(s, policy_of(delta, 3, 5), {}), b(s, policy_of(delta, 3, 5), {.seed = 9});
    CHECK(a.clusters == b.clusters);
    CHECK(a.representatives() == b.representatives());
    CHECK(a.counts() == b.counts());
    CHECK(a.samples() != b.samples());
    double total = 0;
    for (const double n : a.counts()) total += n;
    CHECK(total == s.tokens);
    const auto reps = a.representatives();
    for (size_t i = 0; i < reps.size(); ++i)
      for (size_t j = 0; j < i; ++j) CHECK(distance(s, reps[i], reps[j]) > delta);
    for (int32_t k = 0; k < s.tokens; ++k)
      CHECK(std::any_of(reps.begin(), reps.end(), [&](int32_t r) { return distance(s, k, r) <= delta; }));
  }
}

TEST_CASE("equal keys are one cluster, and so is everything within a huge delta", "[subgen]") {
  auto s = make_stream<double>({}, 6);
  CHECK(Structures(s, policy_of(1e6, 2, 2), {}).count() == 1);
  std::fill(s.keys.begin(), s.keys.end(), 0.0);
  CHECK(Structures(s, policy_of(1e-9, 2, 2), {}).count() == 1);
}

TEST_CASE("with a cluster for each key and one sample the normaliser is exact", "[subgen]") {
  const CellResult r = run(make_stream<double>({}, 7), {{"delta", 0}, {"t", 1}, {"s", 4}});
  CHECK(*r.measures["partition_err_max"] < 1e-12);
  CHECK(r.measures.extras.at("clusters") == 96);
}

TEST_CASE("values that are zero give an output of zero", "[subgen]") {
  auto s = make_stream<double>({}, 8);
  std::fill(s.values.begin(), s.values.end(), 0.0);
  for (const double x : run(s, {{"delta", 3}}).out) CHECK(x == 0);
}

TEST_CASE("sinks are exact and outside both structures", "[subgen]") {
  const auto s = make_stream<double>({}, 9);
  const Structures with(s, policy_of(3, 2, 4, 5), {});
  for (const int32_t token : with.samples()) CHECK(token >= 5);
  for (const int32_t token : with.reservoir()) CHECK(token >= 5);
  for (int32_t i = 0; i < 5; ++i) CHECK((with.cache.token(i) == i && with.cache.num(i) == 1 && with.cache.den(i) == 1));
  CHECK(*run(s, {{"delta", 3}, {"sinks", 96}}).measures["rel_err_out_max"] < 1e-12);
}

TEST_CASE("Algorithm 1 is charged for its keys, its values, its counts and mu", "[subgen]") {
  const StreamShape shape{.tokens = 40, .prompt = 30, .dim = 6, .v_dim = 5, .heads = 1};
  const CellResult r = run(make_stream<double>(shape, 10), {{"delta", 2}, {"t", 3}, {"s", 7}});
  const auto m = int64_t(r.measures.extras.at("clusters"));
  CHECK(m > 3);
  CHECK(*r.measures["peak_kept_tokens"] == double(m * 4 + 7));
  CHECK(*r.measures["peak_bytes"] == double(4 * (m * 4 * 6 + 7 * (6 + 5) + m + 1)));
  CHECK(*r.measures["aux_bytes"] == 0);
}

// Keys 0, 1, 3 have distances 1, 3, 2; the decode token at 3 counts too.
TEST_CASE("delta_rel multiplies the median distance of two keys of the whole trace", "[subgen]") {
  auto s = make_stream<double>({.tokens = 3, .prompt = 2, .dim = 1, .v_dim = 1, .heads = 1});
  s.keys = {0, 1, 3};
  CHECK(median_key_distance(s, {}) == 2);
  const CellResult r = run(s, {{"delta_rel", 0.75}});
  CHECK(r.measures.extras.at("delta") == 1.5);
  CHECK(r.measures.extras.at("clusters") == 2);
}

TEST_CASE("the median over drawn pairs is close to that over all", "[subgen]") {
  const auto s = make_stream<double>({.tokens = 200}, 11);
  std::vector<double> all;
  for (int32_t i = 0; i < 200; ++i)
    for (int32_t j = 0; j < i; ++j) all.push_back(distance(s, i, j));
  std::sort(all.begin(), all.end());
  // With 2000 draws the sample's median has a rank within 0.5 +- 4.5 / sqrt(8000) of the whole.
  CHECK(median_key_distance(s, {}) > all[size_t(0.45 * double(all.size()))]);
  CHECK(median_key_distance(s, {}) < all[size_t(0.55 * double(all.size()))]);
}

// With epsilon 1/2 and delta -> 0: t = ceil(4 ln 100), s = 4 d; the bound holds m (t + 1) + s rows.
TEST_CASE("epsilon gives the sizes of the theory, capped and reported", "[subgen]") {
  const auto s = make_stream<double>({.tokens = 100, .heads = 1}, 12);
  const CellResult r = run(s, {{"delta", 1e-9}, {"epsilon", 0.5}});
  const double t = r.measures.extras.at("t"), m = r.measures.extras.at("clusters");
  CHECK(t == 19);
  CHECK(r.measures.extras.at("s") == 32);
  CHECK_FALSE(*r.measures["bound_capped"]);
  CHECK(std::pow(10, *r.measures["bound_log10_tokens"]) == Approx(m * (t + 1) + 32));
  const CellResult far = run(s, {{"delta", 1e5}, {"epsilon", 0.5}, {"t_max", 5}, {"s_max", 6}});
  CHECK(far.measures.extras.at("t") == 5);
  CHECK(far.measures.extras.at("s") == 6);
  CHECK(*far.measures["bound_capped"]);
  const double expected = (std::log(4 * std::log(100)) + 2e5 * largest_query_norm(s) / std::sqrt(8)) / std::log(10);
  CHECK(*far.measures["bound_log10_tokens"] == Approx(expected));
}

TEST_CASE("over many seeds both estimates have the mean and the variance of the lemmas", "[subgen]") {
  const auto s =
      make_stream<double>({.tokens = 24, .prompt = 8, .dim = 3, .v_dim = 2, .heads = 1}, 13, Look::clustered);
  const int32_t t = 4, slots = 6;
  const double delta = 2;
  const auto e = exponentials(s);
  double Z = 0, mu = 0, e2 = 0, z[2] = {0, 0};
  for (int32_t i = 0; i < s.tokens; ++i) {
    const double x = e[size_t(i)];
    Z += x, e2 += x * x, mu += squared_norm(s, i);
    for (size_t c = 0; c < 2; ++c) z[c] += x * s.values[size_t(i) * 2 + c];
  }
  // Clusters by a plain loop.
  std::vector<std::vector<double>> members;
  std::vector<int32_t> centres;
  for (int32_t i = 0; i < s.tokens; ++i) {
    size_t best = centres.size();
    for (size_t c = 0; c < centres.size(); ++c)
      if (best == centres.size() || distance(s, i, centres[c]) < distance(s, i, centres[best])) best = c;
    if (best == centres.size() || distance(s, i, centres[best]) > delta) {
      best = centres.size();
      centres.push_back(i), members.emplace_back();
    }
    members[best].push_back(e[size_t(i)]);
  }
  REQUIRE(centres.size() > 2);
  const auto variance_of = [&](int i) {
    const std::vector<double>& of = members[size_t(i)];
    double mean = 0, square = 0;
    for (const double x : of) mean += x / double(of.size()), square += x * x / double(of.size());
    return square - mean * mean;
  };
  const double tau_variance = theory::subgen_normaliser_variance(
      int(members.size()), [&](int i) { return members[size_t(i)].size(); }, variance_of, t);
  const double z_variance = theory::subgen_numerator_variance(mu, e2, z[0] * z[0] + z[1] * z[1], slots);

  double tau_mean = 0, tau_square = 0, z_mean[2] = {0, 0}, z_error = 0;
  std::vector<double> drawn(size_t(s.tokens), 0.0);
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const Structures found(s, policy_of(delta, t, slots), {.seed = seed});
    double tau = 0, sum[2] = {0, 0};
    for (int32_t i = 0; i < found.cache.size(); ++i) {
      const auto token = size_t(found.cache.token(i));
      tau += found.cache.den(i) * e[token];
      for (size_t c = 0; c < 2; ++c) sum[c] += found.cache.num(i) * e[token] * s.values[token * 2 + c];
    }
    for (const int32_t token : found.reservoir()) drawn[size_t(token)] += 1;
    tau_mean += tau / kSeeds, tau_square += (tau - Z) * (tau - Z) / kSeeds;
    for (size_t c = 0; c < 2; ++c) {
      z_mean[c] += sum[c] / kSeeds;
      z_error += (sum[c] - z[c]) * (sum[c] - z[c]) / kSeeds;
    }
  }
  CHECK(std::abs(tau_mean - Z) < 4.5 * std::sqrt(tau_variance / kSeeds));
  CHECK(std::abs(tau_mean / Z - 1) < 5e-3);
  CHECK(tau_square == Approx(tau_variance).epsilon(0.1));
  for (size_t c = 0; c < 2; ++c) CHECK(std::abs(z_mean[c] - z[c]) < 4.5 * std::sqrt(z_variance / kSeeds));
  CHECK(z_error == Approx(z_variance).epsilon(0.1));

  // Every slot holds token i with probability ||v_i||^2 / mu: chi-square with 23 degrees of freedom, p > 1e-4.
  double chi_square = 0;
  for (int32_t i = 0; i < s.tokens; ++i) {
    const double expected = kSeeds * slots * squared_norm(s, i) / mu;
    chi_square += std::pow(drawn[size_t(i)] - expected, 2) / expected;
  }
  CHECK(chi_square < 57);
}
