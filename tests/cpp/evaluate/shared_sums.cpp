#include <algorithm>

#include "property_exceptions.hpp"

// Work shared between caches changes no number beyond rounding, and no decision. The definition is a method replayed
// alone and audited, row by row through its own code.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr double kDouble = 1e-10, kFloat = 2e-5;
constexpr int32_t kBudgets[] = {24, 31, 40, 52, 200};

RunOptions audit() {
  RunOptions options;
  options.audit = true;
  return options;
}

void same(const std::optional<double>& a, const std::optional<double>& b, double tolerance) {
  REQUIRE(a.has_value() == b.has_value());
  if (a) CHECK(std::abs(*a - *b) <= tolerance * (1 + std::abs(*b)));
}

void same(const CellResult& a, const CellResult& b, double tolerance) {
  REQUIRE(a.ok == b.ok);
  CHECK(a.kept.flat == b.kept.flat);
  CHECK(relative_difference(a.out, b.out) < tolerance);
  const Measured &m = a.measures, &n = b.measures;
  for (const Metric column :
       {Metric("rel_err_out_mean"), Metric("rel_err_prefix_mean"), Metric("rel_err_set_mean"), Metric("kept_mass_mean"),
        Metric("kept_mass_min"), Metric("mass_recall"), Metric("index_recall"), Metric("density_mean"),
        Metric("needle_mass"), Metric("read_bytes_per_step"), Metric("median_evicted_age_tokens")})
    same(m[column], n[column], tolerance);
  for (size_t i = 0; i < std::size(kMetrics); ++i) {  // sizes are equal to the last bit
    const std::string unit = kMetrics[i].unit;
    if (unit != "bytes" && unit != "numbers" && unit != "rows" && unit != "tokens") continue;
    INFO(kMetrics[i].name);
    CHECK(m.all()[i] == n.all()[i]);
  }
}

template <class Real>
void check_sharing(const HeadStream<Real>& stream, const MethodCase& v, const StreamShape& s, double tolerance,
                   RunOptions options = {}) {
  std::vector<Cell> cells;
  for (const int32_t budget : kBudgets) cells.push_back(cell_of(v, budget, s));
  RunOptions alone = options;
  alone.audit = true;
  const RunResult together = replay(stream, cells, options);
  REQUIRE(together.cells.size() == cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    INFO(v.label() << " budget " << kBudgets[i]);
    same(together.cells[i], replay(stream, {cells[i]}, alone).only(), tolerance);
  }
}

// Every stride-th query is scored; other rows have a strip or not.
template <class Real>
void check_without_strips(const HeadStream<Real>& stream, const Cell& cell, int64_t stride) {
  RunOptions sampled, alone;
  sampled.queries = alone.queries = {QuerySelection::Kind::stride, stride};
  alone.strips_up_to = 0;
  same(replay(stream, {cell}, alone).only(), replay(stream, {cell}, sampled).only(), kDouble);
}

}  // namespace

TEST_CASE("budgets that share their sums give the numbers of each one alone", "[shared][many]") {
  const StreamShape s;
  for (const Look look : {Look::sinks, Look::clustered, Look::zero_rows})
    for (const MethodCase& v : variants()) check_sharing(make_stream<double>(s, 21, look), v, s, kDouble);
}

TEST_CASE("a shared nested selection equals the selection of each budget alone", "[shared]") {
  const StreamShape s;
  const auto stream = make_stream<double>(s, 29, Look::clustered);
  for (const nlohmann::json& params :
       {nlohmann::json{{"recent", 0}}, nlohmann::json{{"recent", 5}, {"first", 7}},
        nlohmann::json{{"recent", 0}, {"weights", "cluster_size"}}, nlohmann::json{{"first", "random"}}}) {
    INFO(params.dump());
    std::vector<Cell> cells;
    for (const int32_t budget : {12, 60, 30, 9, 48, 200})
      cells.push_back(make_cell("subgen", budget, s, params, default_options("subgen"), 3));
    const RunResult together = replay(stream, cells);
    for (size_t i = 0; i < cells.size(); ++i)
      same(together.cells[i], replay(stream, {cells[i]}, audit()).only(), kDouble);
  }
}

template <class Real>
void check_shared_signs(const HeadStream<Real>& stream, const StreamShape& s, const nlohmann::json& params,
                        double tolerance) {
  INFO(params.dump());
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::vector<Cell> cells;
    for (const int32_t budget : {40, 16, 100, 24, 64})
      cells.push_back(make_cell("balancekv", budget, s, params, default_options("balancekv"), seed));
    const RunResult together = replay(stream, cells);
    for (size_t i = 0; i < cells.size(); ++i) {
      const CellResult one = replay(stream, {cells[i]}).only();
      same(together.cells[i], one, tolerance);
      CHECK(together.cells[i].num == one.num);
      CHECK(together.cells[i].den == one.den);
    }
  }
}

TEST_CASE("signs copied from a larger budget equal those of each budget alone", "[shared][many]") {
  const StreamShape s{270, 240, 8, 8, 2};
  const auto exact = make_stream<double>(s, 30, Look::clustered);
  const auto single = make_stream<float>(s, 31, Look::sinks);
  for (const char* walk : {"paper", "reference"})
    for (const nlohmann::json& given :
         {nlohmann::json{{"c", 0}}, nlohmann::json{{"c", 2}}, nlohmann::json{{"gamma", 0}},
          nlohmann::json{{"gamma", 0.5}}, nlohmann::json{{"recent", 9}, {"sinks", 2}}, nlohmann::json{{"rounds", 3}},
          nlohmann::json{{"block", 7}, {"gamma", 0.5}}, nlohmann::json{{"block", 3}, {"gamma", 0.1}},
          nlohmann::json{{"preset", "longbench"}}}) {
      nlohmann::json params = given;
      params["walk"] = walk;
      if (!params.contains("block")) params["block"] = 16;
      if (params.contains("preset")) params["sinks"] = params["recent"] = 4;
      check_shared_signs(exact, s, params, kDouble);
      check_shared_signs(single, s, params, kFloat);
    }
}

TEST_CASE("in single precision too", "[shared]") {
  const StreamShape s{96, 64, 8, 8, 3};
  for (const MethodCase& v : variants()) {
    if (values_of(v.entry(), params_of(v.method)).observes(v.options)) continue;  // rounding may decide
    check_sharing(make_stream<float>(s, 22, Look::sinks), v, s, kFloat);
  }
}

TEST_CASE("rows whose kept tokens underflow take their own dot products", "[shared]") {
  const StreamShape s;
  auto stream = make_stream<double>(s, 23, Look::gaussian);
  for (int32_t c = 0; c < s.dim; ++c) stream.keys[size_t(9 * s.dim + c)] *= 900;  // far above everything
  for (const MethodCase& v : variants()) check_sharing(stream, v, s, kDouble);
}

TEST_CASE("sink logits, soft caps and needles are seen by shared sums", "[shared][many]") {
  const StreamShape s;
  auto stream = make_stream<double>(s, 24, Look::sinks);
  stream.sink_logits.assign(size_t(s.heads), 0.7);
  RunOptions options;
  options.needles = {{0.1, 0.5}, 6};
  for (const MethodCase& v : variants()) check_sharing(stream, v, s, kDouble, options);
  stream.rule.softcap = 2;
  for (const MethodCase& v : variants())
    if (!v.entry().info.needs_linear_logits) check_sharing(stream, v, s, kDouble);
}

TEST_CASE("query heads with separate caches share only with their own budgets", "[shared][many]") {
  const StreamShape s{96, 64, 8, 8, 3};
  for (MethodCase v : variants()) {
    v.options.gqa_level = GqaLevel::query;
    check_sharing(make_stream<double>(s, 25, Look::sinks), v, s, kDouble);
  }
}

TEST_CASE("a streamed prompt and a cut one share only the strip", "[shared]") {
  const StreamShape s;
  const auto stream = make_stream<double>(s, 26, Look::sinks);
  for (const MethodCase& v : variants()) {
    if (v.options.phase != Phase::stream || excused("streams its prompt", v)) continue;
    INFO(v.label());
    const Cell cut = cell_of(v, 31, s), fed = streamed(cell_of(v, 40, s));
    const RunResult both = replay(stream, {cut, fed});
    same(both.cells[0], replay(stream, {cut}, audit()).only(), kDouble);
    same(both.cells[1], replay(stream, {fed}, audit()).only(), kDouble);
  }
}

TEST_CASE("a prompt streamed into the full cache gives its outputs", "[shared]") {
  const StreamShape s;
  auto stream = make_stream<double>(s, 33, Look::sinks);
  const Cell full = streamed(make_cell("exact", {}, s, {}, default_options("exact")));
  const auto check = [&] {
    const CellResult result = replay(stream, {full}).only();
    same(result, replay(stream, {full}, audit()).only(), kDouble);
    CHECK(*result.measures["rel_err_out_max"] < kDouble);
    CHECK(*result.measures["mean_attended_tokens"] == 0.5 * (s.prompt + 1 + s.tokens));
  };
  check();
  stream.sink_logits.assign(size_t(s.heads), 0.7);
  check();
}

TEST_CASE("rows that are not scored may have no strip", "[shared]") {
  const StreamShape s{120, 60, 8, 8, 2};
  auto stream = make_stream<double>(s, 27, Look::sinks);
  for (const bool capped : {false, true}) {
    if (capped) stream.rule.softcap = 2, stream.sink_logits.assign(size_t(s.heads), 0.7);
    for (const MethodCase& v : variants())
      for (const int32_t budget : {24, 40}) {
        if (capped && v.entry().info.needs_linear_logits) continue;
        INFO(v.label() << " budget " << budget << (capped ? " capped" : ""));
        check_without_strips(stream, cell_of(v, budget, s), 7);
      }
  }
}

TEST_CASE("rows without a strip respect sink logits, soft caps, windows and gqa levels", "[shared]") {
  const StreamShape s{120, 60, 8, 8, 2};
  auto stream = make_stream<double>(s, 30, Look::sinks);
  const auto check = [&](MethodCase v, GqaLevel level) {
    v.options.gqa_level = level;
    INFO(v.label() << " budget 24");
    check_without_strips(stream, cell_of(v, 24, s), 7);
  };
  stream.sink_logits.assign(size_t(s.heads), 0.7);
  for (const char* method : {"scissorhands", "buzz", "keyformer"})
    check({method, default_options(method)}, GqaLevel::query);
  stream.rule.softcap = 2;
  stream.window = 50;
  for (const char* method : {"scissorhands", "buzz", "keyformer", "h2o", "tova"})
    check({method, default_options(method)}, GqaLevel::kv);
  const Cell factor = make_cell("buzz", 24, s, {{"log_n", "live"}}, default_options("buzz"));
  check_without_strips(stream, factor, 7);
}

TEST_CASE("under a soft cap evicted tokens have weight 0 in rows without a strip", "[shared]") {
  const StreamShape s{400, 20, 8, 8, 1};
  for (uint32_t seed = 0; seed < 12; ++seed) {
    auto stream = make_stream<double>(s, 60 + seed, Look::gaussian);
    stream.rule.softcap = 0.5;
    for (const int32_t budget : {17, 24, 33}) {
      INFO("seed " << seed << " budget " << budget);
      check_without_strips(stream, make_cell("h2o", budget, s), 50);
    }
  }
}

TEST_CASE("queries fetched in pieces equal the queries", "[shared]") {
  const StreamShape s{120, 60, 8, 8, 2};
  const auto whole = make_stream<double>(s, 28, Look::sinks);
  auto pieces = make_stream<double>(s, 28, Look::sinks);
  const std::vector<double> all = pieces.queries;
  int32_t fetched = 0;
  pieces.queries.clear();
  pieces.query_rows = 0, pieces.all_query_rows = s.tokens;
  pieces.fetch_queries = [&](int32_t first, int32_t count, std::vector<double>& queries) {
    ++fetched;
    queries.clear();
    for (int32_t h = 0; h < s.heads; ++h) {
      const auto row = all.begin() + (int64_t(h) * s.tokens + first) * s.dim;
      queries.insert(queries.end(), row, row + int64_t(count) * s.dim);
    }
  };
  for (const char* method : {"h2o", "streaming_llm", "tova", "uniform"}) {
    INFO(method);
    const MethodCase v{method, default_options(method)};
    pieces.query_rows = 0;
    same(replay(pieces, {cell_of(v, 30, s)}).only(), replay(whole, {cell_of(v, 30, s)}).only(), 1e-15);
  }
  CHECK(fetched >= 4);
}
