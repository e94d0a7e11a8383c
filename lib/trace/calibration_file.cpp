#include "trace/calibration_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/h5_array.hpp"
#include "trace/h5_file.hpp"
#include "trace/sandbox.hpp"
#include "trace/shape_checks.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCalibrateRemedy = "write it with kvreplay calibrate TRACE -o FILE, from a trace of this model";

std::string layer_group(int32_t layer) { return fmt::format("layers/{:03}", layer); }
int64_t pairs_of(const LayerInfo& layer) { return layer.rope ? int64_t(layer.rope->inv_freq.size()) : 0; }

h5::Node open_layer(const h5::Node& root, int32_t layer) {
  if (!h5::has_child(root, "layers")) h5::fail(root, "has no group /layers");
  const h5::Node layers = h5::open_child(root, "layers");
  const std::string name = fmt::format("{:03}", layer);
  if (layers.is_group() && h5::has_child(layers, name)) return h5::open_child(layers, name);
  h5::fail(layers, fmt::format("has no layer {}. It holds {}", name,
                               layers.is_group() ? join(h5::members(layers)) : std::string("none")));
}

h5::Array open_numbers(const h5::Node& group, const char* name, const std::vector<int64_t>& shape) {
  if (!h5::has_child(group, name)) h5::fail(group, fmt::format("has no dataset {}", name));
  h5::Array array = h5::open_array(group, name);
  expect_shape(array, shape);
  return array;
}

// Reads floating point numbers. An array with an extent of 0 may be missing.
std::vector<double> read_reals(const h5::Node& group, const char* name, const std::vector<int64_t>& shape,
                               bool may_be_negative = true) {
  for (const int64_t extent : shape)
    if (extent == 0) return {};
  const h5::Array array = open_numbers(group, name, shape);
  expect_floats(array, shape);
  std::vector<double> numbers(size_t(array.elements()));
  h5::read_box(array, H5T_NATIVE_DOUBLE, std::vector<int64_t>(shape.size(), 0), shape, numbers.data());
  for (size_t i = 0; i < numbers.size(); ++i)
    if (!std::isfinite(numbers[i]) || (!may_be_negative && numbers[i] < 0))
      h5::fail(array.node, fmt::format("holds {} at {}, which is no {}", numbers[i], i,
                                       may_be_negative ? "finite number" : "mean length"));
  return numbers;
}

// Reads one row per query head, which must name every channel exactly once.
std::vector<int32_t> read_ranking(const h5::Node& group, int64_t heads, int64_t dim) {
  const h5::Array array = open_numbers(group, "channel_rank", {heads, dim});
  const std::vector<int64_t> stored = h5::read_integers(array);
  std::vector<int32_t> ranking(stored.begin(), stored.end());
  std::vector<int64_t> row_of(size_t(dim), -1);  // row in which a channel was last named
  for (size_t i = 0; i < stored.size(); ++i) {
    const int64_t channel = stored[i], row = int64_t(i) / dim;
    if (channel < 0 || channel >= dim || row_of[size_t(channel)] == row)
      h5::fail(array.node, fmt::format("holds {} at [{}, {}], but each row must name the channels 0 to {} once",
                                       channel, row, int64_t(i) % dim, dim - 1));
    row_of[size_t(channel)] = row;
  }
  return ranking;
}

// Statistics of unlike rows would be compared without a word. A file that does not say which rows it left out is taken.
void expect_sinks(const h5::Node& root, int32_t wanted) {
  const auto held = h5::integer(root, "sinks", 0, int64_t{1} << 31);
  if (held && *held != wanted)
    h5::fail(root, fmt::format("has q_cov without the first {} rows of each prompt, and sinks is {}: set sinks to {}, "
                               "or add --sinks {}",
                               *held, wanted, *held, wanted));
}

CalibrationLayer read_layer(const h5::Node& root, const LayerInfo& layer, StatisticsNeeds needs) {
  const h5::Node group = open_layer(root, layer.layer);
  const int64_t heads = layer.q_heads, d = layer.head_dim, pairs = pairs_of(layer);
  CalibrationLayer read;
  if (needs.means) {
    read.q_mean = read_reals(group, "q_mean", {heads, pairs, 2});
    read.q_abs_mean = read_reals(group, "q_abs_mean", {heads, pairs}, false);
    read.q_rest_mean = read_reals(group, "q_rest_mean", {heads, d - 2 * pairs});
  }
  if (needs.directions) read.q_dir = read_reals(group, "q_dir", {layer.kv_heads, d});
  if (needs.channels) read.channel_rank = read_ranking(group, heads, d);
  if (needs.moments()) {
    expect_sinks(root, needs.moments_after);
    read.q_mean_full = read_reals(group, "q_mean_full", {heads, d});
    read.q_cov = read_reals(group, "q_cov", {heads, d, d});
  }
  return read;
}

CalibrationOrigin read_origin(const h5::Node& root) {
  const auto attribute = [&](const char* name) {
    const auto text = h5::text(root, name);
    if (!text) h5::fail(root, fmt::format("has no attribute {}, which names the source of the queries", name));
    return *text;
  };
  CalibrationOrigin origin;
  origin.trace_id = attribute("trace_id");
  std::istringstream prompts(attribute("prompts"));
  for (std::string id; std::getline(prompts, id, ',');) origin.prompts.push_back(id);
  origin.count = h5::integer(root, "count", 0, int64_t{1} << 53).value_or(0);
  return origin;
}

template <class Work>
auto told(Work work) {
  const h5::Lock lock;
  try {
    return work();
  } catch (const h5::Problem& problem) {
    throw ConfigError(fmt::format("{}: {}", problem.what(), kCalibrateRemedy));
  }
}

}  // namespace

CalibrationOrigin read_calibration_origin(const fs::path& file) {
  return told([&] { return read_origin(h5::open_root(file)); });
}

CalibrationLayer read_calibration_layer(const fs::path& file, const LayerInfo& layer, StatisticsNeeds needs) {
  return told([&] { return read_layer(h5::open_root(file), layer, needs); });
}

void write_calibration_file(const fs::path& file, const CalibrationOrigin& origin,
                            const std::vector<std::pair<LayerInfo, CalibrationLayer>>& layers) {
  H5Output out(file);
  out.attribute("", "schema", int64_t{1});
  out.attribute("", "trace_id", origin.trace_id);
  out.attribute("", "prompts", join(origin.prompts, ","));
  out.attribute("", "count", origin.count);
  out.attribute("", "sinks", int64_t{origin.sinks});
  for (const auto& [layer, all] : layers) {
    const int64_t heads = layer.q_heads, d = layer.head_dim, pairs = pairs_of(layer);
    const std::string group = layer_group(layer.layer) + "/";
    const auto put = [&](const char* name, const auto& numbers, const std::vector<int64_t>& shape) {
      out.write(group + name, std::span(numbers), shape);
    };
    put("q_mean", all.q_mean, {heads, pairs, 2});
    put("q_abs_mean", all.q_abs_mean, {heads, pairs});
    put("q_rest_mean", all.q_rest_mean, {heads, d - 2 * pairs});
    put("q_dir", all.q_dir, {layer.kv_heads, d});
    put("channel_rank", all.channel_rank, {heads, d});
    put("q_mean_full", all.q_mean_full, {heads, d});
    put("q_cov", all.q_cov, {heads, d, d});
  }
  out.close();
}

std::string calibration_file_problem(const fs::path& file, const LayerInfo& layer, StatisticsNeeds needs) {
  const auto work = [&] {
    (void)read_calibration_origin(file);
    (void)read_calibration_layer(file, layer, needs);
  };
  const SandboxedRead seen = read_sandboxed(work);
  if (seen.crash.empty()) return seen.error;
  return fmt::format("{}: is damaged: reading it ends with \"{}\": {}", file.string(), seen.crash, kCalibrateRemedy);
}

}  // namespace kvreplay
