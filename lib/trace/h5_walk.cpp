#include "trace/h5_walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/text.hpp"

namespace kvreplay::h5 {
namespace fs = std::filesystem;
namespace {

constexpr int kLongestLinkChain = 16;                 // HDF5's own limit
constexpr size_t kChunkCacheBytes = size_t{8} << 20;  // cache of each open tensor
constexpr size_t kImageStep = size_t{64} << 10;       // by which HDF5 would let an image grow

std::string join(const std::string& parent, const std::string& name) {
  return parent == "/" ? "/" + name : parent + "/" + name;
}

// What HDF5 says of a file that a writer holds open, or left so when it was killed.
constexpr const char* kOpenForWrite = "already open for write";

[[noreturn]] void fail_to_open(const fs::path& file) {
  const std::string why = reason();
  if (why.find(kOpenForWrite) != std::string::npos)
    fail(file.string(),
         "a program writes it, or was killed while it did. If none does any more, clear its mark on a copy (cp FILE "
         "COPY && h5clear -s COPY, of the package hdf5-tools), or record it again");
  fail(file.string(), "cannot be opened, it is truncated or damaged (" + why + "). Make or copy it again");
}

Handle open_file(const fs::path& file) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Many traces are on network file systems without locks, and writers only use temporary names.
  H5Pset_file_locking(access.get(), false, true);
  // Without this cache, a small chunk that spans several heads would be read and unpacked once per head.
  H5Pset_cache(access.get(), 0, 1009, kChunkCacheBytes, 0.75);
  Handle id(H5Fopen(file.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!id.valid()) fail_to_open(file);
  return id;
}

// HDF5 takes images of one name for one file.
std::string image_name() {
  static std::atomic<uint64_t> images{0};
  return fmt::format("image {}", ++images);
}

Handle open_bytes(const std::string& bytes, const fs::path& label) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_core(access.get(), kImageStep, false);
  H5Pset_file_image(access.get(), const_cast<char*>(bytes.data()), bytes.size());  // HDF5 copies it
  Handle id(H5Fopen(image_name().c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!id.valid()) fail(label.string(), "cannot be opened (" + reason() + ")");
  return id;
}

Node root_of(const Handle& opened, const fs::path& file, const std::string& name) {
  Node node{Handle(H5Gopen2(opened.get(), "/", H5P_DEFAULT), H5Gclose), file, name};
  if (!node.id.valid()) fail(node, "the root group is damaged (" + reason() + "). Make or copy the file again");
  return node;
}

Node open_checked_root(const fs::path& file, const std::string& name) { return root_of(open_file(file), file, name); }

void check_is_hdf5(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) fail(file.string(), "no such file");
  if (fs::is_directory(status)) fail(file.string(), "is a folder. Give a trace file in it, e.g. its index.h5");
  if (!fs::is_regular_file(status)) fail(file.string(), "is not a regular file");
  const htri_t is_hdf5 = H5Fis_hdf5(file.c_str());
  if (is_hdf5 < 0) fail(file.string(), "cannot be read (" + reason() + "). Check its permissions");
  if (is_hdf5 == 0) fail(file.string(), "is not an HDF5 file. Traces are HDF5 (docs/formats.md)");
}

// External links may lead only to files in the folder of the linking file, or below it.
fs::path external_target(const Node& parent, const std::string& link, const std::string& target) {
  const std::string where = fmt::format("{}: {}", parent.file.string(), link);
  if (target.empty() || fs::path(target).is_absolute())
    fail(where,
         fmt::format("the external link to \"{}\" is not relative to the file. Link to files in its folder", target));
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::absolute(parent.file).parent_path(), error);
  const fs::path file = fs::weakly_canonical(folder / target, error);
  const fs::path inside = file.lexically_relative(folder);
  if (error || inside.empty() || *inside.begin() == "..")
    fail(where, fmt::format("the external link to \"{}\" leaves the file's folder. Link to files in it", target));
  if (!fs::is_regular_file(file, error))
    fail(where, fmt::format("the external link's file {} is missing. Copy it beside the index, or dump it again",
                            file.string()));
  check_is_hdf5(file);
  return file;
}

Node follow(const Node& parent, const std::string& name, const std::string& shown, int links);

Node follow_path(const Node& parent, const std::string& path, const std::string& shown, int links) {
  Node at{Handle(H5Gopen2(parent.id.get(), path.starts_with('/') ? "/" : ".", H5P_DEFAULT), H5Gclose), parent.file,
          parent.name};
  if (!at.id.valid()) fail(parent, "is not a group (" + reason() + ")");
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string step = path.substr(begin, end - begin);
    if (!step.empty() && step != ".") at = follow(at, step, shown, links);
    begin = end + 1;
  }
  at.name = shown;
  return at;
}

Node follow_soft(const Node& parent, const std::string& name, const H5L_info_t& info, const std::string& shown,
                 int links) {
  std::vector<char> value(info.u.val_size + 1, '\0');
  if (H5Lget_val(parent.id.get(), name.c_str(), value.data(), info.u.val_size, H5P_DEFAULT) < 0)
    fail(parent.file.string() + ": " + shown, "the link is damaged (" + reason() + ")");
  return follow_path(parent, value.data(), shown, links + 1);
}

Node follow_external(const Node& parent, const std::string& name, const H5L_info_t& info, const std::string& shown,
                     int links) {
  std::vector<char> value(info.u.val_size + 1, '\0');
  const char *file = nullptr, *object = nullptr;
  unsigned flags = 0;
  if (H5Lget_val(parent.id.get(), name.c_str(), value.data(), info.u.val_size, H5P_DEFAULT) < 0 ||
      H5Lunpack_elink_val(value.data(), info.u.val_size, &flags, &file, &object) < 0)
    fail(parent.file.string() + ": " + shown, "the external link is damaged (" + reason() + ")");
  const Node root = open_checked_root(external_target(parent, shown, file), shown);
  const auto complete = number(root, "complete");
  if (complete && *complete != 1) fail(root, "is in an unfinished dump. Finish it with kvreplay record --resume");
  return follow_path(root, object, shown, links + 1);
}

Node follow(const Node& parent, const std::string& name, const std::string& shown, int links) {
  const std::string where = parent.file.string() + ": " + shown;
  if (links > kLongestLinkChain)
    fail(where, fmt::format("more than {} links lead to it, or they form a loop", kLongestLinkChain));
  H5L_info_t info;
  if (H5Lexists(parent.id.get(), name.c_str(), H5P_DEFAULT) <= 0)
    fail(where, fmt::format("is missing (no \"{}\")", name));
  if (H5Lget_info(parent.id.get(), name.c_str(), &info, H5P_DEFAULT) < 0)
    fail(where, "the link is damaged (" + reason() + ")");
  if (info.type == H5L_TYPE_SOFT) return follow_soft(parent, name, info, shown, links);
  if (info.type == H5L_TYPE_EXTERNAL) return follow_external(parent, name, info, shown, links);
  if (info.type != H5L_TYPE_HARD) fail(where, "is a user-defined link, which is not supported");
  Node node{Handle(H5Oopen(parent.id.get(), name.c_str(), H5P_DEFAULT), H5Oclose), parent.file, shown};
  if (!node.id.valid()) fail(node, "is damaged (" + reason() + "). Make or copy the file again");
  return node;
}

Handle open_attribute(const Node& node, const std::string& name) {
  Handle id(H5Aopen(node.id.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!id.valid()) fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  const Handle space(H5Aget_space(id.get()), H5Sclose);
  if (H5Sget_simple_extent_npoints(space.get()) != 1)
    fail(node, fmt::format("attribute {} is not a single value", name));
  return id;
}

std::string read_variable_string(hid_t attribute, hid_t type, const std::string& where) {
  char* raw = nullptr;
  if (H5Aread(attribute, type, &raw) < 0) fail(where, "is damaged (" + reason() + ")");
  const std::string value = raw == nullptr ? "" : raw;
  H5free_memory(raw);
  return value;
}

std::string read_fixed_string(hid_t attribute, hid_t type, const std::string& where) {
  std::string value(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, value.data()) < 0) fail(where, "is damaged (" + reason() + ")");
  value.resize(std::min(value.find('\0'), value.size()));
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) value.erase(value.find_last_not_of(' ') + 1);
  return value;
}

}  // namespace

void fail(const std::string& where, const std::string& what) { throw Problem(where + ": " + what); }
void fail(const Node& node, const std::string& what) { fail(node.where(), what); }

std::string Node::where() const { return file.string() + ": " + name; }
bool Node::is_group() const { return H5Iget_type(id.get()) == H5I_GROUP; }
bool Node::is_dataset() const { return H5Iget_type(id.get()) == H5I_DATASET; }

Node open_root(const fs::path& file) {
  check_is_hdf5(file);
  return open_checked_root(file, "/");
}

Node open_image(const std::string& bytes, const fs::path& label) {
  return root_of(open_bytes(bytes, label), label, "/");
}

bool has_child(const Node& parent, const std::string& name) {
  const htri_t found = H5Lexists(parent.id.get(), name.c_str(), H5P_DEFAULT);
  if (found < 0) fail(parent, fmt::format("is damaged: looking for \"{}\" failed ({})", name, reason()));
  return found > 0;
}

bool is_inside(const Node& parent, const std::string& name) {
  H5L_info_t info;
  return H5Lget_info(parent.id.get(), name.c_str(), &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_HARD;
}

Node open_child(const Node& parent, const std::string& name) {
  return follow(parent, name, join(parent.name, name), 0);
}

Node open_path(const Node& parent, const std::string& path) {
  std::string shown = path;
  while (shown.starts_with('/')) shown.erase(0, 1);
  return follow_path(parent, path, shown.empty() ? parent.name : join(parent.name, shown), 0);
}

std::vector<std::string> members(const Node& group) {
  if (!group.is_group()) fail(group, "is not a group");
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* into) -> herr_t {
    static_cast<std::vector<std::string>*>(into)->emplace_back(name);
    return 0;
  };
  hsize_t position = 0;
  if (H5Literate(group.id.get(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, collect, &names) < 0)
    fail(group, "its list of members is damaged (" + reason() + "). Make or copy the file again");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    if (name.empty() || name == "." || name == ".." || !is_printable_utf8(name))
      fail(group, "holds a member whose name is damaged");
  return names;
}

std::vector<std::string> attribute_names(const Node& node) {
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* into) -> herr_t {
    if (is_printable_utf8(name)) static_cast<std::vector<std::string>*>(into)->emplace_back(name);
    return 0;
  };
  hsize_t position = 0;
  if (H5Aiterate2(node.id.get(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, collect, &names) < 0)
    fail(node, "its list of attributes is damaged (" + reason() + "). Make or copy the file again");
  std::sort(names.begin(), names.end());
  return names;
}

bool has_attribute(const Node& node, const std::string& name) {
  const htri_t found = H5Aexists(node.id.get(), name.c_str());
  if (found < 0) fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  return found > 0;
}

std::optional<double> number(const Node& node, const std::string& name) {
  if (!has_attribute(node, name)) return std::nullopt;
  const Handle attribute = open_attribute(node, name);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const H5T_class_t kind = H5Tget_class(type.get());
  if (kind != H5T_INTEGER && kind != H5T_FLOAT && kind != H5T_ENUM)
    fail(node, fmt::format("attribute {} is not a number", name));
  double value = 0;
  int64_t whole = 0;  // HDF5 cannot convert an enumeration (numpy's bool) to a double
  const herr_t status = kind == H5T_ENUM ? H5Aread(attribute.get(), H5T_NATIVE_INT64, &whole)
                                         : H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value);
  if (status < 0) fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  if (kind == H5T_ENUM) value = static_cast<double>(whole);
  if (!std::isfinite(value)) fail(node, fmt::format("attribute {} is {}, it must be a finite number", name, value));
  return value;
}

std::optional<int64_t> integer(const Node& node, const std::string& name, int64_t low, int64_t high) {
  const auto value = number(node, name);
  if (!value) return std::nullopt;
  if (*value != std::floor(*value) || *value < static_cast<double>(low) || *value > static_cast<double>(high))
    fail(node, fmt::format("attribute {} is {}, it must be a whole number from {} to {}", name, *value, low, high));
  return static_cast<int64_t>(*value);
}

std::vector<std::vector<int64_t>> integers(const Node& node, const std::string& name, size_t columns, int64_t low,
                                           int64_t high) {
  constexpr hsize_t kMostRows = 1 << 16;
  if (!has_attribute(node, name)) return {};
  const Handle attribute(H5Aopen(node.id.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  const Handle space(H5Aget_space(attribute.get()), H5Sclose), type(H5Aget_type(attribute.get()), H5Tclose);
  hsize_t extents[H5S_MAX_RANK] = {};
  if (H5Sget_simple_extent_dims(space.get(), extents, nullptr) != 2 || extents[1] != columns || extents[0] > kMostRows)
    fail(node, fmt::format("attribute {} must have the shape [n, {}]", name, columns));
  if (H5Tget_class(type.get()) != H5T_INTEGER) fail(node, fmt::format("attribute {} does not hold integers", name));
  std::vector<int64_t> flat(static_cast<size_t>(extents[0]) * columns);
  if (!flat.empty() && H5Aread(attribute.get(), H5T_NATIVE_INT64, flat.data()) < 0)
    fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  for (const int64_t value : flat)
    if (value < low || value > high)
      fail(node, fmt::format("attribute {} holds {}, it must be from {} to {}", name, value, low, high));
  std::vector<std::vector<int64_t>> rows;
  for (auto row = flat.begin(); row != flat.end(); row += std::ptrdiff_t(columns))
    rows.emplace_back(row, row + std::ptrdiff_t(columns));
  return rows;
}

std::optional<bool> flag(const Node& node, const std::string& name) {
  const auto value = integer(node, name, 0, 1);
  return value ? std::optional(*value == 1) : std::nullopt;
}

std::optional<std::string> text(const Node& node, const std::string& name) {
  if (!has_attribute(node, name)) return std::nullopt;
  const Handle attribute = open_attribute(node, name);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING) fail(node, fmt::format("attribute {} is not a string", name));
  const std::string where = node.where() + ": attribute " + name;
  std::string value = H5Tis_variable_str(type.get()) > 0 ? read_variable_string(attribute.get(), type.get(), where)
                                                         : read_fixed_string(attribute.get(), type.get(), where);
  if (!is_utf8(value)) fail(where, "is not UTF-8 text");
  return value;
}

}  // namespace kvreplay::h5
