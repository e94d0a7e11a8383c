#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>

#include "base/errors.hpp"
#include "trace/content_id.hpp"
#include "trace/h5_array.hpp"
#include "trace/sandbox.hpp"
#include "trace/trace.hpp"
#include "trace/trace_metadata.hpp"

// What trace files say of themselves, without tensors.

namespace kvreplay {
namespace fs = std::filesystem;
namespace {

// Parts of files that a child process has read: a version of a file, and a prompt in it or "" for its names.
using Part = std::tuple<dev_t, ino_t, off_t, time_t, long, std::string>;
std::set<Part>& tried_parts() {  // under the lock
  static std::set<Part> parts;
  return parts;
}
Part part_of(const fs::path& path, const std::string& prompt) {
  struct stat found {};
  ::stat(path.c_str(), &found);  // opening it says why this fails
  return {found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec, prompt};
}

PromptInfo read_one_layer(const h5::Node& root, const std::string& prompt, int32_t layer) {
  PromptInfo info =
      read_prompt(root, h5::open_path(root, "prompts/" + prompt), prompt, {std::nullopt, std::vector{layer}});
  if (info.layers.empty()) h5::fail(root.file.string(), fmt::format("prompt {} holds no layer {}", prompt, layer));
  return info;
}

// The prompt's layers that lie in this file, ascending.
std::vector<int32_t> layers_inside(const h5::Node& root, const std::string& prompt) {
  const h5::Node layers = h5::open_path(root, "prompts/" + prompt + "/layers");
  std::vector<int32_t> inside;
  for (const std::string& name : h5::members(layers))
    if (h5::is_inside(layers, name)) inside.push_back(std::atoi(name.c_str()));
  return inside;
}

// Reads all layers inside the file; what is wrong with one is for its reader.
void try_layers_inside(const h5::Node& root, const std::string& prompt) {
  for (const int32_t layer : layers_inside(root, prompt)) try {
      read_one_layer(root, prompt, layer);
    } catch (const h5::Problem&) {
    }
}

}  // namespace

void check_trace_name(const fs::path& path) {
  std::error_code error;
  if (path.extension() == ".part")
    throw TraceError(path.string() +
                     ": is an unfinished dump (.part). Finish it with kvreplay record --resume, or dump it again");
  if (!fs::exists(path, error) && fs::exists(path.string() + ".part", error))
    throw TraceError(path.string() + ": no such file, but there is an unfinished dump " + path.string() +
                     ".part. Finish it with kvreplay record --resume");
}

TraceInfo read_names(const fs::path& path) {
  check_trace_name(path);
  const auto read = [&](const h5::Node& root) {
    return read_info(root, path, {std::vector<std::string>{}, std::nullopt});
  };
  return h5::reading([&] {
    const bool tried = tried_parts().contains(part_of(path, ""));
    if (!tried)
      try_in_child(path, [&] {
        const h5::Node root = h5::open_root(path);
        try_layers_inside(root, read(root).prompts.front().id);
      });
    TraceInfo info = read(h5::open_root(path));
    if (!tried) tried_parts().insert({part_of(path, ""), part_of(path, info.prompts.front().id)});
    return info;
  });
}

PromptInfo read_prompt_info(const fs::path& path, const std::string& prompt, int32_t layer) {
  return h5::reading([&] {
    const Part part = part_of(path, prompt);
    const auto inside = [&] { return std::ranges::binary_search(layers_inside(h5::open_root(path), prompt), layer); };
    if (!tried_parts().contains(part) || !inside())
      try_in_child(path, [&] {
        const h5::Node root = h5::open_root(path);
        read_one_layer(root, prompt, layer);
        try_layers_inside(root, prompt);
      });
    tried_parts().insert(part);
    return read_one_layer(h5::open_root(path), prompt, layer);
  });
}

std::string written_trace_id(const fs::path& path) {
  return h5::reading([&] {
    const h5::Node root = h5::open_root(path);
    return content_id(root, read_info(root, path, {}),
                      [](const h5::Array& array) { return h5::text(array.node, "sha256").value_or(""); });
  });
}

}  // namespace kvreplay
