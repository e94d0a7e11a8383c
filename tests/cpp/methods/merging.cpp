#include <numeric>

#include "config/common_options.hpp"
#include "hand_streams.hpp"
#include "property_exceptions.hpp"

// Merging of evicted rows: by hand, and its properties with every method that evicts.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

CommonOptions merging(const MethodCase& v, Merge::Rule rule, Merge::Mass mass = Merge::Mass::none) {
  CommonOptions options = v.options;
  options.merge.rule = rule, options.merge.mass = mass;
  if (options.merge.changes_keys()) options.positions = Positions::original;
  return options;
}
bool may_merge(const MethodCase& v, const CommonOptions& options) {
  return merge_problem({values_of(v.entry(), params_of(v.method)), options, {}, {}}).empty();
}

// The output of the last row of a stream of equal keys, if `method` holds `budget` tokens.
double output_of_last_row(const std::string& method, const std::vector<double>& values, int32_t prompt, int32_t budget,
                          const CommonOptions& options, const nlohmann::json& params = nlohmann::json::object()) {
  auto s = stream_of_keys(std::vector<double>(values.size(), 0.5), prompt);
  s.values = values;
  const StreamShape shape{s.tokens, s.prompt, 1, 1, 1};
  const CellResult r = replay(s, {make_cell(method, budget, shape, params, options)}).only();
  REQUIRE(r.ok);
  return output(r, 0, r.rows.size() - 1).at(0);
}
CommonOptions once(Merge::Rule rule, Merge::Mass mass = Merge::Mass::none) {
  CommonOptions options = default_options("window");
  options.phase = Phase::oneshot;
  options.merge.rule = rule, options.merge.mass = mass;
  return options;
}

}  // namespace

// Tokens 1 and 2 of three stay; the last row attends equally to them and itself.
TEST_CASE("Each rule merges an evicted value as its paper says", "[merge]") {
  const std::vector<double> values = {9, 3, 6, 0};
  const auto read = [&](Merge::Rule rule, Merge::Mass mass = Merge::Mass::none) {
    return output_of_last_row("window", values, 3, 2, once(rule, mass));
  };
  CHECK(read(Merge::Rule::none) == Approx((3 + 6 + 0) / 3.0));
  // Attention of the prompt's rows is 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3, so the coin cannot change the result.
  CHECK(read(Merge::Rule::cam) == Approx((3 + 4.5 + 6 + 4.5 + 0) / 3));
  CHECK(read(Merge::Rule::pivot) == Approx(((3 + (9 + 3) / 2.0) / 2 + 6 + 0) / 3));
  CHECK(read(Merge::Rule::d2o) == Approx((6 + 6 + 0) / 3.0));  // equal keys: e and e
  const double own = (11 / 6.0) / 3, next = (5 / 6.0) / 2;     // attention per row
  CHECK(read(Merge::Rule::weighted_v) == Approx(((own * 9 + next * 3) / (own + next) + 6 + 0) / 3));
  CHECK(read(Merge::Rule::gaussian) == Approx((9 + 3 + 6 + 0) / 4.0));                  // an additional row
  CHECK(read(Merge::Rule::value_blend) == Approx(((3 + .75 * 9) / 1.75 + 6 + 0) / 3));  // 9 / (9 + 3)
  for (const Merge::Rule rule :
       {Merge::Rule::cam, Merge::Rule::pivot, Merge::Rule::d2o, Merge::Rule::weighted_v, Merge::Rule::value_blend})
    CHECK(read(rule, Merge::Mass::keep) == Approx((9 + 3 + 6 + 0) / 4.0));
}

TEST_CASE("D2O's released code adds the merged values and divides by their number plus one", "[merge]") {
  CommonOptions options = once(Merge::Rule::d2o);
  options.merge.release = true;
  CHECK(output_of_last_row("window", {9, 3, 6, 0}, 3, 2, options) == Approx(((3 + 9) / 2.0 + 6 + 0) / 3));
}

// The last token of the prompt stays. Cosines with its key are .5 and 1, so the weights are .5 * 3 / (3 + 1) and
// 5 / (5 + 1). The last row attends equally to it and to itself, whose value is 0.
TEST_CASE("value_blend adds values by cosine and by their share of both norms", "[merge]") {
  HeadStream<double> s = make_stream<double>({.tokens = 4, .prompt = 3, .dim = 2, .v_dim = 1, .heads = 1});
  std::fill(s.queries.begin(), s.queries.end(), 0.0);
  s.keys = {1, 0, .5, std::sqrt(.75), .5, std::sqrt(.75), 0, 1};
  s.values = {3, 5, 1, 0};
  const auto read = [&](double threshold, double fraction) {
    CommonOptions options = once(Merge::Rule::value_blend);
    options.merge.threshold = threshold, options.merge.fraction = fraction;
    const CellResult r = replay(s, {make_cell("window", 1, {4, 3, 2, 1, 1}, {}, options)}).only();
    REQUIRE(r.ok);
    return 2 * output(r, 0, 0).at(0);
  };
  const double a = .375, b = 5 / 6.0, least = 1e-5;
  CHECK(read(0, 1) == Approx((1 + a * 3 + b * 5) / (1 + a + b)).epsilon(least));
  CHECK(read(.6, 1) == Approx((1 + b * 5) / (1 + b)).epsilon(least));
  CHECK(read(0, .5) == Approx((1 + b * 5) / (1 + b)).epsilon(least));  // the quantile is .75
  s.values[1] = s.values[2] = 1;
  s.keys[2] = 0, s.keys[3] = -1;  // a cosine below 0 blends with weight 0
  CHECK(read(-1, 1) == Approx((1 + a * 3) / (1 + a)).epsilon(least));
  CHECK((1 + a * 3) / (1 + a) == Approx(1.5455).epsilon(1e-4));
}

TEST_CASE("CaM distributes a value only over the next kept tokens", "[merge]") {
  CommonOptions options = once(Merge::Rule::cam, Merge::Mass::keep);
  options.merge.next = 1;
  auto s = weighted_stream({1, 1, 1, 1}, 3);
  s.values = {8, 2, 6, 0};
  const StreamShape shape{s.tokens, s.prompt, 1, 1, 1};
  const CellResult r = replay(s, {make_cell("window", 2, shape, {}, options)}).only();
  REQUIRE(r.ok);
  CHECK(kept_list(r, 0) == std::vector<int32_t>{1, 2});
  CHECK(std::vector<double>(r.num.begin(), r.num.begin() + 2) == std::vector<double>{2, 1});
  CHECK(output(r, 0, 0).at(0) == Approx((2 * 5 + 6 + 0) / 4.0));
}

// The audit turns evicted tokens into NaN, so a merge cannot read them after their cut.
TEST_CASE("Merging equal keys with their mass has no error, whichever method evicts them", "[merge][properties]") {
  StreamShape shape;
  auto s = make_stream<double>(shape, 5);
  for (size_t i = 0; i < s.keys.size(); ++i) s.keys[i] = s.keys[i % size_t(shape.dim)];
  std::vector<std::string> merged;
  for (const MethodCase& v : variants())
    for (const Merge::Rule rule : {Merge::Rule::pivot, Merge::Rule::weighted_v}) {
      const CommonOptions options = merging(v, rule, Merge::Mass::keep);
      if (!may_merge(v, options) || options.positions == Positions::cache) continue;
      INFO(v.label() << ", rule " << int(rule));
      RunOptions audited;
      audited.audit = true;
      const CellResult r =
          replay(s, {changed(cell_of(v, 24, shape), [&](Variant& x) { x.options = options; })}, audited).only();
      REQUIRE(r.error == "");
      if (*r.measures["n_evictions"] == 0) continue;
      merged.push_back(v.entry().info.name);
      for (size_t row = 0; row < r.rows.size(); ++row) {
        std::vector<int32_t> all(size_t(r.rows[row]) + 1);
        std::iota(all.begin(), all.end(), 0);
        for (int32_t h = 0; h < shape.heads; ++h)
          CHECK(relative_difference(output(r, h, row), naive_attention(s, h, r.rows[row], all)) < 1e-10);
      }
    }
  CHECK(merged.size() > 40);
}

TEST_CASE("Methods that cannot be merged are refused with a remedy", "[merge]") {
  const auto said = [](const std::string& method, const std::function<void(CommonOptions&)>& change) {
    const Method& m = *find_method(registry(), method);
    MethodInstance instance{values_of(m, {}), default_options(method), {}, {}};
    change(instance.options);
    const Refusal refusal{.methods = {instance.named()}, .rule = merge_problem(instance)};
    return refusal.empty() ? "" : refusal.text(file_wording());
  };
  using Catch::Matchers::Contains;
  const auto rule = [](Merge::Rule which) { return [which](CommonOptions& o) { o.merge.rule = which; }; };
  CHECK_THAT(said("exact", rule(Merge::Rule::cam)), Contains("keeps every token"));
  CHECK_THAT(said("quest", rule(Merge::Rule::cam)), Contains("keeps every token"));
  CHECK_THAT(said("balancekv", rule(Merge::Rule::cam)), Contains("rows or weights of its own"));
  CHECK_THAT(said("h2o", rule(Merge::Rule::gaussian)), Contains("add phase: oneshot"));
  CHECK_THAT(said("streaming_llm", rule(Merge::Rule::pivot)), Contains("add positions: original"));
  CHECK(said("streaming_llm", rule(Merge::Rule::cam)).empty());
  CHECK_THAT(said("snapkv", [](CommonOptions& o) { o.merge.rule = Merge::Rule::cam, o.gqa_level = GqaLevel::layer; }),
             Contains("leave out gqa.level: layer"));
  CHECK_THAT(said("snapkv", [](CommonOptions& o) { o.merge.rule = Merge::Rule::cam, o.reweight = Reweight::uniform; }),
             Contains("leave out one of them"));
}
