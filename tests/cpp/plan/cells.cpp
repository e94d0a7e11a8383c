#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "plan/estimate.hpp"
#include "plan/plan.hpp"
#include "stub_methods.hpp"
#include "support.hpp"
#include "trace/h5_file.hpp"

using namespace kvreplay;
using test::params_of;

namespace {

const Method& kept_method() { return stub::method<stub::Kept>(); }
const Method& drawn_method() { return stub::method<stub::Drawn>(); }
const Method& full_method() { return stub::method<stub::Full>(); }

MethodInstance instance_of(const Method& method) {
  MethodInstance instance{MethodValues(method), {}, {}, {}};
  instance.options = instance.values.default_options();
  return instance;
}
void set_factor(RunConfig& config, const char* value) {
  MethodValues& values = config.methods[0].values;
  values.set(*values.method().parameter("factor"), value);
}

// Two prompts of 100 tokens, 80 of them prompt; layers 0 and 7 with 4 query heads on 2 kv heads.
TraceInfo small_trace() {
  LayerInfo layer;
  layer.q_heads = 4, layer.kv_heads = 2, layer.head_dim = 8, layer.v_head_dim = 8;
  layer.tokens = layer.query_rows = 100;
  layer.dtype = DType::float16;
  PromptInfo prompt;
  prompt.tokens = 100, prompt.n_prompt = 80;
  prompt.layers = {layer, layer};
  prompt.layers[1].layer = 7;
  prompt.layer_numbers = {0, 7};
  TraceInfo trace;
  trace.path = "/somewhere/a.h5", trace.trace_id = "1234", trace.model = "tiny", trace.n_layers = 8;
  trace.prompts = {prompt, prompt};
  trace.prompts[0].id = "p0", trace.prompts[1].id = "p1", trace.prompts[1].rank = 1;
  return trace;
}

RunConfig small_config() {
  RunConfig config;
  config.methods = {instance_of(kept_method())};
  config.budget.values = {16};
  return config;
}

// The one cell of p0, layer 0, kv head 0.
Cell only_cell(RunConfig config, const TraceInfo& trace = small_trace()) {
  config.select.prompts = {{trace.prompts[0].id}};
  config.select.layers = {{trace.prompts[0].layers[0].layer}};
  config.select.kv_heads = {{0}};
  const std::vector<Cell> plan = plan_cells(config, {trace});
  REQUIRE(plan.size() == 1);
  return plan[0];
}

std::string key_after(const std::function<void(RunConfig&, TraceInfo&)>& change) {
  RunConfig config = small_config();
  TraceInfo trace = small_trace();
  change(config, trace);
  return only_cell(config, trace).key;
}

// A file with 80 uniforms for the draw "u".
std::filesystem::path uniforms_file(const std::string& name, double each) {
  const auto path = std::filesystem::temp_directory_path() / name;
  H5Output out(path);
  out.write("u", std::vector<double>(80, each), {1, 80, 1});
  out.close();
  return path;
}

}  // namespace

TEST_CASE("A plan has a cell for every prompt, layer, kv head, method, budget and seed") {
  RunConfig config = small_config();
  config.methods = {instance_of(full_method()), instance_of(kept_method()), instance_of(drawn_method())};
  config.budget.values = {16, 32};
  config.seed_first = 3, config.seed_count = 4;
  const std::vector<Cell> plan = plan_cells(config, {small_trace()});
  REQUIRE(plan.size() == 2 * 2 * 2 * (1 + 2 + 2 * 4));
  CHECK(plan[0].budget.none());
  CHECK_FALSE(plan[1].seed);
  CHECK(plan[1].budget.tokens == 16);
  CHECK(plan[3].seed == 3u);
  CHECK(plan[10].seed == 6u);
  std::set<std::string> keys;
  for (const Cell& cell : plan) keys.insert(cell.key);
  CHECK(keys.size() == plan.size());
}

TEST_CASE("Cells of one kv head are adjacent, in the order of the configuration") {
  RunConfig config = small_config();
  config.methods = {instance_of(kept_method()), instance_of(full_method())};
  config.select.layers = {{7, 0}};
  const std::vector<Cell> plan = plan_cells(config, {small_trace()});
  CHECK(plan[0].place.layer == 7);
  CHECK(plan[0].place.kv_head == 0);
  CHECK(plan[1].place.kv_head == 0);
  CHECK(&plan[1].method() == &full_method());
  CHECK(plan[2].place.kv_head == 1);
  CHECK(plan[4].place.layer == 0);
  CHECK(plan[8].place.prompt == "p1");
  CHECK(plan[8].prompt_rank == 1);
}

TEST_CASE("A cell shows the resolved parameters and the axes") {
  RunConfig config = small_config();
  config.methods[0].options.gqa_level = GqaLevel::query;
  const Cell cell = only_cell(config);
  CHECK(params_of(cell).at("resolved_for") == 16);
  CHECK(params_of(cell).at("heads") == 1);
  CHECK(params_of(cell).at("gqa.level") == "query");
  CHECK(params_of(cell).at("phase") == "stream");
  CHECK(params_of(only_cell(small_config())).at("heads") == 2);
}

TEST_CASE("The prompt is the recorded one unless the configuration sets another") {
  RunConfig config = small_config();
  CHECK(only_cell(config).extent.prompt_tokens == 80);
  CHECK(only_cell(config).extent.tokens == 100);
  config.replay.prefill = 50, config.replay.tokens = 60;
  CHECK(only_cell(config).extent.prompt_tokens == 50);
  CHECK(only_cell(config).extent.tokens == 60);
  config.replay.prefill = 61;
  CHECK_THROWS_AS(plan_cells(config, {small_trace()}), ConfigError);
}

TEST_CASE("A prompt given as a share is a share of the replayed tokens") {
  RunConfig config = small_config();
  config.replay.prefill_share = 0.29;
  CHECK(only_cell(config).extent.prompt_tokens == 29);  // 29 of 100 tokens, though 0.29 as a binary number is smaller
  config.replay.tokens = 60;
  CHECK(only_cell(config).extent.prompt_tokens == 17);
  config.replay.prefill_share = 1e-6;
  CHECK(only_cell(config).extent.prompt_tokens == 1);
}

TEST_CASE("Two fractions that keep equally many tokens are one cell") {
  RunConfig config = small_config();
  config.budget.kind = BudgetList::Kind::fraction_kept;
  config.budget.values = {0.1, 0.11};  // both keep 8 of 80 tokens: floor(8) and floor(8.8)
  CHECK(only_cell(config).budget.tokens == 8);
}

TEST_CASE("Budgets found for shares of the cache are planned for their heads, and once") {
  LoadedRun run{small_config(), {small_trace()}, {}};
  run.config.methods.push_back(instance_of(drawn_method()));
  SelectedLayer at{0, 0, 0, {100, 80}, {0, 1}, {}};
  run.selection = {at};
  const auto add = [&](size_t instance, int32_t tokens, int32_t kv_head, std::optional<uint32_t> seed) {
    add_variant(run, 0, instance, tokens, kv_head, seed);
    run.selection[0].variants.back().shares = {0.1, 0.2};
  };
  add(0, 9, 0, std::nullopt);
  add(0, 7, 1, std::nullopt);
  add(1, 5, 1, 3);
  const std::vector<Cell> plan = plan_cells(run);
  REQUIRE(plan.size() == 3);
  CHECK((plan[0].place.kv_head == 0 && plan[0].budget.tokens == 9));
  CHECK((plan[1].place.kv_head == 1 && plan[1].budget.tokens == 7));
  CHECK((plan[2].place.kv_head == 1 && plan[2].budget.tokens == 5 && plan[2].seed == 3u));
  CHECK(plan[0].shares == std::vector<double>{0.1, 0.2});
  RunConfig tokens = small_config();
  tokens.budget.values = {9};
  CHECK(plan[0].key == only_cell(tokens).key);
  run.selection[0].by_share = {0};
  CHECK_THROWS_AS(plan_cells(run), std::logic_error);
}

TEST_CASE("A fraction keeps at least one token") {
  RunConfig config = small_config();
  config.budget.kind = BudgetList::Kind::fraction_kept;
  config.budget.values = {0.001};
  CHECK(only_cell(config).budget.tokens == 1);
}

TEST_CASE("A budget in bytes counts rows at the width of the trace") {
  RunConfig config = small_config();
  config.budget.kind = BudgetList::Kind::bytes;
  config.budget.values = {330};  // a row takes (8 + 8) numbers of 2 bytes
  CHECK(only_cell(config).budget.tokens == 10);
  config.budget.values = {31};
  CHECK_THROWS_AS(plan_cells(config, {small_trace()}), ConfigError);
}

TEST_CASE("Injected uniforms give one cell without a seed, whose key follows their content") {
  RunConfig config = small_config();
  config.methods = {instance_of(drawn_method())};
  config.methods[0].uniforms = uniforms_file("kvreplay-u1.h5", 0.5);
  const Cell cell = only_cell(config);
  CHECK_FALSE(cell.seed);
  CHECK(params_of(cell).at("uniforms").get<std::string>().size() == 64);
  config.methods[0].uniforms = uniforms_file("kvreplay-u2.h5", 0.5);
  CHECK(only_cell(config).key == cell.key);
  config.methods[0].uniforms = uniforms_file("kvreplay-u3.h5", 0.25);
  CHECK(only_cell(config).key != cell.key);
  config.methods[0].uniforms = "/nowhere/u.h5";
  CHECK_THROWS_AS(plan_cells(config, {small_trace()}), ConfigError);
}

TEST_CASE("A key does not change with paths, threads, device names or what is saved") {
  const std::string key = key_after([](RunConfig&, TraceInfo&) {});
  CHECK(key.size() == 17);
  CHECK(key == key_after([](RunConfig& config, TraceInfo& trace) {
          trace.path = "/elsewhere/b.h5";
          config.output.dir = "/out";
          config.output.kept = true;
          config.run.jobs = 7;
          config.run.audit = true;
          config.name = "another";
          config.file = "x.yaml";
        }));
  CHECK(key == key_after([](RunConfig& config, TraceInfo&) { set_factor(config, "1"); }));
  CHECK(key == key_after([](RunConfig& config, TraceInfo&) { config.budget.values = {16}, config.seed_count = 9; }));
}

TEST_CASE("A key changes with everything that determines the numbers") {
  using Change = std::function<void(RunConfig&, TraceInfo&)>;
  using Queries = RunConfig::Replay::Queries;
  const std::vector<Change> changes = {
      [](RunConfig&, TraceInfo&) {},
      [](RunConfig&, TraceInfo& trace) { trace.trace_id = "1235"; },
      [](RunConfig&, TraceInfo& trace) { trace.prompts[0].id = "p"; },
      [](RunConfig&, TraceInfo& trace) { trace.prompts[0].layers[0].layer = trace.prompts[0].layer_numbers[0] = 1; },
      [](RunConfig& config, TraceInfo&) { config.methods = {instance_of(full_method())}; },
      [](RunConfig& config, TraceInfo&) { set_factor(config, "1.5"); },
      [](RunConfig& config, TraceInfo&) { config.methods[0].options.order = Order::evict_then_attend; },
      [](RunConfig& config, TraceInfo&) { config.budget.values = {17}; },
      [](RunConfig& config, TraceInfo&) { config.replay.prefill = 79; },
      [](RunConfig& config, TraceInfo&) { config.replay.tokens = 99; },
      [](RunConfig& config, TraceInfo&) { config.replay.prompt_streams = true; },
      [](RunConfig& config, TraceInfo&) { config.replay.queries = Queries::last, config.replay.queries_count = 5; },
      [](RunConfig& config, TraceInfo&) { config.replay.queries = Queries::stride, config.replay.queries_count = 5; },
      [](RunConfig& config, TraceInfo&) { config.replay.queries = Queries::last, config.replay.queries_count = 6; },
      [](RunConfig& config, TraceInfo&) { config.run.double_precision = true; },
      [](RunConfig& config, TraceInfo&) { config.metrics = {"cosine_mean"}; },
      [](RunConfig& config, TraceInfo&) {
        config.replay.needles = {{0.5}, 4};
      },
      [](RunConfig& config, TraceInfo&) {
        config.replay.needles = {{0.5}, 5};
      },
      [](RunConfig& config, TraceInfo&) {
        config.replay.needles = {{0.5, 0}, 4};
      },
      [](RunConfig& config, TraceInfo& trace) {
        config.replay.needles.recorded = true, trace.prompts[0].needles = {{3, 5}};
      },
      [](RunConfig& config, TraceInfo& trace) {
        config.replay.needles.recorded = true, trace.prompts[0].needles = {{3, 6}};
      },
  };
  std::set<std::string> keys;
  for (const Change& change : changes) keys.insert(key_after(change));
  CHECK(keys.size() == changes.size());

  RunConfig drawn = small_config();
  drawn.methods = {instance_of(drawn_method())};
  const std::vector<Cell> plan = plan_cells(drawn, {small_trace()});
  CHECK(plan[0].key != plan[1].key);  // seeds
  CHECK(plan[0].key != plan[5].key);  // kv heads
}

TEST_CASE("The key of an example cell is fixed, so that published results stay valid") {
  CHECK(only_cell(small_config()).key == "k3a3679911ab9c043");
}

TEST_CASE("The order in which metrics are listed does not change a key") {
  CHECK(key_after([](RunConfig& config, TraceInfo&) {
          config.metrics = {"a", "b"};
        }) == key_after([](RunConfig& config, TraceInfo&) {
          config.metrics = {"b", "a", "b"};
        }));
}

TEST_CASE("A selection that the trace lacks is refused") {
  RunConfig config = small_config();
  config.select.layers = {{3}};
  CHECK_THROWS_WITH(plan_cells(config, {small_trace()}), Catch::Contains("take some of 0, 7"));
  config.select.layers.reset();
  config.select.kv_heads = {{2}};
  CHECK_THROWS_AS(plan_cells(config, {small_trace()}), ConfigError);
  config.select.kv_heads.reset();
  config.select.prompts = {{"p9"}};
  CHECK_THROWS_WITH(plan_cells(config, {small_trace()}), Catch::Contains("p0, p1"));
}

TEST_CASE("The estimate has a cost per cell that grows with the budget") {
  RunConfig config = small_config();
  config.methods = {instance_of(kept_method()), instance_of(full_method())};
  config.budget.values = {16, 32};
  config.run.jobs = 1;
  const std::vector<TraceInfo> traces = {small_trace()};
  const std::vector<Cell> plan = plan_cells(config, traces);
  const PlanEstimate one = estimate(config, plan, traces);
  REQUIRE(one.cost.size() == plan.size());
  CHECK(one.cost[0] < one.cost[1]);
  CHECK(one.cost[1] < one.cost[2]);  // `full` holds all 100 tokens
  // By hand: the exact pass, 20 rows * 100 * 2 * 16 * 2 heads, is divided by 3 cells; the cell itself costs
  // 20 * 16 * 2 * 16 * 2, and the cut of 80 tokens to 16.
  CHECK(one.cost[0] == Approx(20.0 * 100 * 64 / 3 + 20.0 * 16 * 64 + 80 * 16 * 2 * 8));

  config.run.jobs = 2;
  const int64_t unit = estimate(config, plan, traces).bytes_peak - one.bytes_peak;
  // By hand, in numbers of 4 bytes: k twice, v and the queries of two heads, [100, 8] each; strips of 24 rows for both.
  CHECK(unit >= 4 * (5 * 100 * 8 + 24 * 2 * 100));
  CHECK(unit <= 2 * 4 * (5 * 100 * 8 + 24 * 2 * 100));
  config.run.jobs = 3;
  CHECK(estimate(config, plan, traces).bytes_peak == one.bytes_peak + 2 * unit);
  config.replay.queries = RunConfig::Replay::Queries::last, config.replay.queries_count = 5;
  CHECK(estimate(config, plan, traces).cost[0] < one.cost[0]);
}

TEST_CASE("A resumed run replays all budgets of incomplete instances, in the plan's order, and no other cell") {
  RunConfig config = small_config();
  config.methods = {instance_of(kept_method()), instance_of(full_method())};
  config.budget.values = {16, 32};
  const std::vector<Cell> plan = plan_cells(config, {small_trace()});
  const std::vector<Cell> cells = with_families({plan[1]}, plan);
  std::vector<std::string> keys, wanted;
  for (const Cell& cell : cells) keys.push_back(cell.key);
  for (const Cell& cell : plan)
    if (cell.variant->instance == plan[1].variant->instance && cell.place.layer == plan[1].place.layer &&
        cell.place.kv_head == plan[1].place.kv_head && cell.place.prompt == plan[1].place.prompt)
      wanted.push_back(cell.key);
  CHECK(wanted.size() == 2);
  CHECK(keys == wanted);
  CHECK(with_families({}, plan).empty());
}
