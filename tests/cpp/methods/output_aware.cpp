#include "core/budget_curves.hpp"
#include "exact/output_norms.hpp"
#include "hand_streams.hpp"

// Selections that look at what a token brings to the output, by hand and by what they promise.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

CommonOptions wrapped(const std::string& method, Wrapper::Kind kind, Wrapper::Level level = Wrapper::Level::kv) {
  CommonOptions options = default_options(method);
  options.wrapper.kind = kind, options.wrapper.level = level;
  return options;
}
CellResult run(const HeadStream<double>& s, const std::string& method, int32_t budget, const CommonOptions& options,
               const nlohmann::json& params = nlohmann::json::object()) {
  const StreamShape shape{s.tokens, s.prompt, s.shape.dim, s.shape.v_dim, s.shape.heads};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return r;
}

}  // namespace

TEST_CASE("CAOTE over TOVA drops the token whose loss changes the output least", "[wrapper]") {
  const StreamShape shape{.tokens = 30, .prompt = 20, .dim = 4, .v_dim = 3, .heads = 1};
  const auto s = make_stream<double>(shape, 3, Look::sinks);
  for (const Wrapper::Level level : {Wrapper::Level::kv, Wrapper::Level::query}) {
    const CellResult r = run(s, "tova", 12, wrapped("tova", Wrapper::Kind::caote, level));
    for (int32_t t = s.prompt; t < s.tokens; ++t) {
      std::vector<int32_t> held = kept_list(r, size_t(t - s.prompt));
      held.push_back(t);
      const std::vector<double> output = naive_attention(s, 0, t, held);
      double least = INFINITY;
      int32_t gone = -1;
      for (size_t i = 0; i < held.size(); ++i) {
        std::vector<int32_t> others = held;
        others.erase(others.begin() + int64_t(i));
        const std::vector<double> without = naive_attention(s, 0, t, others);
        double square = 0;
        for (size_t c = 0; c < output.size(); ++c) square += (output[c] - without[c]) * (output[c] - without[c]);
        if (square < least) least = square, gone = held[i];
      }
      std::erase(held, gone);
      CHECK(kept_list(r, size_t(t - s.prompt) + 1) == held);
    }
  }
}

TEST_CASE("CAOTE adds up what it does for each query head, or looks at the group at once", "[wrapper]") {
  const StreamShape shape{.tokens = 60, .prompt = 40, .heads = 3};
  const auto s = make_stream<double>(shape, 9, Look::gaussian);
  const auto kept = [&](Wrapper::Level level) {
    return run(s, "tova", 16, wrapped("tova", Wrapper::Kind::caote, level)).kept.flat;
  };
  const std::vector<int32_t> plain = run(s, "tova", 16, default_options("tova")).kept.flat;
  CHECK(kept(Wrapper::Level::kv) != plain);
  CHECK(kept(Wrapper::Level::query) != plain);
  CHECK(kept(Wrapper::Level::query) != kept(Wrapper::Level::kv));
}

// Scores .4, .3, .2, .1 of one voter; the output projection stretches the last value tenfold.
TEST_CASE("CriticalKV keeps the best score, then the best score times norm", "[wrapper]") {
  auto s = weighted_stream({4, 3, 2, 1, 1e-9, 1}, 5);
  s.values = {1, 1, 1, 10, 1, 1};
  s.output_norms_l1.clear(), s.output_norms_l2.clear();
  add_output_norms(s, std::vector<float>{1});
  const nlohmann::json params{{"window", 1}, {"kernel", 1}};
  const CommonOptions plain = default_options("snapkv"), critical = wrapped("snapkv", Wrapper::Kind::critical);
  CHECK(kept_list(run(s, "snapkv", 4, plain, params), 0) == std::vector<int32_t>{0, 1, 2, 4});
  CHECK(kept_list(run(s, "snapkv", 4, critical, params), 0) == std::vector<int32_t>{0, 1, 3, 4});
  CommonOptions by_output = critical;
  by_output.wrapper.alpha = 0;
  CHECK(kept_list(run(s, "snapkv", 2, by_output, params), 0) == std::vector<int32_t>{3, 4});
}

TEST_CASE("LU-KV: slopes .5, .1, 0 and .35, .35, 0 share three tokens as 1 and 2", "[alloc]") {
  const std::vector<double> a = hull_slopes({.5, .1, 0}), b = hull_slopes({.1, .6, 0});
  CHECK(a == std::vector<double>{.5, .1, 0});
  CHECK(b[0] == Approx(.35));
  CHECK(b[1] == b[0]);
  CHECK(by_slopes({a, b}, {0, 0}, 3) == std::vector<int32_t>{1, 2});
  CHECK(by_slopes({a, b}, {1, 1}, 3) == std::vector<int32_t>{1, 2});
  CHECK(by_slopes({a, a}, {0, 0}, 3) == std::vector<int32_t>{2, 1});  // ties: the lower head
  CHECK(by_slopes({a, b}, {3, 0}, 4) == std::vector<int32_t>{3, 1});
}
