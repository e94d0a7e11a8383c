#include "hosted/hosted_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "catalog/make_policy_table.hpp"
#include "hosted/hosted_method.hpp"

namespace kvreplay {

namespace {

using Kind = ParameterSpec::Kind;

std::byte* slot(Hosted& policy, size_t i) { return policy.values[i]; }

// Declares the engine's parameters, then the host's.
template <class P>
void describe(Describer& to, const void* self) {
  const P& policy = *static_cast<const P*>(self);
  Describe<P> own(to, policy, self);
  P::declare(own);
  const std::vector<HostedMethod::Parameter>& all = policy.host->parameters;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t offset =
        size_t(reinterpret_cast<const std::byte*>(&policy.values[i]) - static_cast<const std::byte*>(self));
    const Range range = all[i].kind == Kind::boolean   ? Range{0, 1}
                        : all[i].kind == Kind::integer ? Range{-kManyTokens, kManyTokens}
                                                       : Range{-1e300, 1e300};
    to.add(all[i].kind, {all[i].name.c_str(), offset, all[i].help.c_str()}, range);
  }
}

void set_default(std::byte* to, const HostedMethod::Parameter& parameter) {
  const auto write = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  if (parameter.kind == Kind::boolean) write(parameter.value != 0);
  else if (parameter.kind == Kind::integer) write(int32_t(parameter.value));
  else write(parameter.value);
}

template <class P>
Method made(HostedMethod& host) {
  PolicyTable table = policy_table<P>();
  table.info.name = host.name.c_str(), table.info.title = host.title.c_str();
  table.info.source = host.source.c_str(), table.info.identity = host.identity.c_str();
  table.describe = describe<P>;
  P policy;
  policy.host = &host;
  policy.sinks = host.sinks, policy.recent = host.recent, policy.window = host.window;
  policy.stored_row_bytes = host.row_bytes;
  for (size_t i = 0; i < host.parameters.size(); ++i) set_default(slot(policy, i), host.parameters[i]);
  std::vector<std::byte> defaults(sizeof policy);
  std::memcpy(defaults.data(), &policy, sizeof policy);
  return Method(std::move(defaults), table);
}

template <class Real>
ShownNumbers shown_rows(const Real* data, int64_t blocks, int64_t rows, int64_t width, int64_t block_stride) {
  return {data, sizeof(Real) == sizeof(double), {blocks, rows, width}, {block_stride, width, 1}};
}

template <class Real>
HostedRows rows_of(BasicCache<Real>& cache) {
  const HeadShape shape = cache.shape();
  HostedRows rows{cache.tokens(),
                  {cache.size() > 0 ? &cache.score(0) : nullptr, size_t(cache.size())},
                  sizeof(Real) == sizeof(double),
                  shape.blocks,
                  shape.dim,
                  shape.v_dim,
                  {},
                  {}};
  const auto copies = [&cache, shape](auto row_of) {
    return [&cache, shape, row_of](void* to) {
      Real* next = static_cast<Real*>(to);
      for (int32_t b = 0; b < shape.blocks; ++b)
        for (int32_t i = 0; i < cache.size(); ++i) {
          const std::span<const Real> numbers = row_of(i, b);
          next = std::copy(numbers.begin(), numbers.end(), next);
        }
    };
  };
  rows.copy_keys = copies([&cache](int32_t i, int32_t b) { return cache.key(i, b); });
  rows.copy_values = copies([&cache](int32_t i, int32_t b) { return cache.value(i, b); });
  return rows;
}

void expect_finite(const HostedMethod& host, std::span<const double> scores) {
  const auto bad = std::find_if(scores.begin(), scores.end(), [](double x) { return !std::isfinite(x); });
  if (bad != scores.end())
    throw ReplayError(host.name + ": the score of token " + std::to_string(bad - scores.begin()) +
                      " is not a finite number");
}

template <class Real>
int32_t row_of(const BasicCache<Real>& cache, int32_t token) {
  const std::span<const int32_t> tokens = cache.tokens();
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  return at != tokens.end() && *at == token ? int32_t(at - tokens.begin()) : -1;
}

}  // namespace

void Hosted::resolve(const MethodContext& context) {
  Selecting::resolve(context);
  prompt = context.prompt_tokens;
  first_row = prompt - seen_rows(context);
}

std::string Hosted::params_json() const {
  JsonObject all;
  all.add("sinks", sinks).add("recent", recent);
  for (size_t i = 0; i < host->parameters.size(); ++i) {
    ParameterSpec spec;
    spec.kind = host->parameters[i].kind;
    all.add_json(host->parameters[i].name, parameter_json(spec, values[i]));
  }
  return all.text();
}

std::shared_ptr<void> Hosted::open_session(const MethodContext& context, int32_t first_head, bool audit) {
  const HostedPlace place{context, rng.seed, rng.prompt, rng.layer, rng.kv_head, first_head, params_json(), audit};
  const auto cache = std::shared_ptr<HostedCache>(new HostedCache{*host, place, nullptr, {}});
  held = cache.get();
  return cache;
}

template <class Real>
HostedPrompt Hosted::shown(const Prompt<Real>& p) const {
  const HeadShape shape = p.shape();
  const int64_t heads = shape.heads, rows = prompt - first_row;
  const auto stride = [&](auto of) { return shape.blocks > 1 ? of(1) - of(0) : int64_t{0}; };
  HostedPrompt shown;
  shown.keys = shown_rows(p.key(0).data(), shape.blocks, p.size(), shape.dim,
                          stride([&](int32_t b) { return p.block(b).key(0).data() - p.key(0).data(); }));
  shown.values = shown_rows(p.value(0).data(), shape.blocks, p.size(), shape.v_dim,
                            stride([&](int32_t b) { return p.block(b).value(0).data() - p.value(0).data(); }));
  if (window > 0) {
    const Real* first = p.query(0, first_row).data();
    const int64_t head = heads > 1 ? p.query(1, first_row).data() - first : 0;
    shown.queries = shown_rows(first, heads, rows, shape.dim, head);
    shown.attention = shown_rows(state.data(), heads, rows, int64_t(prompt), rows * prompt);
  }
  shown.positions = p.positions();
  shown.tokens = p.size(), shown.scale = p.scale();
  return shown;
}

template <class Real>
void HostedScorer::read_prompt(const Team auto&, const Prompt<Real>& p, BasicCache<Real>& cache) {
  std::vector<double>& scores = held->scores;
  if (larger != nullptr && !host->sees_budget) scores = larger->held->scores;
  if (scores.empty()) {
    scores.assign(size_t(p.size()), 0);
    held->session().score(shown(p), scores);
    expect_finite(*host, scores);
  }
  put(scores, cache);
}

template <class Real>
void HostedPolicy::read_prompt(const Team auto&, const Prompt<Real>& p, BasicCache<Real>& cache) {
  std::vector<double> scores(size_t(p.size()), 0);
  held->session().start(shown(p), scores);
  held->remembers = std::any_of(scores.begin(), scores.end(), [](double score) { return score != 0; });
  expect_finite(*host, scores);
  put(scores, cache);
}

void HostedPolicy::observe(const Team auto&, Cache auto& cache, const HeadProbabilities& p) {
  held->session().observe(rows_of(cache), {p.values, size_t(p.heads) * size_t(p.rows)}, p.heads);
}

void HostedPolicy::evict(const Team auto& team, Cache auto& cache) {
  if (cache.size() <= budget) return;
  const std::vector<int32_t> leaving = held->session().evict(rows_of(cache));
  const int32_t safe = cache.token(cache.size() - 1) - recent;
  team.each(cache.size(), [&](int32_t i) { cache.mark(i) = 0; });
  for (const int32_t token : leaving) {
    const int32_t row = row_of(cache, token);
    if (row < 0)
      throw ReplayError(host->name + ": evict() names token " + std::to_string(token) +
                        ", which the cache does not hold" +
                        (token >= 0 && token < cache.token(cache.size() - 1) ? ": it was evicted before" : ""));
    if (token < sinks || token > safe)
      throw ReplayError(host->name + ": evict() names token " + std::to_string(token) + ", which " +
                        (token < sinks ? "sinks" : "recent") + " protects");
    cache.mark(row) = 1;
  }
  cache.retain(team, [&](int32_t i) { return cache.mark(i) == 0; });
}

void add_hosted(Registry& methods, HostedMethod& host) {
  if (find_method(methods, host.name) != nullptr)
    throw ConfigError("there are two methods named " + host.name + ": rename one of them");
  if (host.parameters.size() > size_t(kHostedParameters))
    throw ConfigError(host.name + ": has " + std::to_string(host.parameters.size()) + " parameters, at most " +
                      std::to_string(kHostedParameters) + " are possible");
  methods.push_back(host.streams ? made<HostedPolicy>(host) : made<HostedScorer>(host));
}

// JSON that the engine and a host exchange.

namespace {

using nlohmann::json;
using Kind = ParameterSpec::Kind;

Kind kind_named(const std::string& name) {
  return name == "bool" ? Kind::boolean : name == "int" ? Kind::integer : Kind::real;
}

void take(HostedMethod& method, const json& facts) {
  facts.at("name").get_to(method.name), facts.at("title").get_to(method.title);
  facts.at("source").get_to(method.source), facts.at("identity").get_to(method.identity);
  facts.at("streams").get_to(method.streams), facts.at("observes").get_to(method.observes);
  facts.at("random").get_to(method.random), facts.at("sees_budget").get_to(method.sees_budget);
  facts.at("sinks").get_to(method.sinks), facts.at("recent").get_to(method.recent);
  facts.at("window").get_to(method.window), facts.at("window_stays").get_to(method.window_stays);
  facts.at("row_bytes").get_to(method.row_bytes);
  for (const json& p : facts.at("parameters"))
    method.parameters.push_back({p.at("name"), p.at("help"), kind_named(p.at("kind")), p.at("default")});
}

}  // namespace

void read_description(HostedMethod& method, const std::string& facts) {
  try {
    take(method, json::parse(facts));
  } catch (const json::exception& e) {
    throw ConfigError(std::string("the description of a hosted method cannot be read: ") + e.what());
  }
}

std::string place_json(const HostedPlace& place) {
  const MethodContext& c = place.context;
  return json{{"budget", c.budget.tokens},
              {"prompt_tokens", c.prompt_tokens},
              {"tokens", c.tokens},
              {"layer", c.layer},
              {"n_layers", c.n_layers},
              {"kv_head", place.kv_head},
              {"first_head", place.first_head},
              {"heads", c.shape.heads},
              {"seed", place.seed},
              {"prompt", place.prompt},
              {"audit", place.audit},
              {"params", json::parse(place.params)}}
      .dump();
}

}  // namespace kvreplay
