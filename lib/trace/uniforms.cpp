#include "trace/uniforms.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

std::string dataset_of(const std::filesystem::path& file, const std::string& group) {
  for (const std::string& prefix : {group, std::string()})
    for (const char* name : {"u", "U", "UD", "UM", "uniforms"})
      if (has_dataset(file, prefix + name)) return prefix + name;
  throw ConfigError(fmt::format("{}: no dataset u, U, UD, UM or uniforms, neither under /{} nor at the root",
                                file.string(), group));
}

}  // namespace

InjectedUniforms read_uniforms(const std::filesystem::path& file, const std::string& prompt, int32_t layer,
                               int32_t kv_head, int64_t needed) {
  const std::string name = dataset_of(file, fmt::format("{}/{:03d}/{}/", prompt, layer, kv_head));
  std::vector<int64_t> shape;
  InjectedUniforms u{read_dataset(file, name, shape), shape.empty() ? 1 : shape.back()};
  if (int64_t(u.values.size()) < needed)
    throw ConfigError(fmt::format("{}: /{} holds {} numbers, but {} are drawn", file.string(), name,
                                  u.values.size(), needed));
  for (size_t i = 0; i < u.values.size(); ++i)
    if (!(u.values[i] >= 0 && u.values[i] < 1))
      throw ConfigError(fmt::format("{}: /{} holds {} at {}, but uniforms lie in [0, 1)", file.string(), name,
                                    u.values[i], i));
  return u;
}

}  // namespace kvreplay
