#include "caches/cache_state.hpp"
#include "catalog/make_policy_table.hpp"
#include "core/step.hpp"
#include "evaluate/row_products.hpp"
#include "methods/h2o/h2o.hpp"
#include "methods/streaming_llm.hpp"
#include "methods/topk_oracle.hpp"
#include "stub_methods.hpp"
#include "support.hpp"

// The two code paths of attend: columns of the shared strip with outputs deferred to the end of a tile, and own dot
// products with immediate outputs.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// A policy with rows that are not tokens: tokens that leave the recent window are averaged into one merged row. A test
// of synthetic rows, not a published method.
struct MergedTail {
  static constexpr MethodInfo info{
      .name = "merged_tail", .title = "", .source = "test", .tier = 3, .memory = "", .deviation = ""};
  static constexpr Hooks hooks{"evict layout"};
  int32_t budget = 0;
  static void declare(auto&) {}
  void resolve(const MethodContext& context) { budget = context.budget.tokens; }
  Layout layout(const MethodContext&) const { return {.weights = true, .own_rows = 1000}; }

  // The two oldest rows become one, at the end of the list: the order of rows has no meaning here.
  void evict(const Team auto& team, Cache auto& cache) {
    using Real = typename std::remove_cvref_t<decltype(cache)>::real;
    while (cache.size() > budget) {
      const Real na = cache.num(0), nb = cache.num(1), a = na / (na + nb), b = nb / (na + nb);
      cache.push_own(
          team, [&](int32_t c) { return a * cache.key(0)[size_t(c)] + b * cache.key(1)[size_t(c)]; },
          [&](int32_t c) { return a * cache.value(0)[size_t(c)] + b * cache.value(1)[size_t(c)]; }, na + nb, na + nb);
      cache.drop(team, 1);
      cache.drop(team, 0);
    }
  }
};

// Attends with the rows' own dot products, and writes outputs immediately.
template <class Real>
struct OwnHeads {
  const HeadStream<Real>& stream;
  Rotation<Real> rotation;
  int32_t token;
  Real* out;  // [heads, v_dim]

  struct Writer {
    Real* out;
    int32_t v_dim;
    void add(const Team auto&, const Cache auto& cache, std::span<const Real> coefficients) const {
      std::fill_n(out, v_dim, Real(0));
      for (int32_t i = 0; i < cache.size(); ++i)
        for (int32_t c = 0; c < v_dim; ++c) out[c] += coefficients[size_t(i)] * cache.value(i)[size_t(c)];
    }
  };
  QueryView<Real> view(int32_t h) const {
    QueryView<Real> v{{stream.query(h, token), size_t(stream.shape.dim)}, stream.rule, rotation, token};
    if (!stream.sink_logits.empty()) v.sink_logit = stream.sink_logits[size_t(h)];
    return v;
  }
  OwnDots<Real> source(int32_t, const QueryView<Real>& v) const { return {v}; }
  StepQueries<Real> queries_of_step() const { return {}; }
  Writer writer(int32_t h) const { return {out + int64_t(h) * stream.shape.v_dim, stream.shape.v_dim}; }
  void opens(const Cache auto&) const {}
  void done(int32_t, Normaliser, const Cache auto&, const uint8_t*) const {}
};

// Outputs of a policy with own dot products: [rows, heads, v_dim].
template <class P, class Real>
std::vector<Real> own_outputs(const HeadStream<Real>& stream, int32_t budget, const CommonOptions& options) {
  MethodContext context;
  context.tokens = stream.tokens, context.prompt_tokens = stream.prompt;
  context.budget = {budget, double(budget)}, context.shape = stream.shape, context.phase = options.phase;
  P policy;
  policy.resolve(context);
  CacheMemory<Real> memory;
  Layout layout;
  if constexpr (HasLayout<P>) layout = policy.layout(context);
  memory.allocate(stream, stream.shape, layout, stream.tokens, false);
  if constexpr (HasState<P>) policy.state = memory.state();
  BasicCache<Real> cache(memory.storage());
  const SerialTeam team;
  cache.clear(team);
  const StepRules rules{options.phase == Phase::stream, false, stream.window, Aggregate::sum};
  std::vector<Real> e(size_t(stream.tokens) + 1), coefficients(e.size());
  std::vector<double> group(e.size()), by_head(e.size() * size_t(stream.shape.heads)),
      log_sums(size_t(stream.shape.heads));
  std::vector<uint8_t> chosen(by_head.size());
  const auto sums = prompt_pass(ExactAttention<Real>(stream), {{ColumnSum{}}, false, -1, {}}).front();
  typename Prompt<Real>::View view{};
  view.keys = stream.keys.data(), view.values = stream.values.data();
  view.column_sums = sums.data();
  view.size = stream.prompt, view.shape = stream.shape;
  Traits traits{.chooses = Chooses<P, Real>};
  if constexpr (P::hooks.has(Hook::traits)) policy.traits(traits);
  const PolicyTable table = policy_table<P>();
  const TableCalls<Real> calls{reinterpret_cast<std::byte*>(&policy), table.host, table.of<Real>(), traits.chooses};
  replay_prompt(team, calls, cache, Prompt<Real>(view), rules, false);
  const size_t d = size_t(stream.shape.dim), dv = size_t(stream.shape.v_dim), step = size_t(stream.shape.heads) * dv;
  std::vector<Real> out(size_t(stream.tokens - stream.prompt) * step);
  for (int32_t t = stream.prompt; t < stream.tokens; ++t) {
    const Token<Real> token({stream.keys.data() + size_t(t) * d, d}, {stream.values.data() + size_t(t) * dv, dv}, t);
    OwnHeads<Real> heads{stream, options.positions == Positions::cache ? stream.rotate() : Rotation<Real>{}, t,
                         out.data() + size_t(t - stream.prompt) * step};
    const StepScratch<Real> scratch{e.data(), coefficients.data(), group.data(), by_head.data(), chosen.data(),
                                    nullptr,  log_sums.data()};
    replay_step(team, calls, cache, token, rules, heads, scratch, true);
  }
  return out;
}

// The largest difference between the engine's outputs and these.
template <class P, class Real>
double engine_against_own_dots(const HeadStream<Real>& stream, int32_t budget, Positions positions) {
  CommonOptions options;
  options.positions = positions;
  options.phase = P::info.default_phase;
  const StreamShape s{stream.tokens, stream.prompt, stream.shape.dim, stream.shape.v_dim, stream.shape.heads};
  const CellResult r =
      replay(stream, {make_cell(stub::method<P>(), budget, s, nlohmann::json::object(), options)}).only();
  REQUIRE(r.ok);
  const std::vector<Real> own = own_outputs<P>(stream, budget, options);
  double worst = 0;
  for (size_t row = 0; row < r.rows.size(); ++row)
    for (int32_t h = 0; h < r.heads; ++h) {
      const auto at = own.begin() + int64_t((row * size_t(r.heads) + size_t(h)) * size_t(r.v_dim));
      worst = std::max(worst, relative_difference(output(r, h, row), {at, at + r.v_dim}));
    }
  return worst;
}

// Does what a row format may do between two steps: changes an exact row and marks it.
template <class Real>
void code_a_row(BasicCache<Real>& cache, int32_t row) {
  if (!cache.coding(row).key_exact()) return;
  const SerialTeam team;
  cache.recode(
      team, row, [&](int32_t b, int32_t c) { return cache.key(row, b)[size_t(c)] * Real(c % 2 == 0 ? 0.5 : 1.25); },
      [&](int32_t b, int32_t c) { return cache.value(row, b)[size_t(c)]; });
  cache.set_coding(row, {0, 0});
}

// Pushes every token into a cache and drops some, tile by tile; every third token has a strip. Returns the largest
// difference between a row's weights and shift and those of its own dot products.
template <class Real>
double products_against_own_dots(const HeadStream<Real>& stream, Real factor, int32_t step, bool codes = false) {
  const SerialTeam team;
  CacheMemory<Real> memory;
  memory.allocate(stream, stream.shape, codes ? Layout{.own_rows = stream.tokens, .coded = true} : Layout{},
                  stream.tokens, false);
  BasicCache<Real> cache(memory.storage());
  cache.clear(team);
  RowProducts<Real> products;
  Workspace<Real> w;
  double worst = 0;
  for (int32_t begin = 0; begin < stream.tokens; begin += step) {
    Tile<Real> tile;
    tile.begin = begin, tile.end = std::min(stream.tokens, begin + step);
    std::vector<int32_t> queries;
    for (int32_t t = begin; t < tile.end; ++t) (t % 3 == 2 ? tile.rows : queries).push_back(t);
    products.open(stream, tile, queries, cache, 0, w);
    for (int32_t t = begin; t < tile.end; ++t) {
      const size_t d = size_t(stream.shape.dim), dv = size_t(stream.shape.v_dim);
      const Token<Real> token({stream.keys.data() + size_t(t) * d, d}, {stream.values.data() + size_t(t) * dv, dv}, t);
      cache.push(token);
      if (t % 3 != 2) products.see(cache);
      for (int32_t h = 0; h < stream.shape.heads && t % 3 != 2; ++h) {
        QueryView<Real> view{{stream.query(h, t), d}, stream.rule, {}, t};
        view.rule.factor = factor;
        view.block = stream.shape.block_of(h);
        if (!stream.sink_logits.empty()) view.sink_logit = stream.sink_logits[size_t(h)];
        std::vector<Real> mine(size_t(cache.size())), own(mine.size());
        const Real a = products.fill(view, h, cache, w, mine), b = OwnDots<Real>{view}.fill(team, cache, own);
        worst = std::max(worst, std::abs(double(a - b)));
        for (size_t i = 0; i < own.size(); ++i) worst = std::max(worst, std::abs(double(mine[i]) - double(own[i])));
      }
      if (t > 20 && t % 4 != 0) cache.drop(team, t * 7 % cache.size());
      if (codes && t % 2 == 0) code_a_row(cache, t * 5 % cache.size());
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("rows without a strip have the weights of own dot products", "[replay]") {
  for (const Look look : {Look::gaussian, Look::sinks, Look::zero_rows})
    for (const int32_t step : {1, 7, 50}) {
      INFO("tiles of " << step);
      const StreamShape s;
      auto wide = make_stream<double>(s, 31, look);
      auto narrow = make_stream<float>(s, 31, look);
      CHECK(products_against_own_dots(wide, 1.0, step) < 1e-12);
      CHECK(products_against_own_dots(narrow, 1.f, step) < 2e-5);
      CHECK(products_against_own_dots(wide, 1.0, step, true) < 1e-12);
      CHECK(products_against_own_dots(wide, 0.7, step) < 1e-12);
      CHECK(products_against_own_dots(wide, 0.0, step) < 1e-12);
      CHECK(products_against_own_dots(layer_of(wide, make_stream<double>(s, 32, look)), 1.0, step) < 1e-12);
      wide.rule.softcap = 1.5, narrow.rule.softcap = 1.5f;
      CHECK(products_against_own_dots(wide, 0.7, step) < 1e-12);
      wide.sink_logits = {9, -1}, narrow.sink_logits = {9, -1};
      CHECK(products_against_own_dots(wide, 1.3, step) < 1e-12);
      CHECK(products_against_own_dots(narrow, 1.3f, step) < 2e-5);
    }
}

TEST_CASE("strip and own dot products give the same outputs", "[replay]") {
  const StreamShape s;
  for (const Look look : {Look::gaussian, Look::sinks, Look::huge_norms}) {
    const auto wide = make_stream<double>(s, 21, look);
    const auto narrow = make_stream<float>(s, 21, look);
    CHECK(engine_against_own_dots<H2o>(wide, 30, Positions::original) < 1e-10);
    CHECK(engine_against_own_dots<H2o>(wide, 30, Positions::cache) < 1e-10);
    CHECK(engine_against_own_dots<StreamingLlm>(wide, 30, Positions::cache) < 1e-10);
    CHECK(engine_against_own_dots<TopkOracle>(wide, 30, Positions::original) < 1e-10);
    CHECK(engine_against_own_dots<MergedTail>(wide, 30, Positions::original) < 1e-10);
    auto special = make_stream<double>(s, 21, look);
    special.window = 25;
    special.sink_logits = {1, -1};
    CHECK(engine_against_own_dots<H2o>(special, 20, Positions::original) < 1e-10);
    CHECK(engine_against_own_dots<StreamingLlm>(narrow, 30, Positions::cache) < 2e-4);  // logits up to 100 in float32
    CHECK(engine_against_own_dots<MergedTail>(narrow, 30, Positions::original) < 2e-4);
  }
}

TEST_CASE("positions inside the cache: rotating only the sinks equals rotating everything", "[replay]") {
  const StreamShape s{.heads = 1};
  const auto stream = make_stream<double>(s, 22);
  CommonOptions options = default_options("streaming_llm");
  const CellResult r = replay(stream, {make_cell("streaming_llm", 20, s, {}, options)}).only();
  const Rotation<double> rotation = stream.rotate();
  for (size_t row = 0; row < r.rows.size(); ++row) {
    const int32_t t = r.rows[row];
    auto tokens = kept_list(r, row);
    tokens.push_back(t);
    // slot j stands at position j, the query at L-1: rotate key j by j - index and the query by L-1-t,
    // which is the same as the key alone by (j - index) - (L-1-t)
    std::vector<double> out(size_t(s.v_dim), 0.0);
    double z = 0;
    for (size_t j = 0; j < tokens.size(); ++j) {
      const int32_t offset = (int32_t(j) - tokens[j]) - (int32_t(tokens.size()) - 1 - t);
      const double* k = stream.keys.data() + size_t(tokens[j]) * size_t(s.dim);
      const double l = rotation.dot({k, size_t(s.dim)}, {stream.query(0, t), size_t(s.dim)}, offset);
      const double e = std::exp(l * stream.rule.scale);
      z += e;
      for (size_t c = 0; c < out.size(); ++c) out[c] += e * stream.values[size_t(tokens[j]) * out.size() + c];
    }
    for (double& x : out) x /= z;
    CHECK(relative_difference(output(r, 0, row), out) < 1e-9);
  }
}

TEST_CASE("a sliding window evicts for every method, and the reference honours it", "[replay]") {
  const StreamShape s;
  auto stream = make_stream<double>(s, 23);
  stream.window = 20;
  for (const char* method : {"exact", "h2o", "snapkv", "topk_oracle"}) {
    INFO(method);
    const CellResult r = replay(stream, {make_cell(method, s.tokens, s, {}, default_options(method))}).only();
    REQUIRE(r.ok);
    for (size_t row = 0; row < r.rows.size(); ++row) {
      std::vector<int32_t> tokens;
      for (int32_t i = std::max(0, r.rows[row] - 19); i <= r.rows[row]; ++i) tokens.push_back(i);
      CHECK(relative_difference(output(r, 1, row), naive_attention(stream, 1, r.rows[row], tokens)) < 1e-10);
    }
    CHECK(*r.measures["rel_err_out_max"] < 1e-10);
  }
}

TEST_CASE("the reference and every method use the soft cap and sink logits", "[replay]") {
  const StreamShape s;
  auto stream = make_stream<double>(s, 24);
  stream.rule.softcap = 1.5;
  stream.sink_logits = {0.3, 2.0};
  for (const char* method : {"exact", "h2o", "window"}) {
    INFO(method);
    const CellResult r = replay(stream, {make_cell(method, s.tokens, s, {}, default_options(method))}).only();
    REQUIRE(r.ok);
    const int32_t t = r.rows.front();
    std::vector<double> out(size_t(s.v_dim), 0.0);
    double z = std::exp(2.0);
    for (int32_t i = 0; i <= t; ++i) {
      double dot = 0;
      for (int32_t c = 0; c < s.dim; ++c) dot += stream.query(1, t)[c] * stream.keys[size_t(i * s.dim + c)];
      const double e = std::exp(1.5 * std::tanh(dot * stream.rule.scale / 1.5));
      z += e;
      for (size_t c = 0; c < out.size(); ++c) out[c] += e * stream.values[size_t(i) * out.size() + c];
    }
    for (double& x : out) x /= z;
    CHECK(relative_difference(output(r, 1, 0), out) < 1e-10);
    CHECK(*r.measures["rel_err_out_max"] < 1e-10);
  }
}

TEST_CASE("a method that dropped a sink 300 nats above the rest is evaluated with its own maximum", "[replay]") {
  const StreamShape s{.heads = 1};
  auto stream = make_stream<float>(s, 25);
  for (int32_t t = 0; t < s.tokens; ++t) stream.queries[size_t(t * s.dim)] = 30;
  for (int32_t i = 0; i < s.tokens; ++i) stream.keys[size_t(i * s.dim)] = i == 0 ? 60.f : 0.f;
  const CellResult r = replay(stream, {make_cell("window", 16, s)}).only();
  REQUIRE(r.ok);
  for (size_t row = 0; row < r.rows.size(); ++row) {
    auto tokens = kept_list(r, row);
    tokens.push_back(r.rows[row]);
    CHECK(relative_difference(output(r, 0, row), naive_attention(stream, 0, r.rows[row], tokens)) < 1e-5);
  }
}

TEST_CASE("a prompt that is the whole trace leaves no query to score", "[replay]") {
  const StreamShape s{.tokens = 64, .prompt = 64};
  const CellResult r = replay(make_stream<double>(s), {make_cell("h2o", 16, s)}).only();
  CHECK(r.ok);
  CHECK(r.n_queries == 0);
  CHECK_FALSE(r.measures["rel_err_out_mean"].has_value());
  CHECK(kept_list(r, 0).size() == 16);
}
