#include "caches/cache_state.hpp"
#include "hand_streams.hpp"
#include "methods/clusterkv.hpp"
#include "methods/loki.hpp"
#include "methods/magicpig.hpp"
#include "methods/retroinfer.hpp"
#include "methods/rocketkv.hpp"
#include "methods/shadowkv/shadowkv.hpp"
#include "methods/sparq.hpp"

// Methods that store everything and read a part: which rows they read, and with which weights.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const SerialTeam kTeam;

// A policy that has read the first tokens of a stream as its prompt.
template <class P>
struct Reading {
  CacheMemory<double> memory;
  BasicCache<double> cache;
  P policy;
  const HeadStream<double>& stream;

  Reading(const HeadStream<double>& s, P with, const Rng& rng = {}, int32_t budget = 0) : policy(with), stream(s) {
    MethodContext context;
    context.budget = {budget, double(budget)};
    context.tokens = s.tokens, context.prompt_tokens = s.prompt, context.shape = s.shape;
    context.layer = 1;  // not one of the layers that read everything
    policy.resolve(context);
    memory.allocate(s, s.shape, policy.layout(context), s.tokens, false);
    policy.state = memory.state();
    if constexpr (HasRng<P>) policy.rng = rng;
    cache = BasicCache<double>(memory.storage());
    cache.clear(kTeam);
    cache.push_run(kTeam, 0, s.prompt);
  }
  StepQueries<double> queries(int32_t token) const {
    return {stream.query(0, token),
            int64_t(stream.query_rows) * stream.shape.dim,
            stream.shape.heads,
            stream.shape.dim,
            token,
            token,
            double(stream.rule.scale)};
  }
};

// What a policy reads in the step after its prompt, and with which weights.
struct Reads {
  std::vector<uint8_t> chosen;
  std::vector<double> weights;
  std::vector<int> used() const { return {chosen.begin(), chosen.end()}; }
};
template <class P>
Reads first_step(const HeadStream<double>& s, const P& policy, int32_t budget) {
  Reading<P> r(s, policy, {}, budget);
  typename Prompt<double>::View view{};
  view.size = s.prompt, view.shape = s.shape;
  if constexpr (ReadsPrompt<P, double>) r.policy.read_prompt(kTeam, Prompt<double>(view), r.cache);
  Reads reads{std::vector<uint8_t>(size_t(s.prompt)), std::vector<double>(size_t(s.prompt), 1)};
  const BasicCache<double>& cache = r.cache;
  if constexpr (SamplesByQuery<P, double>)
    r.policy.choose(kTeam, cache, r.queries(s.prompt), reads.chosen.data(), reads.weights.data());
  else r.policy.choose(kTeam, cache, r.queries(s.prompt), reads.chosen.data());
  return reads;
}
// One query head; the prompt has these keys, and the token behind it this query. The scale is 1.
HeadStream<double> stream_of(int32_t dim, std::vector<double> keys, const std::vector<double>& query) {
  const int32_t prompt = int32_t(keys.size()) / dim;
  auto s = make_stream<double>({.tokens = prompt + 1, .prompt = prompt, .dim = dim, .v_dim = 1, .heads = 1});
  keys.resize(keys.size() + size_t(dim), 0);
  s.keys = keys, s.rule.scale = 1;
  s.queries.assign(keys.size(), 0);
  std::copy(query.begin(), query.end(), s.queries.end() - dim);
  return s;
}

MagicPig sampler(int32_t K, int32_t L, int32_t min_tables = 2) {
  MagicPig p;
  p.K = K, p.L = L, p.sinks = 2, p.local = 3, p.min_tables = min_tables;
  return p;
}

// Mean weight of every row over many seeds; a row that was not sampled counts as 0.
std::vector<double> mean_weights(const HeadStream<double>& s, const MagicPig& policy, uint32_t seeds) {
  std::vector<double> mean(size_t(s.prompt), 0);
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    typename Prompt<double>::View view{};
    view.size = s.prompt, view.shape = s.shape;
    Reading<MagicPig> r(s, policy, {seed, 0, 1, 0, {}});
    r.policy.read_prompt(kTeam, Prompt<double>(view), r.cache);
    std::vector<uint8_t> chosen(size_t(s.prompt));
    std::vector<double> weights(size_t(s.prompt));
    r.policy.choose(kTeam, r.cache, r.queries(s.prompt), chosen.data(), weights.data());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += chosen[i] == kRead ? weights[i] / seeds : 0;
  }
  return mean;
}

}  // namespace

// The seeds are fixed. Standard errors are at most 0.03, except for rows that are almost never sampled.
TEST_CASE("MagicPIG's weights make every token of the middle count once on average", "[magicpig]") {
  const auto s = make_stream<double>({.tokens = 41, .prompt = 40, .dim = 6, .v_dim = 2, .heads = 1}, 5);
  for (const int32_t min_tables : {1, 2, 3}) {
    const std::vector<double> mean = mean_weights(s, sampler(2, 12, min_tables), 3000);
    double middle = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      INFO("token " << i << ", " << min_tables << " tables");
      const bool exact = i < 2 || i >= 37;
      if (exact) CHECK(mean[i] == Approx(1).epsilon(1e-12));
      else middle += mean[i] / 35;
      if (!exact && min_tables < 3) CHECK(mean[i] == Approx(1).margin(0.15));
    }
    CHECK(middle == Approx(1).margin(0.02));
  }
}

TEST_CASE("with one sign, two tables and a right angle a token has weight 4 (up to 1e-4)", "[magicpig]") {
  // Keys 1 and -1 have mean 0 and are orthogonal to the query.
  auto s = make_stream<double>({.tokens = 8, .prompt = 7, .dim = 2, .v_dim = 1, .heads = 1});
  s.keys = {0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  s.queries.assign(16, 0);
  s.queries[14] = 1;
  MagicPig policy = sampler(1, 2);
  bool seen = false;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    typename Prompt<double>::View view{};
    view.size = s.prompt, view.shape = s.shape;
    Reading<MagicPig> r(s, policy, {seed, 0, 1, 0, {}});
    r.policy.read_prompt(kTeam, Prompt<double>(view), r.cache);
    uint8_t chosen[7];
    double weights[7];
    r.policy.choose(kTeam, r.cache, r.queries(7), chosen, weights);
    if (chosen[2] != kRead) continue;
    CHECK(weights[2] == Approx(1 / (0.25 + 1e-4)).epsilon(1e-12));
    seen = true;
  }
  CHECK(seen);
}

TEST_CASE("RocketKV's page of (1, 0) and (0, 5) goes before that of (-1, 0) and (2, 0)", "[rocketkv]") {
  auto s = make_stream<double>({.tokens = 5, .prompt = 4, .dim = 4, .v_dim = 1, .heads = 1});
  s.keys = {1, 0, 0, 0, 0, 5, 0, 0, -1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};
  s.queries.assign(20, 0);
  s.queries[16] = 2, s.queries[17] = 1;
  RocketKv policy;
  policy.window = 1, policy.kernel = 1;
  Reading<RocketKv> r(s, policy);
  r.policy.ratio = 4, r.policy.budget = 4;  // pages of 2, two channels, two tokens
  uint8_t chosen[4];
  r.policy.choose(kTeam, r.cache, r.queries(4), chosen);
  CHECK(std::vector<int>(chosen, chosen + 4) == std::vector<int>{kRead, kRead, kUnread, kUnread});
}

TEST_CASE("The full cache is charged once, the data of each query head for each head", "[reads]") {
  const StreamShape shape;
  const auto s = make_stream<double>(shape, 4);
  const auto bytes = [&](const std::string& method, GqaLevel level, const nlohmann::json& params = {}) {
    CommonOptions options = default_options(method);
    options.gqa_level = level;
    const CellResult r = replay(s, {make_cell(method, 24, shape, params, options)}).only();
    REQUIRE(r.ok);
    return std::pair(*r.measures["peak_bytes"], *r.measures["aux_bytes"]);
  };
  const nlohmann::json everywhere{{"dense_layers", nlohmann::json::array()}, {"group_factor", 4}};
  CHECK(bytes("doublesparsity", GqaLevel::query, everywhere) == bytes("doublesparsity", GqaLevel::kv, everywhere));
  CHECK(bytes("doublesparsity", GqaLevel::kv, everywhere).second > 0);
  CHECK(bytes("quest", GqaLevel::query) == bytes("quest", GqaLevel::kv));
  const nlohmann::json cut{{"stage1", 40}};
  CHECK(bytes("rocketkv", GqaLevel::query, cut).first == 2 * bytes("rocketkv", GqaLevel::kv, cut).first);
}

namespace {

using Tokens = std::vector<int32_t>;

// The tokens that each step reads.
std::vector<Tokens> tokens_read(const HeadStream<double>& s, const std::string& method, std::optional<int32_t> budget,
                                const nlohmann::json& params) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  CommonOptions options = default_options(method);
  options.positions = Positions::original;
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options, 3)}).only();
  INFO(r.error);
  REQUIRE(r.ok);
  std::vector<Tokens> all;
  const auto at = [&](size_t i) { return r.attended.flat.begin() + r.attended.off[i]; };
  for (size_t i = 0; i + 1 < r.attended.off.size(); ++i) all.emplace_back(at(i), at(i + 1));
  return all;
}

}  // namespace

// The prompt is tokens 0..7, and a row sees eight tokens. Token 3 has nearly all of the attention until it leaves.
TEST_CASE("PQCache reads the codes of the tokens that a window has left", "[pqcache]") {
  HeadStream<double> s = weighted_stream({1, 1, 1, 900, 1, 1, 1, 1, 1, 1, 1, 1}, 8);
  s.window = 8;
  const nlohmann::json params = {{"subvectors", 1}, {"bits", 1}, {"sinks", 0}, {"recent", 1}};
  // Among equal scores the first token is read.
  CHECK(tokens_read(s, "pqcache", 2, params) == std::vector<Tokens>{{3, 8}, {3, 9}, {3, 10}, {4, 11}});
}

// Hashes decide about each token by itself, so hiding some of them changes nothing for the others.
TEST_CASE("MagicPIG reads the same tokens whichever of them a window hides", "[magicpig]") {
  const StreamShape s{.tokens = 60, .prompt = 40};
  const nlohmann::json params = {{"K", 3}, {"L", 10}, {"local", 8}, {"dense_layers", nlohmann::json::array()}};
  auto stream = make_stream<double>(s, 5);
  std::vector<Tokens> wanted = tokens_read(stream, "magicpig", {}, params);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int32_t t = s.prompt + int32_t(i) % (s.tokens - s.prompt);
    std::erase_if(wanted[i], [&](int32_t token) { return token <= t - s.prompt; });
  }
  stream.window = s.prompt;
  CHECK(tokens_read(stream, "magicpig", {}, params) == wanted);
}

TEST_CASE("Loki reads a token of the main direction instead of one with a larger product", "[loki]") {
  Loki policy;
  policy.r = 1;
  const Reads reads = first_step(stream_of(2, {2, 0, -2, 0, 0, 1, 0, -1}, {1, 5}), policy, 1);
  CHECK(reads.used() == std::vector<int>{kRead, kUnread, kUnread, kUnread});
}

TEST_CASE("SparQ gives what it does not read to the mean value", "[sparq]") {
  SparQ policy;
  policy.r = 1, policy.recent = 1;
  const std::vector<double> keys = {1, 0, 0, 0, 0, 0, 0, 0, .5, 0, 0, 0};
  const Reads reads = first_step(stream_of(4, keys, {3, 1, 0, 0}), policy, 2);
  CHECK(reads.used() == std::vector<int>{kRead, kEstimated, kRead});
  double sum = 0, parts[3];
  const auto part = [&](size_t i) {  // what is not read counts by a logit of its own
    return reads.used()[i] == kRead ? reads.weights[i] * std::exp(3 * keys[4 * i]) : std::exp(reads.weights[i]);
  };
  for (size_t i = 0; i < 3; ++i) sum += parts[i] = part(i);
  CHECK(1 - 3 * parts[1] / sum == Approx(37.6 / 38.6).epsilon(1e-3));
  const double alpha = 1 - 3 * parts[1] / sum, p = std::exp(3.0) / (std::exp(3.0) + std::exp(1.5));
  CHECK(parts[0] / sum == Approx(alpha * p + (1 - alpha) / 3).epsilon(1e-12));
}

TEST_CASE("ClusterKV reads whole clusters and cuts the last one", "[clusterkv]") {
  ClusterKv policy;
  policy.sinks = 0, policy.clusters = 2;
  const Reads reads = first_step(stream_of(2, {1, 0, 0, 1, 0, 1, 1, 0}, {2, 1}), policy, 3);
  CHECK(reads.used() == std::vector<int>{kRead, kRead, kUnread, kRead});
}

TEST_CASE("RetroInfer estimates clusters of equal keys exactly", "[retroinfer]") {
  RetroInfer policy;
  policy.sinks = 1, policy.recent = 1, policy.cluster_size = 2, policy.retrieval = 0, policy.estimation = 1;
  const Reads reads = first_step(stream_of(2, {0, 3, 1, 0, 1, 0, -1, 2, -1, 2, 5, 0}, {2, .5}), policy, 0);
  CHECK(reads.used() == std::vector<int>{kRead, kRead, kRead, kEstimated, kEstimated, kRead});
  // <q, k> of the estimated keys is -1; rows that are read have weight 1.
  CHECK(reads.weights == std::vector<double>{1, 1, 1, reads.weights[3], reads.weights[3], 1});
  CHECK(reads.weights[3] == Approx(-1).epsilon(1e-12));
}

TEST_CASE("ShadowKV always reads the chunk whose keys are unlike their mean", "[shadowkv]") {
  ShadowKv policy;
  policy.chunk = 2, policy.local = 0, policy.outliers = 1, policy.rank = 0;
  const Reads reads = first_step(stream_of(2, {1, 0, 0, 1, 1, 0, 1, .1}, {1, 0}), policy, 1);
  CHECK(reads.used() == std::vector<int>{kRead, kRead, kUnread, kUnread});
}
