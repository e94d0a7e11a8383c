#include "catalog/make_policy_table.hpp"
#include "device/beside_cores.hpp"
#include "device/devices.hpp"
#include "emulator/emulated_policies.hpp"
#include "emulator/emulated_runtime.hpp"
#include "property_exceptions.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr int32_t kDeviceBudgets[] = {24, 31, 52, 200};

// Parameters that small budgets need, and `params`.
nlohmann::json with_test_defaults(const char* method, const nlohmann::json& params) {
  nlohmann::json all = params_of(method);
  if (all.is_null()) all = nlohmann::json::object();
  if (!params.empty()) all.update(params);
  return all;
}

// Cells of every kind of cache that a device replays by the policy's own code.
std::vector<Cell> policies(const StreamShape& s) {
  std::vector<Cell> cells;
  const auto add = [&](const char* method, const nlohmann::json& params, void (*change)(CommonOptions&) = nullptr) {
    CommonOptions options = default_options(method);
    if (change != nullptr) change(options);
    cells.push_back(make_cell(method, 24, s, with_test_defaults(method, params), options, 3));
  };
  add("h2o", {{"variant", "hf_mask"}});
  add("h2o", {{"variant", "alg1"}});
  add("h2o", {{"variant", "alg1"}}, [](CommonOptions& a) { a.gqa_aggregate = Aggregate::max; });
  add("h2o", {}, [](CommonOptions& a) { a.order = Order::evict_then_attend; });
  add("keyformer", {}, [](CommonOptions& a) { a.gqa_aggregate = Aggregate::max; });
  add("scissorhands", {});
  add("streaming_llm", {});
  add("buzz", {}, [](CommonOptions& a) { a.gqa_level = GqaLevel::query; });
  add("quest", {{"page", 4}});
  add("topk_oracle", {{"per_head", true}});
  add("topk_oracle", {{"variant", "topk_plus_current"}, {"renormalise", false}});
  add("subgen_stream", {});
  add("balancekv_stream", {});
  add("qjl", {});
  add("wildcat", {});
  add("attention_matching", {});
  add("attention_matching", {{"train", "future"}});
  add("exact", {{"log_n", "context"}});
  add("snapkv", {{"window", 6}}, [](CommonOptions& a) { a.positions = Positions::cache; });
  cells.push_back(streamed(cells[4]));
  return cells;
}

}  // namespace

TEST_CASE("a device agrees with the CPU, for every method at several budgets", "[device][replay][many]") {
  const StreamShape s{120, 70, 8, 8, 2};
  std::vector<Cell> cells;
  for (const auto& v : variants()) {
    const size_t instance = cells.size();
    for (const int32_t budget : kDeviceBudgets)
      cells.push_back(changed(cell_of(v, budget, s), [&](kvreplay::Variant& of) { of.instance = instance; }));
  }
  for (const Look look : {Look::gaussian, Look::sinks, Look::clustered})
    check_device(make_stream<float>(s, 41, look), cells);
}

TEST_CASE("a device replays any cache by the policy's own code", "[device][replay][programs]") {
  const StreamShape s;
  const std::vector<Cell> cells = policies(s);
  for (const Look look : {Look::gaussian, Look::zero_rows}) check_device(make_stream<float>(s, 51, look), cells);
  auto stream = make_stream<float>(s, 52, Look::sinks);
  stream.sink_logits = {0.5f, -1.0f};
  stream.rule.softcap = 3;
  RunOptions some;
  some.queries = {QuerySelection::Kind::stride, 3};
  check_device(stream, cells, some);
  some.wanted.drop(Work::set_error | Work::prefix_error | Work::recalls);
  check_device(stream, cells, some);
  stream.window = 40;
  check_device(stream, cells);
  stream.window = {0, 40};
  check_device(stream, cells);
}

namespace {

// Cells with formats that code one row at a time.
std::vector<Cell> coded_policies(const StreamShape& s) {
  std::vector<Cell> cells;
  const auto add = [&](const char* method, nlohmann::json params, const RowFormat& format,
                       void (*change)(CommonOptions&) = nullptr) {
    CommonOptions options = default_options(method);
    if (change != nullptr) change(options);
    options.row_format = format;
    cells.push_back(make_cell(method, 24, s, with_test_defaults(method, params), options, 3));
  };
  const nlohmann::json none = nlohmann::json::object();
  const auto grouped = [](const char* name, int32_t group) {
    return format_with(name, {{"group", std::to_string(group)}});
  };
  for (const char* name : {"f32", "f16", "bf16"}) add("h2o", none, row_format(name));
  for (const char* name : {"int8", "int4"}) add("h2o", none, grouped(name, 5));  // groups that do not divide a row
  add("exact", none, grouped("int8", 8));
  add("snapkv", {{"window", 6}}, grouped("int4", 4), [](CommonOptions& a) { a.reweight = Reweight::uniform; });
  add("quest", {{"page", 4}}, grouped("int8", 64));
  add("subgen_stream", {{"delta", 2.0}, {"t", 2}, {"s", 8}}, grouped("int4", 4));
  add("wildcat", none, row_format("f16"));
  add("subgen", {{"weights", "cluster_size"}}, row_format("bf16"));
  add("streaming_llm", none, grouped("int8", 1));
  add("buzz", none, grouped("int8", 8), [](CommonOptions& a) { a.gqa_level = GqaLevel::query; });
  return cells;
}

}  // namespace

TEST_CASE("a device decodes every row format as the CPU does", "[device][replay][programs]") {
  const StreamShape s{.tokens = 80, .prompt = 64, .dim = 32, .v_dim = 32};
  std::vector<Cell> cells;
  for (const RowFormatEntry& entry : row_formats()) {
    CommonOptions options = default_options("h2o");
    options.row_format = row_format(entry.info.name);
    if (entry.info.by_block) continue;  // runs only on the CPU
    cells.push_back(make_cell("h2o", 24, s, nlohmann::json::object(), options, 3));
    options.row_format.full_precision = {.sinks = 2, .recent = 5};
    cells.push_back(make_cell("h2o", 24, s, nlohmann::json::object(), options, 3));
    options.row_format.full_precision = {}, options.row_format.own_row_coded = true;
    cells.push_back(make_cell("h2o", 24, s, nlohmann::json::object(), options, 3));
  }
  check_device(make_stream<float>(s, 57), cells);
}

TEST_CASE("a device codes rows as the CPU does", "[device][replay][programs]") {
  const StreamShape s{.tokens = 96, .prompt = 64, .dim = 8, .v_dim = 12};
  for (const Look look : {Look::gaussian, Look::zero_rows})
    check_device(make_stream<float>(s, 55, look), coded_policies(s));
  auto stream = make_stream<float>(s, 56);
  stream.stored_bytes = 4;
  std::vector<Cell> cells = coded_policies(s);
  for (Cell& cell : cells) cell = streamed(cell);
  std::erase_if(cells, [](const Cell& cell) { return !cell.method().info.streams; });
  check_device(stream, cells);
}

TEST_CASE("a device reports a number that the row format cannot hold", "[device][replay][programs]") {
  const StreamShape s;
  auto stream = make_stream<float>(s, 57);
  stream.values[size_t(70 * s.v_dim + 3)] = 7e4f;
  const std::vector<Cell> cells = coded_policies(s);
  const RunResult result = replay(stream, cells, on_device()), cores = replay(stream, cells);
  for (size_t i = 0; i < cells.size(); ++i) CHECK(result.cells[i].error == cores.cells[i].error);
  CHECK(result.cells[0].ok);  // f32
  CHECK_FALSE(result.cells[1].ok);
  CHECK(result.cells[1].error.find("at token 70") != std::string::npos);
}

TEST_CASE("sums for caches of different heads are not mixed up", "[device][replay][programs]") {
  const StreamShape s{.heads = 4};
  auto stream = make_stream<float>(s, 58, Look::sinks);
  stream.window = 60;  // with a window the device replays these caches instead of listing them
  for (const GqaLevel first : {GqaLevel::query, GqaLevel::kv}) {
    std::vector<Cell> cells;
    for (const char* method : {"h2o", "static_oracle"})
      for (const bool other : {false, true}) {
        CommonOptions options = default_options(method);
        options.gqa_level = (first == GqaLevel::query) != other ? GqaLevel::query : GqaLevel::kv;
        cells.push_back(make_cell(method, 24, s, with_test_defaults(method, {}), options, 3));
        options.gqa_aggregate = Aggregate::max;
        cells.push_back(make_cell(method, 24, s, with_test_defaults(method, {}), options, 3));
      }
    check_device(stream, cells);
  }
}

TEST_CASE("caches of more rows than a block has threads", "[device][replay][programs]") {
  const StreamShape s{.tokens = 340, .prompt = 320};
  std::vector<Cell> cells;
  for (const auto& [method, params] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"h2o", {{"variant", "alg1"}}},
                                                           {"quest", {{"page", 4}}},
                                                           {"buzz", nlohmann::json::object()},
                                                           {"scissorhands", nlohmann::json::object()},
                                                           {"balancekv_stream", nlohmann::json::object()},
                                                           {"subgen_stream", {{"delta", 1.5}}},
                                                           {"qjl", params_of("qjl")},
                                                           {"wildcat", nlohmann::json::object()},
                                                           {"subgen", nlohmann::json::object()}})
    cells.push_back(make_cell(method, 290, s, params, default_options(method), 3));
  CommonOptions coded = default_options("h2o");
  coded.row_format = format_with("int8", {{"group", "8"}});
  cells.push_back(make_cell("h2o", 290, s, nlohmann::json::object(), coded));
  cells.push_back(streamed(cells.front()));
  check_device(make_stream<float>(s, 59, Look::clustered), cells);
}

TEST_CASE("the order of threads changes no bit of a replay", "[emulator][programs]") {
  const StreamShape s{70, 40, 8, 8, 2};
  const auto stream = make_stream<float>(s, 53, Look::clustered);
  const std::vector<Cell> cells = policies(s);
  const auto run = [&](emulator::Schedule schedule) {
    RunOptions options;
    options.device = open_heads([schedule] { return emulator::open_runtime(schedule); });
    options.save.kept = options.save.outputs = options.save.curves = true;
    return replay(stream, cells, options);
  };
  const RunResult first = run(emulator::Schedule::forward);
  for (const auto schedule : {emulator::Schedule::backward, emulator::Schedule::shuffled}) {
    const RunResult other = run(schedule);
    for (size_t i = 0; i < cells.size(); ++i) {
      INFO(cells[i].method().info.name << " " << params_of(cells[i]).dump());
      CHECK(same_bits(other.cells[i], first.cells[i]));
    }
  }
}

namespace {

// Keeps the last tokens, and breaks one rule or uses one rare feature.
struct RuleBreaker {
  static constexpr MethodInfo info{.name = "whim", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  enum class How {
    // In one step:
    bound,     // holds one token too many
    returned,  // brings an evicted token back
    nothing,   // makes the denominator zero
    infinite,  // makes the denominator infinite
    method,    // fails
    // In every step:
    heavy_row,   // one row weighs more in the denominator
    remembered,  // one row has weight 0
    twice,       // every token is in two rows
    own_numbers  // writes its state first in a step, and charges for it
  };
  static constexpr Hooks hooks{"append evict extra_bytes layout failure_text state"};
  int32_t how = 0, at = 50, budget = 0;
  std::span<double> state;

  static void declare(auto& d) { d.integer("how", &RuleBreaker::how, {0, 8}, "which"); }
  void resolve(const MethodContext& context) { budget = context.budget.tokens; }
  Layout layout(const MethodContext& context) const {
    return {.state_doubles = 64,
            .weights = true,
            .split = is(How::twice),
            .extra_rows = is(How::twice) ? context.tokens : 0};
  }
  KVR_FN bool is(How other) const { return how == int32_t(other); }
  KVR_FN void extra_bytes(ExtraBytes& c, const auto&) const {
    for (const double x : state) c.aux_bytes += is(How::own_numbers) ? int64_t(x) : 0;
  }
  static std::string failure_text(int32_t code, int32_t at) {
    return "code " + std::to_string(code) + " at " + std::to_string(at);
  }
  template <class Real>
  KVR_FN void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    if (is(How::own_numbers)) team.each(int32_t(state.size()), [&](int32_t i) { state[size_t(i)] = token.index; });
    if (token.index == at && is(How::returned))
      cache.push(team, Token<Real>(token.key, token.value, 0));  // the first evicted token
    cache.push(team, token);
    if (is(How::twice)) cache.push(team, token);
    if (token.index == at && (is(How::nothing) || is(How::infinite)))
      cache.weigh_rows(team, 0, cache.size(), [&](int32_t) {
        return RowWeights{1, is(How::nothing) ? 0 : double(INFINITY)};
      });
  }
  KVR_FN void evict(const Team auto& team, Cache auto& cache) {
    const int32_t t = cache.token(cache.size() - 1);
    if (t == at && is(How::method)) cache.fail(team, 3, 11);
    keep_ends(team, cache, 0, t == at && is(How::bound) ? budget + 1 : budget);
    if (is(How::heavy_row)) cache.weigh(team, 1, 1, 2);
    if (is(How::remembered)) cache.weigh(team, 1, 0, 0);
  }
};

}  // namespace

TEST_CASE("a device stops at a broken rule, with the message of the CPU", "[emulator]") {
  const Method whim(policy_table<RuleBreaker>(), {.emulated = emulator::start_policies<RuleBreaker, kPolicyThreads>});
  const StreamShape s{70, 40, 8, 8, 2};
  const auto stream = make_stream<float>(s, 54);
  std::vector<Cell> cells;
  for (int32_t how = 0; how <= int32_t(RuleBreaker::How::own_numbers); ++how)
    cells.push_back(changed(make_cell("window", 20, s), [&](kvreplay::Variant& v) {
      v.values = MethodValues(whim);
      v.values.set(*whim.parameter("how"), std::to_string(how));
    }));
  check_device(stream, cells);
  RunOptions options;
  options.device = open_heads([] { return emulator::open_runtime(emulator::Schedule::forward); });
  const RunResult result = replay(stream, cells, options);
  for (size_t i = 0; i < cells.size(); ++i) {
    CHECK(result.cells[i].ok == (i > size_t(RuleBreaker::How::method)));
    if (result.cells[i].ok) CHECK_FALSE(result.cells[i].on_cpu);
  }
  CHECK(result.cells[size_t(RuleBreaker::How::method)].error == "code 3 at 11");
}

TEST_CASE("cells that a device computed are marked, and no others", "[device][replay][programs]") {
  const StreamShape s;
  const auto stream = make_stream<float>(s, 42);
  RunOptions audit = on_device();
  audit.audit = true;
  const auto on_cpu = [&](const char* method, const nlohmann::json& params, const RunOptions& how) {
    CommonOptions common = default_options(method);
    return replay(stream, {make_cell(method, 24, s, params, common)}, how).only().on_cpu;
  };
  for (const auto& v : variants()) {
    INFO(v.label());
    const bool weighs_reads = v.entry().single.samples;  // devices do not support this
    CHECK(replay(stream, {cell_of(v, 24, s)}, on_device()).only().on_cpu == weighs_reads);
  }
  CHECK_FALSE(on_cpu("h2o", {{"variant", "hf_mask"}}, on_device()));
  CHECK(on_cpu("h2o", nlohmann::json::object(), audit));
  CHECK(on_cpu("h2o", nlohmann::json::object(), {}));
  CommonOptions kivi = default_options("h2o");
  kivi.row_format = format_with("kivi", {{"g", "8"}, {"R", "16"}});
  CHECK(replay(stream, {make_cell("h2o", 24, s, nlohmann::json::object(), kivi)}, on_device()).only().on_cpu);
}

TEST_CASE("portions of rows and tokens change no result", "[emulator][replay][many]") {
  const StreamShape s{220, 90, 8, 8, 2};  // more rows than a tile, and than two portions
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "streaming_llm", "subgen", "tova", "subgen_stream", "topk_oracle"})
    for (const int32_t budget : {20, 60})
      cells.push_back(make_cell(method, budget, s, with_test_defaults(method, {}), default_options(method)));
  cells.push_back(streamed(cells.front()));
  const auto stream = make_stream<float>(s, 43, Look::sinks);
  for (const QuerySelection queries : {QuerySelection{}, QuerySelection{QuerySelection::Kind::stride, 3}}) {
    const auto run = [&](Portion most) {
      RunOptions options;
      options.device = open_heads([] { return emulator::open_runtime(emulator::Schedule::forward); }, most);
      options.queries = queries;
      options.save.kept = options.save.outputs = options.save.curves = true;
      return replay(stream, cells, options);
    };
    const RunResult whole = run({}), parts = run({.rows = 64, .tokens = 16});
    for (size_t i = 0; i < cells.size(); ++i) {
      INFO(cells[i].method().info.name << " " << params_of(cells[i]).dump());
      CHECK(whole.cells[i].ok);
      CHECK(same_bits(parts.cells[i], whole.cells[i]));
    }
  }
  check_device(stream, cells);
}

TEST_CASE("kv heads that decide together share a device", "[device][replay]") {
  const StreamShape s;
  const HeadStream<double> layer = layer_of(make_stream<double>(s, 45), make_stream<double>(s, 46, Look::sinks));
  HeadStream<float> stream;
  stream.shape = layer.shape, stream.tokens = layer.tokens, stream.prompt = layer.prompt;
  const auto narrow = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
  stream.keys = narrow(layer.keys), stream.values = narrow(layer.values), stream.queries = narrow(layer.queries);
  stream.query_row = layer.query_row, stream.query_rows = layer.query_rows;
  stream.rule = {float(layer.rule.scale), float(layer.rule.softcap)};
  stream.positions = layer.positions, stream.max_value_norm = layer.max_value_norm;
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "window", "snapkv", "uniform"}) {
    CommonOptions options = default_options(method);
    options.gqa_level = GqaLevel::layer;
    StreamShape both = s;
    both.heads = 2 * s.heads;
    cells.push_back(make_cell(method, 24, both, nlohmann::json::object(), options));
  }
  check_device(stream, cells);
}

TEST_CASE("sink logits and a soft cap reach the device", "[device][replay]") {
  const StreamShape s;
  auto stream = make_stream<float>(s, 47);
  stream.sink_logits = {0.5f, -1.0f};
  stream.rule.softcap = 2;
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "tova", "streaming_llm", "snapkv", "uniform"})
    cells.push_back(make_cell(method, 24, s, nlohmann::json::object(), default_options(method)));
  check_device(stream, cells);
}

TEST_CASE("caches of different kinds and heads do not mix up their sums", "[device][replay]") {
  const StreamShape s;
  CommonOptions by_query = default_options("h2o");
  by_query.gqa_level = GqaLevel::query;
  std::vector<Cell> cells;
  for (const int32_t budget : {24, 200}) {  // at 200 h2o evicts nothing, and is a set like snapkv's
    cells.push_back(make_cell("h2o", budget, s, nlohmann::json::object(), by_query));
    cells.push_back(make_cell("snapkv", budget, s, nlohmann::json::object(), default_options("snapkv")));
    cells.push_back(make_cell("window", budget, s, nlohmann::json::object(), default_options("window")));
  }
  check_device(make_stream<float>(s, 48), cells);
}
