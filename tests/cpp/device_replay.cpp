#include "backend/devices.hpp"
#include "backend/emulator/emulated_chain.hpp"
#include "backend/emulator/emulated_runtime.hpp"
#include "device_under_test.hpp"
#include "property_exceptions.hpp"
#include "replay/make_method.hpp"

// A device gives what the cores give: the same kept tokens, and every measure within 1e-3 of its size
// (docs/cuda.md).

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Products of three keep 16 digits of a number: logits are off by about 1e-6, outputs by 1e-5 of their size.
// Where a block computes a cache's rows in float32, that stands between them and the exact rows.
constexpr double kSame = 1e-3, kGrade = 3e-5, kOutputs = 5e-5;
constexpr int32_t kBudgets[] = {24, 31, 52, 200};

RunOptions on_device() {
  static const OpenHeadDevice device = open_device(device_under_test());
  RunOptions options;
  options.device = device;
  return options;
}

void same(const char* what, const std::optional<double>& a, const std::optional<double>& b) {
  INFO(what);
  REQUIRE(a.has_value() == b.has_value());
  if (!a) return;
  CAPTURE(*a, *b);
  CHECK(std::abs(*a - *b) <= kSame * std::abs(*b) + kGrade);
}

template <class T>
void equal(const char* what, const T& a, const T& b) {
  INFO(what);
  CHECK(a == b);
}

// Every column of a result that is a number.
void same(const CellResult& device, const CellResult& cores) {
  REQUIRE(device.ok == cores.ok);
  CHECK(device.error == cores.error);
  if (!cores.ok) return;
  CHECK(device.kept.flat == cores.kept.flat);
  CHECK(device.kept.off == cores.kept.off);
  CHECK(device.attended.flat == cores.attended.flat);
  CHECK(device.attended.off == cores.attended.off);
  CHECK(relative_difference(device.num, cores.num) < kGrade);
  CHECK(relative_difference(device.den, cores.den) < kGrade);
  CHECK(device.rows == cores.rows);
  CHECK(relative_difference(device.out, cores.out) < kOutputs);
  const CellMeasures &m = device.measures, &n = cores.measures;
#define SAME(column) same(#column, m.column, n.column)
  SAME(rel_err_out_mean), SAME(rel_err_out_p50), SAME(rel_err_out_p95), SAME(rel_err_out_max);
  SAME(rel_err_fro), SAME(cosine_mean), SAME(rel_err_clamped), SAME(rmse), SAME(rel_err_prefix_mean);
  SAME(rel_err_set_mean), SAME(rel_err_numerator_mean), SAME(rel_err_normaliser_mean);
  SAME(eps_spectral_mean), SAME(eps_frobenius_mean), SAME(eps_additive_mean), SAME(bound_slack);
  SAME(partition_err_mean), SAME(log_partition_err_mean), SAME(kept_mass_mean), SAME(kept_mass_min);
  SAME(mass_recall), SAME(mass_recall_min), SAME(index_recall), SAME(density_mean);
  SAME(missed_gap_mean), SAME(mass_bound_mean);
#undef SAME
#define EQUAL(column) equal(#column, m.column, n.column)
  EQUAL(n_queries), EQUAL(peak_kept_tokens), EQUAL(mean_kept_tokens), EQUAL(peak_attended_tokens);
  EQUAL(mean_attended_tokens), EQUAL(n_evictions), EQUAL(median_evicted_age_tokens), EQUAL(n_quantised);
  EQUAL(total_bytes), EQUAL(peak_bytes), EQUAL(aux_bytes), EQUAL(final_bytes), EQUAL(mean_bytes);
  EQUAL(read_bytes_per_step), EQUAL(key_floats), EQUAL(value_floats), EQUAL(weight_floats);
  EQUAL(score_bytes), EQUAL(sketch_bytes), EQUAL(index_bytes);
#undef EQUAL
  REQUIRE(m.extras.size() == n.extras.size());
  for (const auto& [name, value] : n.extras) same(name.c_str(), m.extras.at(name), value);
}

// To the last bit.
bool same_bits(const CellResult& a, const CellResult& b) {
  return a.ok == b.ok && a.error == b.error && a.kept.flat == b.kept.flat && a.out == b.out &&
         a.rel_err == b.rel_err && a.measures.extras == b.measures.extras;
}

// Of every kind of cache that a device replays by the text of its policy.
std::vector<Cell> chains(const StreamShape& s) {
  std::vector<Cell> cells;
  const auto add = [&](const char* method, const nlohmann::json& params, void (*change)(Axes&) = nullptr) {
    Axes axes = default_axes(method);
    if (change != nullptr) change(axes);
    nlohmann::json all = params_of(method);
    if (all.is_null()) all = nlohmann::json::object();
    if (!params.empty()) all.update(params);
    cells.push_back(make_cell(method, 24, s, all, axes, 3));
  };
  add("h2o", {{"variant", "hf_mask"}});
  add("h2o", {{"variant", "alg1"}});
  add("h2o", {}, [](Axes& a) { a.order = Order::evict_then_attend; });
  add("keyformer", {}, [](Axes& a) { a.gqa_aggregate = Aggregate::max; });
  add("scissorhands", {});
  add("streaming_llm", {});
  add("buzz", {}, [](Axes& a) { a.gqa_level = GqaLevel::query; });
  add("quest", {{"page", 4}});
  add("topk_oracle", {{"per_head", true}});
  add("topk_oracle", {{"variant", "topk_plus_current"}, {"renormalise", false}});
  add("subgen_stream", {});
  add("balancekv_stream", {});
  add("qjl", {});
  add("wildcat", {});
  add("attention_matching", {});
  add("exact", {{"log_n", "context"}});
  add("snapkv", {{"window", 6}}, [](Axes& a) { a.positions = Positions::cache; });
  cells.push_back(streamed(cells[4]));
  return cells;
}

void check_device(const HeadStream<float>& stream, const std::vector<Cell>& cells, RunOptions how = {}) {
  RunOptions options = on_device();
  how.save.kept = how.save.outputs = true;
  options.save = how.save, options.queries = how.queries, options.wanted = how.wanted;
  const RunResult device = replay(stream, cells, options), cores = replay(stream, cells, how);
  REQUIRE(device.cells.size() == cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    INFO(cells[i].method->info.name << " " << cells[i].params.dump());
    same(device.cells[i], cores.cells[i]);
  }
}

}  // namespace

TEST_CASE("a device gives what the cores give, for every method at several budgets",
          "[device][replay][many]") {
  const StreamShape s{120, 70, 8, 8, 2};
  for (const Look look : {Look::gaussian, Look::sinks, Look::clustered})
    for (const Variant& v : variants()) {
      INFO(v.label());
      std::vector<Cell> cells;
      for (const int32_t budget : kBudgets) cells.push_back(cell_of(v, budget, s));
      check_device(make_stream<float>(s, 41, look), cells);
    }
}

TEST_CASE("a device replays any cache by the text of its policy", "[device][replay][programs]") {
  const StreamShape s;
  const std::vector<Cell> cells = chains(s);
  for (const Look look : {Look::gaussian, Look::zero_rows})
    check_device(make_stream<float>(s, 51, look), cells);
  auto stream = make_stream<float>(s, 52, Look::sinks);
  stream.sink_logits = {0.5f, -1.0f};
  stream.rule.softcap = 3;
  RunOptions some;
  some.queries = {QuerySelection::Kind::stride, 3};
  check_device(stream, cells, some);
  some.wanted.set_error = some.wanted.prefix_error = some.wanted.recalls = false;
  check_device(stream, cells, some);
  stream.window = 40;
  check_device(stream, cells);
}

TEST_CASE("the order in which threads run shows in no bit of a replay", "[emulator][programs]") {
  const StreamShape s{70, 40, 8, 8, 2};
  const auto stream = make_stream<float>(s, 53, Look::clustered);
  const std::vector<Cell> cells = chains(s);
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
      INFO(cells[i].method->info.name << " " << cells[i].params.dump());
      CHECK(same_bits(other.cells[i], first.cells[i]));
    }
  }
}

namespace {

// The last tokens, with a whim.
struct Whim {
  static constexpr MethodInfo info{
      .name = "whim", .title = "", .source = "", .tier = 3, .memory = "", .deviation = ""};
  enum class How {
    // At one step:
    bound,     // holds a token too many
    returned,  // brings one back
    nothing,   // leaves nothing in the denominator
    infinite,  // or too much
    method,    // says that it cannot go on
    // At every step:
    heavy_row,   // one row weighs more in the denominator
    remembered,  // one row counts for nothing
    twice,       // every token stands in two rows
    own_numbers  // writes them first thing, and charges for them
  };
  int32_t how = 0, at = 50, budget = 0;
  std::span<double> state;

  static void declare(auto& d) { d.integer("how", &Whim::how, {0, 8}, "which"); }
  void resolve(const Scene& scene) { budget = scene.budget; }
  Layout layout(const Scene& scene) const {
    return {.state_doubles = 64,
            .weights = true,
            .split = is(How::twice),
            .extra_rows = is(How::twice) ? scene.tokens : 0};
  }
  KVR_FN bool is(How other) const { return how == int32_t(other); }
  KVR_FN void charge(Charge& c, const auto&) const {
    for (const double x : state) c.aux_bytes += is(How::own_numbers) ? int64_t(x) : 0;
  }
  static std::string failure_text(int32_t code, int32_t at) {
    return "code " + std::to_string(code) + " at " + std::to_string(at);
  }
  template <class Real>
  KVR_FN void append(const Team auto& team, const Token<Real>& token, BasicCache<Real>& cache) {
    if (is(How::own_numbers))
      team.each(int32_t(state.size()), [&](int32_t i) { state[size_t(i)] = token.index; });
    if (token.index == at && is(How::returned))
      cache.push(team, Token<Real>(token.key, token.value, 0));  // the first that left
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

TEST_CASE("a device stops where a promise is broken, and says what the cores say", "[emulator]") {
  Method whim = make_method<Whim>();
  whim.programs.emulated = emulator::start_chains<Whim>;
  const StreamShape s{70, 40, 8, 8, 2};
  const auto stream = make_stream<float>(s, 54);
  std::vector<Cell> cells;
  for (int32_t how = 0; how <= int32_t(Whim::How::own_numbers); ++how) {
    Cell cell = make_cell("window", 20, s);
    cell.method = &whim;
    cell.params = {{"how", how}};
    cells.push_back(cell);
  }
  check_device(stream, cells);
  RunOptions options;
  options.device = open_heads([] { return emulator::open_runtime(emulator::Schedule::forward); });
  const RunResult result = replay(stream, cells, options);
  for (size_t i = 0; i < cells.size(); ++i) {
    CHECK(result.cells[i].ok == (i > size_t(Whim::How::method)));
    if (result.cells[i].ok) CHECK_FALSE(result.cells[i].by_cores);
  }
  CHECK(result.cells[size_t(Whim::How::method)].error == "code 3 at 11");
}

TEST_CASE("what a device computed is marked, and only that", "[device][replay][programs]") {
  const StreamShape s;
  const auto stream = make_stream<float>(s, 42);
  RunOptions audit = on_device();
  audit.audit = true;
  const auto by_cores = [&](const char* method, const nlohmann::json& params, const RunOptions& options) {
    Axes axes = default_axes(method);
    return replay(stream, {make_cell(method, 24, s, params, axes)}, options).only().by_cores;
  };
  for (const Variant& v : variants()) {
    INFO(v.label());
    CHECK_FALSE(replay(stream, {cell_of(v, 24, s)}, on_device()).only().by_cores);
  }
  CHECK_FALSE(by_cores("h2o", {{"variant", "hf_mask"}}, on_device()));
  CHECK(by_cores("h2o", nlohmann::json::object(), audit));
  CHECK(by_cores("h2o", nlohmann::json::object(), {}));
}

TEST_CASE("rows come in portions that change nothing", "[device][replay]") {
  const StreamShape s{400, 90, 8, 8, 2};  // more rows than a tile
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "streaming_llm", "subgen"})
    for (const int32_t budget : {20, 60})
      cells.push_back(make_cell(method, budget, s, nlohmann::json::object(), default_axes(method)));
  check_device(make_stream<float>(s, 43, Look::sinks), cells);
  RunOptions some;
  some.queries = {QuerySelection::Kind::stride, 3};
  check_device(make_stream<float>(s, 44, Look::clustered), cells, some);
}

TEST_CASE("kv heads that decide together share a device", "[device][replay]") {
  const StreamShape s;
  const HeadStream<double> layer =
      layer_of(make_stream<double>(s, 45), make_stream<double>(s, 46, Look::sinks));
  HeadStream<float> stream;
  stream.shape = layer.shape, stream.tokens = layer.tokens, stream.prompt = layer.prompt;
  const auto narrow = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
  stream.keys = narrow(layer.keys), stream.values = narrow(layer.values),
  stream.queries = narrow(layer.queries);
  stream.query_row = layer.query_row, stream.query_rows = layer.query_rows;
  stream.rule = {float(layer.rule.scale), float(layer.rule.softcap)};
  stream.positions = layer.positions, stream.max_value_norm = layer.max_value_norm;
  std::vector<Cell> cells;
  for (const char* method : {"h2o", "window", "snapkv", "uniform"}) {
    Axes axes = default_axes(method);
    axes.gqa_level = GqaLevel::layer;
    StreamShape both = s;
    both.heads = 2 * s.heads;
    cells.push_back(make_cell(method, 24, both, nlohmann::json::object(), axes));
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
    cells.push_back(make_cell(method, 24, s, nlohmann::json::object(), default_axes(method)));
  check_device(stream, cells);
}

TEST_CASE("caches of every kind and of other heads do not take each other's sums", "[device][replay]") {
  const StreamShape s;
  Axes by_query = default_axes("h2o");
  by_query.gqa_level = GqaLevel::query;
  std::vector<Cell> cells;
  for (const int32_t budget : {24, 200}) {  // at 200 h2o evicts nobody, and is a set like snapkv's
    cells.push_back(make_cell("h2o", budget, s, nlohmann::json::object(), by_query));
    cells.push_back(make_cell("snapkv", budget, s, nlohmann::json::object(), default_axes("snapkv")));
    cells.push_back(make_cell("window", budget, s, nlohmann::json::object(), default_axes("window")));
  }
  check_device(make_stream<float>(s, 48), cells);
}
