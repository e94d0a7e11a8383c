#include "trace/trace_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "trace/h5_walk.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

class Files {
 public:
  void add(const h5::Node& node) {
    if (std::find(files_.begin(), files_.end(), node.file) == files_.end()) files_.push_back(node.file);
  }
  // Adds the file of a node and the files of its direct members.
  void add_with_members(const h5::Node& node) {
    add(node);
    for (const std::string& name : h5::members(node)) add(h5::open_child(node, name));
  }
  std::vector<fs::path> take() { return std::move(files_); }

 private:
  std::vector<fs::path> files_;
};

}  // namespace

std::vector<fs::path> files_of_trace(const fs::path& trace, const TraceScope& wanted) {
  const h5::Lock lock;
  try {
    Files files;
    const h5::Node root = h5::open_root(trace);
    const TraceScope scope = h5::text(root, "trace_id").value_or("").empty() ? TraceScope{} : wanted;
    files.add(root);
    const h5::Node prompts = h5::open_child(root, "prompts");
    for (const std::string& id : h5::members(prompts)) {
      if (!scope.holds(id)) continue;
      const h5::Node prompt = h5::open_child(prompts, id), layers = h5::open_child(prompt, "layers");
      files.add(prompt), files.add(layers);
      for (const std::string& name : h5::members(layers))
        if (scope.holds(std::atoi(name.c_str()))) files.add_with_members(h5::open_child(layers, name));
    }
    return files.take();
  } catch (const h5::Problem& problem) {
    throw TraceError(problem.what());
  }
}

}  // namespace kvreplay
