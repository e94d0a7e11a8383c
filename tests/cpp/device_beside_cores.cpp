#include "device_beside_cores.hpp"

#include "backend/devices.hpp"
#include "device_under_test.hpp"

namespace kvreplay::test {
namespace {

// Products of three keep 16 digits of a number: logits are off by about 1e-6, outputs by 1e-5 of their size.
// Where a block computes a cache's rows in float32, that stands between them and the exact rows.
constexpr double kSame = 1e-3, kGrade = 3e-5, kOutputs = 5e-5;

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
  CHECK(device.attends == cores.attends);
  CHECK(device.partial == cores.partial);
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

}  // namespace

RunOptions on_device() {
  static const OpenHeadDevice device = open_device(device_under_test());
  RunOptions options;
  options.device = device;
  return options;
}

void check_device(const HeadStream<float>& stream, const std::vector<Cell>& cells, RunOptions how) {
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

}  // namespace kvreplay::test
