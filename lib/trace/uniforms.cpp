#include "trace/uniforms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

std::string dataset_of(const std::filesystem::path& file, const std::string& group,
                       const std::vector<std::string>& names) {
  for (const std::string& prefix : {group, std::string()})
    for (const std::string& name : names)
      if (has_dataset(file, prefix + name)) return prefix + name;
  throw ConfigError(fmt::format("{}: no dataset {}, neither under /{} nor at the root", file.string(),
                                fmt::join(names, " or "), group));
}

// Extents [rounds, positions, slots] of a stored array. Leading extents of 1 may be missing, and all rounds may lie in
// one row.
std::array<int64_t, 3> extents(const std::vector<int64_t>& shape, const UniformsRequest& request) {
  std::vector<int64_t> all = shape;
  const bool has_slots = request.slots > 0;
  const int64_t one_round = request.positions * std::max<int64_t>(1, request.slots);
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  // One row of numbers may be stored in any shape.
  if (request.rounds == 1 && !has_slots && count == request.positions) return {1, count, 1};
  if (shape.size() == 1 && request.rounds > 1 && one_round > 0)
    return {shape[0] / one_round, request.positions, std::max<int64_t>(1, request.slots)};
  if (!has_slots) all.push_back(1);
  while (all.size() < 3) all.insert(all.begin(), 1);
  return {all[all.size() - 3], all[all.size() - 2], all.back()};
}

}  // namespace

InjectedUniforms read_uniforms(const std::filesystem::path& file, const std::string& prompt, int32_t layer,
                               int32_t kv_head, const UniformsRequest& request) {
  const std::string name = dataset_of(file, fmt::format("{}/{:03d}/{}/", prompt, layer, kv_head), request.names);
  std::vector<int64_t> shape;
  InjectedUniforms u{read_dataset(file, name, shape), 0, 1};
  const auto [rounds, positions, slots] = extents(shape, request);
  u.positions = positions, u.slots = slots;
  if (rounds < request.rounds || positions < request.positions || slots < request.slots)
    throw ConfigError(
        fmt::format("{}: /{} has the extents {} x {} x {} (rounds, positions, slots), but {} x {} x {} "
                    "are drawn",
                    file.string(), name, rounds, positions, slots, request.rounds, request.positions, request.slots));
  for (size_t i = 0; i < u.values.size(); ++i)
    if (!(u.values[i] >= 0 && u.values[i] < 1))
      throw ConfigError(
          fmt::format("{}: /{} holds {} at {}, but uniforms lie in [0, 1)", file.string(), name, u.values[i], i));
  return u;
}

RowUniforms read_row_uniforms(const std::filesystem::path& file, const RowUniformCounts& counts) {
  const auto read = [&](const char* name, int64_t count) {
    return count == 0 ? std::vector<double>{} : read_uniforms(file, "", 0, 0, {{name}, 1, count, 0}).values;
  };
  RowUniforms u;
  u.signs = read("signs", counts.signs), u.rotation = read("rotation", counts.rotation);
  u.sketch = read("sketch", counts.sketch);
  return u;
}

}  // namespace kvreplay
