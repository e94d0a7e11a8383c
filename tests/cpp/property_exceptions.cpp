#include "property_exceptions.hpp"

#include <algorithm>
#include <set>

namespace kvreplay::test {
namespace {

struct Exception {
  const char *property, *method, *why;
};
constexpr Exception kExceptions[] = {
    {"everything fits", "subgen_stream", "its reservoir and its clusters sample whatever the sizes"},
    {"everything fits", "balancekv_stream", "it halves whatever the sizes"},
    {"everything fits", "qjl", "signs of a sketch are a quantised format"},
    {"everything fits", "topp", "reads a share p, whatever the budget"},
    {"everything fits", "fastgen", "its size is an output"},
    {"everything fits", "dms", "its size is an output"},
    {"everything fits", "magicpig", "samples whatever the sizes"},
    {"everything fits", "retroinfer", "reads shares of its clusters, whatever the budget"},
    {"everything fits", "shadowkv", "its keys are of low rank"},
    {"everything fits", "rocketkv", "reads half of its budget"},
    {"everything fits", "vattention", "samples whatever the sizes"},
    {"everything fits", "skip_softmax", "skips tiles whatever the sizes"},
    {"everything fits", "twilight", "reads a share p, whatever the budget"},
    {"within the budget", "rkv", "its buffer is inside the budget only if the prompt exceeds it"},
    {"within the budget", "triattention", "its buffer is inside the budget only if the prompt exceeds it"},
    {"within the budget", "defensivekv", "heads cut together: a head alone waits for the others"},
    {"within the budget", "kvcompose", "heads cut together: a head alone waits for the others"},
    {"within the budget", "random_attention", "its buffer is inside the budget only if the prompt exceeds it"},
    {"within the budget", "vase", "its buffer is inside the budget only if the prompt exceeds it"},
    {"within the budget", "gkv", "its buffer is inside the budget only if the prompt exceeds it"},
    {"fills its budget", "random_attention", "cuts once a buffer"},
    {"fills its budget", "vase", "cuts once a buffer"},
    {"fills its budget", "gkv", "cuts once a buffer"},
    {"within the budget", "self_balancing_walk", "its budget sets the protected ends; the rounds halve the rest"},
    {"within the budget", "buzz", "sizes follow its recursion (methods/stream.cpp)"},
    {"small budgets", "sparse_fixed", "refuses budgets below about 2 sqrt(n)"},
    {"small budgets", "buzz", "its window would be empty"},
    {"small budgets", "scissorhands", "protects ten tokens"},
    {"fills its budget", "sparse_strided", "a pattern grows into its budget"},
    {"fills its budget", "sparse_fixed", "a pattern grows into its budget"},
    {"fills its budget", "defensivekv", "heads cut together: a head alone waits for the others"},
    {"fills its budget", "kvcompose", "heads cut together: a head alone waits for the others"},
    {"fills its budget", "self_balancing_walk", "halves the unprotected tokens"},
    {"fills its budget", "balancekv", "halvings fall short of a budget"},
    {"fills its budget", "kernel_halving", "keeps 2^g sqrt(N) for a power of four N"},
    {"fills its budget", "rkv", "cuts once a buffer"},
    {"fills its budget", "triattention", "cuts once a buffer"},
    {"fills its budget", "buzz", "sizes follow its recursion"},
    {"fills its budget", "scissorhands", "drops several tokens at a time"},
    {"attends to what it kept", "subgen_stream", "a token joins before the step attends: C_t is S_t"},
    {"chunks", "balancekv_stream", "its halving may leave no token of a chunk in the denominator"},
    {"attends to what it kept", "balancekv_stream", "a token joins before the step attends: C_t is S_t"},
    {"attends to what it kept", "qjl", "its keys are sketches"},
    {"attends to what it kept", "wildcat", "its values are sums"},
    {"attends to what it kept", "attention_matching", "its values are fitted"},
    {"streams its prompt", "qfilters", "its filter is found from the queries of the whole prompt"},
    {"streams its prompt", "triattention", "calibrates on the queries of the whole prompt"},
    {"streams its prompt", "rocketkv", "its coarse cut looks at the whole prompt"},
    {"streams its prompt", "magicpig", "hashes the prompt at its end"},
    {"streams its prompt", "pqcache", "clusters the keys of the whole prompt"},
    {"streams its prompt", "doublesparsity", "ranks channels by the whole prompt"},
    {"streams its prompt", "loki", "finds its directions from the keys of the whole prompt"},
    {"streams its prompt", "clusterkv", "clusters the keys of the whole prompt"},
    {"streams its prompt", "retroinfer", "clusters the keys of the whole prompt"},
    {"streams its prompt", "shadowkv", "cuts the whole prompt into chunks"},
    {"streams its prompt", "external", "its lists begin at the end of the prompt"},
    {"protection", "block_eviction", "protects whole pages and refuses other numbers of tokens"},
    {"protection", "chunkkv", "a chunk with protected tokens may be evicted for its mean score"},
    {"equal values", "subgen_stream", "numerator and denominator come from different rows"},
    {"equal values", "balancekv", "den: code counts 2^T where the numerator counts w"},
    {"equal values", "balancekv_stream", "numerator and denominator come from different rows"},
    {"equal values", "qjl", "its values are quantised"},
    {"equal values", "attention_matching", "its values are fitted"},
    {"shift of the keys", "knorm", "norms"},
    {"shift of the keys", "paged_eviction", "norms"},
    {"shift of the keys", "keydiff", "cosines"},
    {"shift of the keys", "dms", "norms"},
    {"shift of the keys", "curdkv", "norms"},
    {"shift of the keys", "expected_attention", "the quadratic form of a key"},
    {"shift of the keys", "capkv", "cosines"},
    {"shift of the keys", "balancekv", "padding zeros enter the mean if a block is not full"},
    {"shift of the keys", "balancekv_stream", "exp(<k, k>)"},
    {"shift of the keys", "self_balancing_walk", "exp(<k, k>)"},
    {"shift of the keys", "kernel_halving", "exp(<k, k>)"},
    {"shift of the keys", "qjl", "norms"},
    {"shift of the keys", "rkv", "cosines"},
    {"shift of the keys", "clusterkv", "cosines"},
    {"shift of the keys", "shadowkv", "cosines"},
    {"shift of the keys", "triattention", "norms"},
    {"shift of the keys", "kvzip", "keys of the repeated prompt are others"},
    {"shift of the keys", "kvzip_plus", "keys of the repeated prompt are others"},
    {"shift of the keys", "doublesparsity", "steps between a label's extremes"},
    {"shift of the keys", "twilight", "steps between a key's extremes"},
    {"shift of the keys", "socket", "signs of projections"},
    {"scale of the values", "capkv", "the identity in A is not scaled"},
    {"scale of the values", "compactor", "a single head's scores are not standardised"},
    {"scale of the values", "balancekv", "c0 is not scaled"},
    {"scale of the values", "balancekv_stream", "buckets of norms move"},
    {"scale of the queries", "noncausal", "its softmax is without the scale"},
    {"scale of the queries", "socket", "a hyperbolic tangent of the query, without the scale"},
    {"scale of the queries", "compactor", "its softmax is without the scale"},
    {"scale of the queries", "pqcache", "its softmax is without the scale"},
    {"scale of the queries", "rocketkv", "its softmax is without the scale"},
    {"scale of the queries", "self_balancing_walk", "the kernel on keys contains the scale"},
    {"scale of the queries", "balancekv_stream", "the kernel on keys contains the scale"},
    {"scale of the queries", "kernel_halving", "the kernel on keys contains the scale"},
    {"scale of the queries", "wildcat", "the kernel on keys contains the scale"},
    {"truncation", "static_oracle", "sees the future"},
    {"truncation", "sparse_strided", "l follows from n"},
    {"truncation", "rocketkv", "its coarse cut follows from n"},
    {"truncation", "sparse_fixed", "l and c follow from n"},
    {"truncation", "self_balancing_walk", "delta follows from n"},
    {"truncation", "balancekv_stream", "levels and delta follow from n"},
    {"ends with its prompt", "sparse_fixed", "its pattern is laid out for all tokens"},
    {"ends with its prompt", "sparse_strided", "its pattern is laid out for all tokens"},
    {"ends with its prompt", "rocketkv", "stage 1 depends on the number of later tokens"},
    {"ends with its prompt", "laq", "looks at rows after the prompt"},
    {"sampled queries", "static_oracle", "its future is the scored rows"},
    {"sampled queries", "laq", "is not measured on the rows that it looks at"},
    {"order of the query heads", "keyformer", "each head draws its own noise"},
    {"order of the query heads", "vattention", "each head draws its own sample"},
    {"identical query heads", "keyformer", "each head draws its own noise"},
    {"identical query heads", "vattention", "each head draws its own sample"},
    {"query heads alone", "vattention", "each head draws its own sample"},
    {"kv heads of a layer", "keyformer", "each head draws its own noise"},
};

}  // namespace

std::vector<std::pair<std::string, std::string>> exception_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Exception& e : kExceptions) names.emplace_back(e.property, e.method);
  return names;
}

std::vector<MethodCase> variants() {
  std::vector<MethodCase> all;
  for (const Method& m : registry())
    for (const Phase phase : {Phase::stream, Phase::oneshot}) {
      if (!(phase == Phase::stream ? m.info.streams : m.info.oneshots)) continue;
      MethodCase v{m.info.name, default_options(m.info.name)};
      v.options.phase = phase;
      all.push_back(v);
    }
  return all;
}

bool excused(const char* property, const MethodCase& v) {
  const std::string wanted = property;
  bool known = false, found = false;
  for (const Exception& e : kExceptions) {
    known = known || e.property == wanted;
    found = found || (e.property == wanted && e.method == v.method);
  }
  REQUIRE(known);
  return found;
}

std::vector<MethodCase> variants_with(const char* property) {
  std::vector<MethodCase> all = variants();
  std::erase_if(all, [&](const MethodCase& v) { return excused(property, v); });
  return all;
}

nlohmann::json params_of(const std::string& method) {
  static const std::map<std::string, nlohmann::json> given = {
      {"balancekv_stream", {{"batch", 8}, {"levels", 3}, {"c", 8.0}, {"on_fail", "clamp"}}},
      {"cake", {{"w", 8}}},
      {"dms", {{"threshold", -2.8}, {"window", 8}}},
      {"doublesparsity", {{"group_factor", 4}, {"dense_layers", nlohmann::json::array()}}},
      {"duo_attention", {{"sinks", 2}, {"recent", 6}}},
      {"clusterkv", {{"sinks", 2}, {"clusters", 5}, {"update", 4}, {"update_clusters", 2}}},
      {"retroinfer", {{"sinks", 2}, {"recent", 5}, {"cluster_size", 3}, {"retrieval", 0.2}, {"estimation", 0.4}}},
      {"shadowkv", {{"chunk", 4}, {"local", 1}, {"outliers", 1}, {"rank", 3}}},
      {"sparq", {{"r", 2}}},
      {"magicpig", {{"K", 3}, {"L", 10}, {"local", 8}, {"dense_layers", nlohmann::json::array()}}},
      {"pqcache", {{"sinks", 2}, {"bits", 2}, {"recent", 7}}},
      {"rkv", {{"buffer", 4}, {"buffer_in_budget", true}, {"window", 3}}},
      {"random_attention", {{"buffer", 4}, {"buffer_in_budget", true}, {"recent", 2}, {"keep_prompt", false}}},
      {"vase", {{"buffer", 4}, {"buffer_in_budget", true}, {"recent", 3}, {"sinks", 1}}},
      {"gkv", {{"buffer", 4}, {"buffer_in_budget", true}, {"window", 3}}},
      {"paged_eviction", {{"page", 4}}},
      {"block_eviction", {{"page", 2}, {"sinks", 2}, {"recent", 2}}},
      {"rocketkv", {{"window", 4}, {"kernel", 5}}},
      {"triattention", {{"buffer", 4}, {"buffer_in_budget", true}}},
      {"defensivekv", {{"window", 4}}},
      {"lava", {{"window", 4}}},
      {"simlayerkv", {{"sinks", 2}, {"recent", 6}}},
      {"compactor", {{"sinks", 2}, {"recent", 2}, {"chunk", 24}}},
      {"hybrid", {{"sinks", 1}, {"scorer", {{"name", "snapkv"}, {"window", 2}}}}},
      {"kernel_halving", {{"sinks", 0}, {"recent", 2}}},
      {"keyformer", {{"gen_len", 32}}},
      {"lagkv", {{"lag", 16}}},
      {"qfilters", {{"recent", 4}}},
      {"qjl", {{"outliers", 1}, {"group", 4}, {"buffer", 16}}},
      {"quest", {{"dense_layers", nlohmann::json::array()}}},
      {"block_mean", {{"block", 2}, {"sinks", 2}, {"recent", 3}}},
      {"block_max", {{"block", 2}, {"sinks", 2}, {"recent", 3}}},
      {"twilight", {{"page", 4}, {"dense_layers", nlohmann::json::array()}}},
      {"vattention", {{"sinks", 2}, {"local", 4}, {"top", 4}}},
      {"skip_softmax", {{"lambda", 0.05}, {"tile", 8}}},
      {"socket", {{"K", 3}, {"L", 10}, {"sinks", 2}, {"recent", 4}}},
      {"subgen_stream", {{"delta", 2.0}}},
      {"wildcat", {{"sinks", 2}, {"recent", 4}}},
  };
  const auto found = given.find(method);
  return found == given.end() ? nlohmann::json::object() : found->second;
}

Cell cell_of(const MethodCase& v, int32_t budget, const StreamShape& s) {
  return make_cell(v.method, budget, s, params_of(v.method), v.options);
}

bool has_parameter(const MethodCase& v, const std::string& name) {
  return std::any_of(v.entry().parameters.begin(), v.entry().parameters.end(),
                     [&](const ParameterSpec& p) { return p.name == name; });
}

}  // namespace kvreplay::test

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("every exception names a known property and a method, once", "[properties]") {
  const std::set<std::string> properties = {"everything fits",       "within the budget",
                                            "small budgets",         "fills its budget",
                                            "streams its prompt",    "attends to what it kept",
                                            "equal values",          "protection",
                                            "shift of the keys",     "scale of the values",
                                            "scale of the queries",  "truncation",
                                            "sampled queries",       "order of the query heads",
                                            "identical query heads", "kv heads of a layer",
                                            "ends with its prompt",  "chunks",
                                            "query heads alone"};
  std::set<std::pair<std::string, std::string>> seen;
  for (const auto& [property, method] : exception_names()) {
    INFO(property << ": " << method);
    CHECK(properties.count(property) == 1);
    CHECK(find_method(registry(), method) != nullptr);
    CHECK(seen.emplace(property, method).second);
  }
}
