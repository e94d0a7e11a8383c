#include <algorithm>
#include <cmath>

#include "config/common_options.hpp"
#include "hand_streams.hpp"

// The option `think`, which drops channels of kept keys, by hand, and the option `protect_ends`.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

CommonOptions thinking(const std::string& method, double ratio, int32_t window) {
  CommonOptions options = default_options(method);
  options.think = {ratio, window};
  return options;
}

// Squares are (4, 1, 1, 1) for the prompt's query and (1, 1, 3, 2) for its key, so the scores are (4, 1, 3, 2). Rows 1
// and 2 look along channels 1 and 2. Only token 0 has a value.
HeadStream<double> four_channels() {
  HeadStream<double> s = make_stream<double>({.tokens = 3, .prompt = 1, .dim = 4, .v_dim = 1, .heads = 1});
  s.rule.scale = 1;
  s.queries = {2, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0};
  s.keys = {1, 1, std::sqrt(3.0), std::sqrt(2.0), 0, 2, 0, 0, 0, 0, 0, 0};
  s.values = {10, 0, 0};
  return s;
}
const StreamShape kShape{3, 1, 4, 1, 1};

std::string problem(const std::string& method, CommonOptions options) {
  return think_problem({values_of(*find_method(registry(), method), nlohmann::json::object()), options, {}, {}},
                       file_wording());
}

}  // namespace

TEST_CASE("think drops the channels of least energy from keys of the prompt only", "[think]") {
  const CellResult r =
      replay(four_channels(), {make_cell("exact", std::nullopt, kShape, {}, thinking("exact", .5, 1))}).only();
  REQUIRE(r.ok);
  CHECK(output(r, 0, 0).at(0) == Approx(10 / (1 + std::exp(2))));  // channel 1 of token 0 is gone, not that of token 1
  const double kept = std::exp(std::sqrt(3.0));
  CHECK(output(r, 0, 1).at(0) == Approx(10 * kept / (kept + 2)));
  CHECK(*r.measures["key_floats"] == 2 + 4 + 4);
  CHECK(*r.measures["peak_bytes"] == 4 * (2 + 4 + 4 + 3));
  CHECK(*r.measures["sketch_bytes"] == 1);  // the mask
}

TEST_CASE("think without a whole channel to drop changes nothing", "[think]") {
  const auto read = [](double ratio) {
    return replay(four_channels(), {make_cell("exact", std::nullopt, kShape, {}, thinking("exact", ratio, 1))}).only();
  };
  CHECK(*read(.2).measures["rel_err_out_max"] < 1e-12);
  CHECK(*read(.2).measures["key_floats"] == 12);
  CHECK(*read(.75).measures["key_floats"] == 1 + 8);
}

// The channels left of token 0 are 1 and 1.73, so a 1 is the lowest level. With zeros among them it would read back as
// 9 of 15 levels, 1.04.
TEST_CASE("a row format codes the channels that think leaves", "[think]") {
  HeadStream<double> s = four_channels();
  s.queries[8] = 1, s.queries[10] = 0;
  const auto read = [&](double ratio) {
    CommonOptions options = thinking("exact", ratio, 1);
    options.row_format = row_format("int4");
    const CellResult r = replay(s, {make_cell("exact", std::nullopt, kShape, {}, options)}).only();
    REQUIRE(r.ok);
    return r;
  };
  const CellResult half = read(.5), whole = read(0);
  CHECK(output(half, 0, 1).at(0) == Approx(10 * std::exp(1) / (std::exp(1) + 2)));
  CHECK(*whole.measures["peak_bytes"] - *half.measures["peak_bytes"] == 1);  // 2 numbers of 4 bits
  CHECK(*half.measures["sketch_bytes"] - *whole.measures["sketch_bytes"] == 1);
  CHECK(*half.measures["n_quantised"] == *whole.measures["n_quantised"]);
}

TEST_CASE("an audit of think has the same numbers", "[think]") {
  const StreamShape s;
  const auto stream = make_stream<double>(s, 7);
  const std::vector<Cell> cells = {make_cell("snapkv", 40, s, {{"window", 6}}, thinking("snapkv", .3, 12))};
  RunOptions watched;
  watched.audit = true;
  const CellResult plain = replay(stream, cells).only(), audit = replay(stream, cells, watched).only();
  REQUIRE((plain.ok && audit.ok));
  CHECK(plain.kept.flat == audit.kept.flat);
  CHECK(*plain.measures["rel_err_out_mean"] == Approx(*audit.measures["rel_err_out_mean"]));
  CHECK(*plain.measures["key_floats"] == 40 * 6 + 32 * 8);
}

TEST_CASE("think is refused where keys change or move after one cut", "[think]") {
  CHECK(problem("exact", thinking("exact", .5, 32)).empty());
  CHECK(problem("snapkv", thinking("snapkv", .5, 32)).empty());
  CHECK(problem("h2o", thinking("h2o", .5, 32)).find("drops channels once") != std::string::npos);
  CommonOptions options = thinking("snapkv", .5, 32);
  options.merge.rule = Merge::Rule::cam;
  CHECK(problem("snapkv", options).find("leave out one of them") != std::string::npos);
  options = thinking("snapkv", .5, 32), options.positions = Positions::cache;
  CHECK(problem("snapkv", options).find("positions") != std::string::npos);
  CHECK(problem("quest", thinking("quest", .5, 32)).find("at every step") != std::string::npos);
  options = thinking("exact", .5, 32), options.row_format = row_format("kivi");
  CHECK(problem("exact", options).find("row_format of keys") != std::string::npos);
  options.row_format = row_format("int8");
  CHECK(problem("exact", options).empty());
  CHECK(problem("subgen", thinking("subgen", .5, 32)).empty());
}

TEST_CASE("protect_ends sets sinks and recent to a share of the budget", "[think]") {
  const auto ends = [](double share, int32_t budget) {
    MethodValues values = values_of(*find_method(registry(), "tova"), nlohmann::json::object());
    values.protect_ends(share);
    MethodContext context;
    context.tokens = context.prompt_tokens = 200, context.budget.tokens = budget, context.shape = {1, 1, 1};
    const Protect protect = BoundMethod(values, context).protection();
    return std::pair(protect.sinks, protect.recent);
  };
  CHECK(ends(.1, 36) == std::pair(3, 3));
  CHECK(ends(.29, 100) == std::pair(29, 29));
  CHECK(ends(.5, 9) == std::pair(4, 4));
  CHECK(ends(0, 9) == std::pair(0, 0));
}
