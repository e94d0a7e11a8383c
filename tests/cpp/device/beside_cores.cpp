#include "device/beside_cores.hpp"

#include "device/devices.hpp"
#include "device/under_test.hpp"

namespace kvreplay::test {
namespace {

// Three products keep 16 binary digits of a number: logits are off by about 1e-6, outputs by 1e-5 of their size. If a
// block computes a cache's rows in float32, this error separates them from the exact rows.
constexpr double kSame = 1e-3, kGrade = 3e-5, kOutputs = 5e-5;
// In the row with the worst normaliser the errors of the logits add up.
constexpr double kWorstNormaliser = 1e-4;

// Sizes and counts are equal, other numbers agree within a tolerance.
void same(const MetricInfo& metric, const std::optional<double>& a, const std::optional<double>& b) {
  INFO(metric.name);
  REQUIRE(a.has_value() == b.has_value());
  if (!a) return;
  const std::string unit = metric.unit;
  CAPTURE(*a, *b);
  const double grade = std::string(metric.name) == "partition_err_max" ? kWorstNormaliser : kGrade;
  if (unit == "1" || unit == "value" || unit == "nats") CHECK(std::abs(*a - *b) <= kSame * std::abs(*b) + grade);
  else CHECK(*a == *b);
}

// A nearly exact cache has projections that are only rounding; outputs and gradients are about 1.
void check_projections(const std::vector<float>& device, const std::vector<float>& cores) {
  REQUIRE(device.size() == cores.size());
  double furthest = 0;
  for (size_t i = 0; i < cores.size(); ++i)
    furthest = std::max(furthest, std::abs(double(device[i]) - double(cores[i])) / (1 + std::abs(double(cores[i]))));
  CHECK(furthest < kSame);
}

// Compares every number of a result.
void same(const CellResult& device, const CellResult& cores) {
  REQUIRE(device.ok == cores.ok);
  CHECK(device.error == cores.error);
  if (!cores.ok) return;
  CHECK(device.kept.flat == cores.kept.flat);
  CHECK(device.kept.off == cores.kept.off);
  CHECK(device.attended.flat == cores.attended.flat);
  CHECK(device.attended.off == cores.attended.off);
  CHECK(device.attends == cores.attends);
  CHECK(device.partial == cores.partial);
  CHECK(relative_difference(device.num, cores.num) < kGrade);
  CHECK(relative_difference(device.den, cores.den) < kGrade);
  CHECK(device.rows == cores.rows);
  CHECK(relative_difference(device.out, cores.out) < kOutputs);
  check_projections(device.projections, cores.projections);
  CHECK(device.n_queries == cores.n_queries);
  const Measured &m = device.measures, &n = cores.measures;
  for (size_t i = 0; i < std::size(kMetrics); ++i) same(kMetrics[i], m.all()[i], n.all()[i]);
  REQUIRE(m.extras.size() == n.extras.size());
  for (const auto& [name, value] : n.extras) same({name.c_str(), "1", ""}, m.extras.at(name), value);
}

}  // namespace

RunOptions on_device() {
  static const OpenHeadDevice device = open_device(device_under_test());
  RunOptions options;
  options.device = device;
  return options;
}

void check_device(const HeadStream<float>& stream, const std::vector<Cell>& cells, RunOptions how) {
  RunOptions options = on_device();
  how.save.kept = how.save.outputs = how.save.projections = true;
  options.save = how.save, options.queries = how.queries, options.wanted = how.wanted;
  const RunResult device = replay(stream, cells, options), cores = replay(stream, cells, how);
  REQUIRE(device.cells.size() == cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    INFO(cells[i].method().info.name << " " << params_of(cells[i]).dump());
    same(device.cells[i], cores.cells[i]);
  }
}

bool same_bits(const CellResult& a, const CellResult& b) {
  return a.ok == b.ok && a.error == b.error && a.kept.flat == b.kept.flat && a.out == b.out && a.rel_err == b.rel_err &&
         a.measures.extras == b.measures.extras;
}

}  // namespace kvreplay::test
