#include "backend/devices.hpp"
#include "property_exceptions.hpp"

// A device gives what the cores give: the same kept tokens, and every measure within 1e-3 of its size
// (docs/cuda.md). Device code runs on the CPU here, thread by thread.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

// Products of three keep 16 digits of a number: logits are off by about 1e-6, outputs by 1e-5 of their size.
constexpr double kSame = 1e-3, kGrade = 1e-5, kOutputs = 5e-5;
constexpr int32_t kBudgets[] = {24, 31, 52, 200};

RunOptions on_device() {
  static const OpenHeadDevice emulated = open_device("emulated");
  RunOptions options;
  options.device = emulated;
  return options;
}

void same(const char* what, const std::optional<double>& a, const std::optional<double>& b) {
  INFO(what);
  REQUIRE(a.has_value() == b.has_value());
  if (!a) return;
  CAPTURE(*a, *b);
  CHECK(std::abs(*a - *b) <= kSame * std::abs(*b) + kGrade);
}

// Every column of a result that is a number.
void same(const CellResult& device, const CellResult& cores) {
  REQUIRE(device.ok == cores.ok);
  CHECK(device.error == cores.error);
  if (!cores.ok) return;
  CHECK(device.kept.flat == cores.kept.flat);
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
  CHECK(m.n_queries == n.n_queries);
  CHECK(m.mean_attended_tokens == n.mean_attended_tokens);
  CHECK(m.peak_attended_tokens == n.peak_attended_tokens);
  CHECK(m.total_bytes == n.total_bytes);
  CHECK(m.n_evictions == n.n_evictions);
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

TEST_CASE("what a device computed is marked, and only that", "[device][replay]") {
  const StreamShape s;
  const auto stream = make_stream<float>(s, 42);
  RunOptions audit = on_device();
  audit.audit = true;
  const auto by_cores = [&](const char* method, const nlohmann::json& params, const RunOptions& options) {
    Axes axes = default_axes(method);
    return replay(stream, {make_cell(method, 24, s, params, axes)}, options).only().by_cores;
  };
  for (const char* method : {"h2o", "tova", "window", "snapkv", "uniform", "exact"})
    CHECK_FALSE(by_cores(method, nlohmann::json::object(), on_device()));
  CHECK(by_cores("quest", nlohmann::json::object(), on_device()));
  CHECK(by_cores("h2o", {{"variant", "hf_mask"}}, on_device()));
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
