#include <algorithm>
#include <atomic>
#include <numeric>

#include "core/replay_error.hpp"
#include "hosted/hosted_method.hpp"
#include "support.hpp"

// Hosted methods: the host here is C++ code that copies built-in methods.

using namespace kvreplay;
using namespace kvreplay::test;
using Catch::Contains;

namespace {

const StreamShape kShape{96, 64, 8, 8, 2};
constexpr int32_t kBudget = 24;

struct Answers {
  std::function<void(const HostedPrompt&, const HostedPlace&, std::span<double>)> scores;
  std::function<std::vector<int32_t>(const HostedRows&)> leaving;
};

class Session : public HostedSession {
 public:
  Session(const Answers& answers, HostedPlace place) : answers_(answers), place_(std::move(place)) {}
  void score(const HostedPrompt& prompt, std::span<double> scores) override { answers_.scores(prompt, place_, scores); }
  void start(const HostedPrompt& prompt, std::span<double> scores) override { answers_.scores(prompt, place_, scores); }
  void observe(const HostedRows& rows, std::span<const double> p, int32_t heads) override {
    for (size_t i = 0; i < p.size(); ++i) rows.scores[i % (p.size() / size_t(heads))] += p[i];
  }
  std::vector<int32_t> evict(const HostedRows& rows) override { return answers_.leaving(rows); }

 private:
  const Answers& answers_;
  const HostedPlace place_;
};

class Host : public HostedMethod {
 public:
  Host(bool streaming, Answers answers) : answers_(std::move(answers)) {
    name = "hosted", title = "a copy", source = "this test", identity = "1";
    streams = observes = streaming;
    window = kShape.prompt;
  }
  std::shared_ptr<HostedSession> open(const HostedPlace& place) override {
    ++opened;
    return std::make_shared<Session>(answers_, place);
  }
  std::atomic<int> opened{0};

 private:
  const Answers answers_;
};

// Column sums over all rows of the prompt and all query heads.
void sum_attention(const HostedPrompt& prompt, const HostedPlace&, std::span<double> scores) {
  const auto* p = static_cast<const double*>(prompt.attention.data);
  const int64_t rows = prompt.attention.extents[0] * prompt.attention.extents[1];
  for (int64_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < scores.size(); ++i) scores[i] += p[size_t(r) * scores.size() + i];
}

// Evicts the lowest scores, except among the last half of the budget; among equal scores the later token.
std::vector<int32_t> light_tokens(const HostedRows& rows) {
  std::vector<int32_t> order(rows.tokens.size() - kBudget / 2);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return rows.scores[size_t(a)] > rows.scores[size_t(b)]; });
  std::vector<int32_t> leaving;
  for (size_t i = kBudget / 2; i < order.size(); ++i) leaving.push_back(rows.tokens[size_t(order[i])]);
  return leaving;
}

RunResult run(HostedMethod& host, const std::vector<int32_t>& budgets, const nlohmann::json& params = {{"sinks", 0}},
              RunOptions options = {}) {
  static std::vector<Registry> registries;  // cells refer to them
  Registry& methods = registries.emplace_back();
  add_hosted(methods, host);
  std::vector<Cell> cells;
  for (const int32_t budget : budgets)
    cells.push_back(
        make_cell(methods.back(), budget, kShape, params, values_of(methods.back(), params).default_options()));
  options.save.kept = true;
  return replay(make_stream<double>(kShape), cells, options);
}
std::string failure(HostedMethod& host) { return run(host, {kBudget}).only().error; }

}  // namespace

TEST_CASE("a hosted copy of H2O holds what H2O holds", "[hosted]") {
  Host host(true, {sum_attention, light_tokens});
  RunOptions options;
  options.save.kept = true;
  options.audit = GENERATE(false, true);
  const CellResult copy = run(host, {kBudget}, {{"sinks", 0}}, options).only();
  const CellResult own = replay(make_stream<double>(kShape), {make_cell("h2o", kBudget, kShape)}, options).only();
  REQUIRE(copy.error == "");
  CHECK(copy.kept == own.kept);
  CHECK(copy.measures["rel_err_out_mean"] == own.measures["rel_err_out_mean"]);
  CHECK(copy.measures["total_bytes"] == own.measures["total_bytes"]);
}

TEST_CASE("a hosted scorer is asked once for all budgets, unless it looks at them", "[hosted]") {
  Host host(false, {sum_attention, {}});
  host.sees_budget = GENERATE(false, true);
  const RunResult r = run(host, {8, 16, 24});
  for (const CellResult& cell : r.cells) CHECK(cell.ok);
  CHECK(host.opened == (host.sees_budget ? 3 : 1));
  CHECK(kept_list(r.cells[0], 0).size() == 8);
  CHECK(kept_list(r.cells[2], 0).size() == 24);
}

TEST_CASE("tokens that a host protects stay whatever their scores", "[hosted]") {
  Host host(false, {[](const HostedPrompt&, const HostedPlace&, std::span<double> scores) {
                      for (size_t i = 0; i < scores.size(); ++i) scores[i] = i < 30 && i > 3 ? 1 : 0;
                    },
                    {}});
  host.sinks = 2, host.recent = 3;
  const std::vector<int32_t> kept = kept_list(run(host, {10}, {{"recent", 3}}).only(), 0);
  CHECK(kept == std::vector<int32_t>{0, 1, 4, 5, 6, 7, 8, 61, 62, 63});
}

TEST_CASE("the window whose attention a scorer sees stays, if the scorer asks for it", "[hosted]") {
  Host host(false, {[](const HostedPrompt& prompt, const HostedPlace&, std::span<double> scores) {
                      CHECK(prompt.attention.extents[1] == 5);
                      CHECK(prompt.queries.extents[1] == 5);
                      for (size_t i = 0; i < scores.size(); ++i) scores[i] = -double(i);
                    },
                    {}});
  host.window = 5, host.window_stays = true;
  CHECK(kept_list(run(host, {8}).only(), 0) == std::vector<int32_t>{0, 1, 2, 59, 60, 61, 62, 63});
  host.window_stays = false;
  CHECK(kept_list(run(host, {8}).only(), 0) == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("an error in a host fails its cell and no other", "[hosted]") {
  const auto nothing = [](const HostedPrompt&, const HostedPlace&, std::span<double>) {};
  SECTION("an exception") {
    Host host(false, {[](const HostedPrompt&, const HostedPlace&, std::span<double>) {
                        throw ReplayError("Traceback: it broke");
                      },
                      {}});
    CHECK(failure(host) == "Traceback: it broke");
  }
  SECTION("a NaN score") {
    Host host(false, {[](const HostedPrompt&, const HostedPlace&, std::span<double> s) { s[5] = NAN; }, {}});
    CHECK_THAT(failure(host), Contains("the score of token 5 is not a finite number"));
  }
  SECTION("an evicted token") {
    Host host(true, {nothing, [](const HostedRows& rows) {
                       if (rows.tokens.back() == 63)
                         return std::vector<int32_t>(rows.tokens.begin(), rows.tokens.end() - kBudget);
                       return std::vector<int32_t>{0};
                     }});
    CHECK_THAT(failure(host), Contains("names token 0, which the cache does not hold: it was evicted before"));
  }
  SECTION("a protected token") {
    Host host(true, {nothing, [](const HostedRows& rows) { return std::vector<int32_t>{rows.tokens[0]}; }});
    CHECK_THAT(run(host, {kBudget}, {{"sinks", 1}}).only().error, Contains("names token 0, which sinks protects"));
  }
  SECTION("a recent token") {
    Host host(true, {nothing, [](const HostedRows& rows) { return std::vector<int32_t>{rows.tokens.back()}; }});
    CHECK_THAT(run(host, {kBudget}, {{"recent", 1}}).only().error, Contains("names token 63, which recent protects"));
  }
  SECTION("too few tokens") {
    Host host(true, {nothing, [](const HostedRows&) { return std::vector<int32_t>{}; }});
    CHECK_THAT(failure(host), Contains("more than its budget of 24"));
  }
}

TEST_CASE("initial scores of a policy are charged, even if it observes nothing", "[hosted]") {
  const auto oldest = [](const HostedRows& rows) {
    return std::vector<int32_t>(rows.tokens.begin(), rows.tokens.end() - kBudget);
  };
  const auto aux_bytes = [&](double score) {
    Host host(true, {[score](const HostedPrompt&, const HostedPlace&, std::span<double> s) { s[3] = score; }, oldest});
    host.observes = false;
    return run(host, {kBudget}).only().measures["aux_bytes"].value();
  };
  CHECK(aux_bytes(1) - aux_bytes(0) == 8 * kBudget);
}

TEST_CASE("a host's parameters are swept and reported like any other's", "[hosted]") {
  double seen = 0;
  Host host(false, {[&](const HostedPrompt&, const HostedPlace& place, std::span<double>) {
                      seen = nlohmann::json::parse(place.params).at("decay").get<double>();
                    },
                    {}});
  host.parameters = {{"decay", "how fast", ParameterSpec::Kind::real, 0.5},
                     {"n", "how many", ParameterSpec::Kind::integer, 3}};
  (void)run(host, {8}, {{"decay", 0.25}});
  CHECK(seen == 0.25);
  (void)run(host, {8});
  CHECK(seen == 0.5);
  Registry methods;
  add_hosted(methods, host);
  REQUIRE(methods[0].parameter("n") != nullptr);
  CHECK(methods[0].parameter("n")->default_json == "3");
  CHECK_THROWS_WITH(add_hosted(methods, host), Contains("two methods named hosted"));
}
