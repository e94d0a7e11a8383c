#include "device/beside_cores.hpp"
#include "device/devices.hpp"
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

// Cells of every kind of cache, those that decide on the device, and those that cores replay.
std::vector<Cell> of_every_kind(const StreamShape& s) {
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
  for (const size_t i : {size_t{4}, size_t{6}}) cells.push_back(streamed(cells[i]));
  for (const char* method : {"window", "knorm"})
    cells.push_back(streamed(make_cell(
        method, 24, s, with_test_defaults(method, {}),
        [] {
          CommonOptions options = default_options("window");
          options.order = Order::evict_then_attend;
          return options;
        }(),
        3)));
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

TEST_CASE("a device and cores share the work of a run", "[device][replay]") {
  const StreamShape s;
  const std::vector<Cell> cells = of_every_kind(s);
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

TEST_CASE("the order of threads changes no bit of a replay", "[emulator]") {
  const StreamShape s{70, 40, 8, 8, 2};
  const auto stream = make_stream<float>(s, 53, Look::clustered);
  const std::vector<Cell> cells = of_every_kind(s);
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

TEST_CASE("cells that a device computed are marked, and no others", "[device][replay]") {
  const StreamShape s;
  const auto stream = make_stream<float>(s, 42);
  RunOptions audit = on_device();
  audit.audit = true;
  const auto on_cpu = [&](const char* method, const nlohmann::json& params, const RunOptions& how) {
    CommonOptions common = default_options(method);
    return replay(stream, {make_cell(method, 24, s, params, common)}, how).only().on_cpu;
  };
  const nlohmann::json none = nlohmann::json::object();
  for (const char* method : {"h2o", "h2o_heavy", "tova", "scissorhands", "keyformer", "exact", "window", "uniform"}) {
    INFO(method);
    CHECK_FALSE(on_cpu(method, none, on_device()));
  }
  CHECK_FALSE(on_cpu("snapkv", {{"window", 6}}, on_device()));
  CHECK_FALSE(on_cpu("h2o", {{"score_norm", "mean"}}, on_device()));
  for (const char* method : {"buzz", "topk_oracle", "wildcat"}) {
    INFO(method);
    CHECK(on_cpu(method, with_test_defaults(method, none), on_device()));
  }
  CHECK(on_cpu("h2o", {{"variant", "hf_mask"}}, on_device()));
  CHECK(on_cpu("h2o", none, audit));
  CHECK(on_cpu("h2o", none, {}));
  CommonOptions kivi = default_options("h2o");
  kivi.row_format = format_with("kivi", {{"g", "8"}, {"R", "16"}});
  CHECK(replay(stream, {make_cell("h2o", 24, s, none, kivi)}, on_device()).only().on_cpu);
}

TEST_CASE("portions of rows change no result", "[emulator][replay][many]") {
  const StreamShape s{220, 90, 8, 8, 2};  // more rows than a tile, and than two portions
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "streaming_llm", "subgen", "tova", "scissorhands", "keyformer"})
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
    const RunResult whole = run({}), parts = run({.rows = 64});
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
