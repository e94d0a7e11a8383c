#include "catalog/make_policy_table.hpp"
#include "support.hpp"

// A policy that breaks a rule which no type enforces fails its cell, with the reason; other cells go on.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Keeps the last tokens, and breaks one rule in one step.
struct RuleBreaker {
  static constexpr MethodInfo info{.name = "whim", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  enum How {
    sound,
    bound,     // holds one token too many
    returned,  // brings an evicted token back
    nothing,   // makes the denominator zero
    infinite,  // makes the denominator infinite
    method     // fails
  };
  static constexpr Hooks hooks{"append evict layout failure_text"};
  int32_t how = 0, at = 50, budget = 0;

  static void declare(auto& d) { d.integer("how", &RuleBreaker::how, {0, 5}, "which"); }
  void resolve(const MethodContext& context) { budget = context.budget.tokens; }
  Layout layout(const MethodContext&) const { return {.weights = true}; }
  static std::string failure_text(int32_t code, int32_t at) {
    return "code " + std::to_string(code) + " at " + std::to_string(at);
  }
  template <class Real>
  void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    if (token.index == at && how == returned)
      cache.push(Token<Real>(token.key, token.value, 0));  // the first evicted token
    cache.push(token);
    if (token.index == at && (how == nothing || how == infinite))
      cache.weigh_rows(team, 0, cache.size(), [&](int32_t) {
        return RowWeights{1, how == nothing ? 0 : double(INFINITY)};
      });
  }
  void evict(const Team auto& team, Cache auto& cache) {
    const int32_t t = cache.token(cache.size() - 1);
    if (t == at && how == method) cache.fail(3, 11);
    keep_ends(team, cache, 0, t == at && how == bound ? budget + 1 : budget);
  }
};

}  // namespace

TEST_CASE("a policy that breaks a rule fails its cell and no other", "[replay]") {
  const Method whim(policy_table<RuleBreaker>());
  const StreamShape s{70, 40, 8, 8, 2};
  std::vector<Cell> cells;
  for (int32_t how = RuleBreaker::sound; how <= RuleBreaker::method; ++how)
    cells.push_back(changed(make_cell("window", 20, s), [&](kvreplay::Variant& v) {
      v.values = MethodValues(whim);
      v.values.set(*whim.parameter("how"), std::to_string(how));
    }));
  const RunResult result = replay(make_stream<float>(s, 54), cells);
  const auto error = [&](RuleBreaker::How how) { return result.cells[size_t(how)].error; };
  using Catch::Matchers::Contains;
  CHECK(result.cells[RuleBreaker::sound].ok);
  for (size_t i = 1; i < cells.size(); ++i) CHECK_FALSE(result.cells[i].ok);
  CHECK_THAT(error(RuleBreaker::bound), Contains("holds 21 tokens, more than its budget of 20"));
  CHECK_THAT(error(RuleBreaker::returned), Contains("brought back a token"));
  CHECK_THAT(error(RuleBreaker::nothing), Contains("denominator at token 50"));
  CHECK_THAT(error(RuleBreaker::infinite), Contains("denominator at token 50"));
  CHECK(error(RuleBreaker::method) == "code 3 at 11");
}
