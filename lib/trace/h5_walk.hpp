#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "trace/h5_raii.hpp"

// Walks through an HDF5 file that may be hostile. This code follows links itself, which bounds them and keeps them
// inside the file's folder.

namespace kvreplay::h5 {

// A problem with a file; the message names file and object. Callers rethrow it as their own type of error.
struct Problem : std::runtime_error {
  explicit Problem(const std::string& what) : std::runtime_error(single_line(what)) {}
};

// Runs a read under the lock and turns a Problem into a TraceError.
template <class Work>
auto reading(const Work& work) {
  const Lock lock;
  try {
    return work();
  } catch (const Problem& problem) {
    throw TraceError(problem.what());
  }
}

// A group or a dataset, with the names needed for messages.
struct Node {
  Handle id;
  std::filesystem::path file;  // file that holds the node, after external links
  std::string name;            // path from the root of the file that the user opened

  std::string where() const;  // "FILE: NAME"
  bool is_group() const;
  bool is_dataset() const;
};

[[noreturn]] void fail(const std::string& where, const std::string& what);
[[noreturn]] void fail(const Node& node, const std::string& what);

Node open_root(const std::filesystem::path& file);
// A file whose bytes are in memory; `label` names it in messages.
Node open_image(const std::string& bytes, const std::filesystem::path& label);
bool has_child(const Node& parent, const std::string& name);
bool is_inside(const Node& parent, const std::string& name);   // not behind a link
Node open_child(const Node& parent, const std::string& name);  // follows links
Node open_path(const Node& parent, const std::string& path);   // "a/b/c"
std::vector<std::string> members(const Node& group);           // sorted

std::vector<std::string> attribute_names(const Node& node);  // sorted; only printable names

// Attributes; nullopt if missing. Reads numbers of any width, numpy booleans and strings of any kind.
bool has_attribute(const Node& node, const std::string& name);
std::optional<double> number(const Node& node, const std::string& name);  // finite
std::optional<int64_t> integer(const Node& node, const std::string& name, int64_t low, int64_t high);
// Whole numbers [n, columns] from low to high, row by row; empty if missing.
std::vector<std::vector<int64_t>> integers(const Node& node, const std::string& name, size_t columns, int64_t low,
                                           int64_t high);
std::optional<bool> flag(const Node& node, const std::string& name);
std::optional<std::string> text(const Node& node, const std::string& name);  // valid UTF-8

}  // namespace kvreplay::h5
