#include "trace/h5_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trace/utf8.hpp"

namespace kvreplay::h5 {
namespace fs = std::filesystem;
namespace {

constexpr int kLongestLinkChain = 16;  // as many as HDF5 itself allows
constexpr size_t kChunkCacheBytes = size_t{128} << 20;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Problem(where + ": " + what);
}
[[noreturn]] void fail(const Node& node, const std::string& what) { fail(node.where(), what); }

std::string join(const std::string& parent, const std::string& name) {
  return parent == "/" ? "/" + name : parent + "/" + name;
}

Handle open_file(const fs::path& file) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Traces lie on network file systems that know no locks; nobody writes under a final name.
  H5Pset_file_locking(access.get(), false, true);
  // Chunks that span several heads would otherwise be read and unpacked once per head.
  H5Pset_cache(access.get(), 0, 1009, kChunkCacheBytes, 0.75);
  Handle id(H5Fopen(file.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!id.valid())
    fail(file.string(),
         "cannot be opened, it is truncated or damaged (" + reason() + "). Make or copy it again");
  return id;
}

Node open_checked_root(const fs::path& file, const std::string& name) {
  const Handle opened = open_file(file);
  Node node{Handle(H5Gopen2(opened.get(), "/", H5P_DEFAULT), H5Gclose), file, name};
  if (!node.id.valid())
    fail(node, "the root group is damaged (" + reason() + "). Make or copy the file again");
  return node;
}

void check_is_hdf5(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) fail(file.string(), "no such file");
  if (fs::is_directory(status))
    fail(file.string(), "is a folder. Give a trace file in it, e.g. its index.h5");
  if (!fs::is_regular_file(status)) fail(file.string(), "is not a regular file");
  const htri_t is_hdf5 = H5Fis_hdf5(file.c_str());
  if (is_hdf5 < 0) fail(file.string(), "cannot be read (" + reason() + "). Check its permissions");
  if (is_hdf5 == 0) fail(file.string(), "is not an HDF5 file. Traces are HDF5 (docs/formats.md)");
}

// External links lead to files beside or below the file that holds them, and nowhere else.
fs::path external_target(const Node& parent, const std::string& link, const std::string& target) {
  const std::string where = fmt::format("{}: {}", parent.file.string(), link);
  if (target.empty() || fs::path(target).is_absolute())
    fail(where,
         fmt::format("the external link to \"{}\" is not relative to the file. Link to files in its folder",
                     target));
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::absolute(parent.file).parent_path(), error);
  const fs::path file = fs::weakly_canonical(folder / target, error);
  const fs::path inside = file.lexically_relative(folder);
  if (error || inside.empty() || *inside.begin() == "..")
    fail(where,
         fmt::format("the external link to \"{}\" leaves the file's folder. Link to files in it", target));
  if (!fs::is_regular_file(file, error))
    fail(where,
         fmt::format("the external link's file {} is missing. Copy it beside the index, or dump it again",
                     file.string()));
  check_is_hdf5(file);
  return file;
}

Node follow(const Node& parent, const std::string& name, const std::string& shown, int links);

Node follow_path(const Node& parent, const std::string& path, const std::string& shown, int links) {
  Node at{Handle(H5Gopen2(parent.id.get(), path.starts_with('/') ? "/" : ".", H5P_DEFAULT), H5Gclose),
          parent.file, parent.name};
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

Node follow_soft(const Node& parent, const std::string& name, const H5L_info_t& info,
                 const std::string& shown, int links) {
  std::vector<char> value(info.u.val_size + 1, '\0');
  if (H5Lget_val(parent.id.get(), name.c_str(), value.data(), info.u.val_size, H5P_DEFAULT) < 0)
    fail(parent.file.string() + ": " + shown, "the link is damaged (" + reason() + ")");
  return follow_path(parent, value.data(), shown, links + 1);
}

Node follow_external(const Node& parent, const std::string& name, const H5L_info_t& info,
                     const std::string& shown, int links) {
  std::vector<char> value(info.u.val_size + 1, '\0');
  const char *file = nullptr, *object = nullptr;
  unsigned flags = 0;
  if (H5Lget_val(parent.id.get(), name.c_str(), value.data(), info.u.val_size, H5P_DEFAULT) < 0 ||
      H5Lunpack_elink_val(value.data(), info.u.val_size, &flags, &file, &object) < 0)
    fail(parent.file.string() + ": " + shown, "the external link is damaged (" + reason() + ")");
  const Node root = open_checked_root(external_target(parent, shown, file), shown);
  const auto complete = number(root, "complete");
  if (complete && *complete != 1) fail(root, "is in an unfinished dump. Finish it with kvdump --resume");
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

std::string filter_name(H5Z_filter_t id) {
  switch (id) {
    case H5Z_FILTER_DEFLATE:
      return "gzip";
    case H5Z_FILTER_SHUFFLE:
      return "shuffle";
    case H5Z_FILTER_FLETCHER32:
      return "fletcher32";
    default:
      return "";
  }
}

void read_filters(Array& array, hid_t creation) {
  const int count = H5Pget_nfilters(creation);
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, config = 0;
    size_t parameters = 0;
    char name[64] = "";
    const H5Z_filter_t id = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &parameters, nullptr,
                                           sizeof name, name, &config);
    const std::string known = filter_name(id);
    if (known.empty())
      fail(array.node,
           fmt::format("filter {} is not supported. Write it without compression, or with gzip", int{id}));
    array.filters += (array.filters.empty() ? "" : "+") + known;
    array.compressed |= id == H5Z_FILTER_DEFLATE;
  }
}

// Product of extents, or an error beyond 2^62: declared extents are only a claim.
int64_t checked_product(const Node& node, const std::vector<int64_t>& shape, int64_t factor) {
  int64_t product = factor;
  for (const int64_t n : shape)
    if (__builtin_mul_overflow(product, n, &product) || product > int64_t{1} << 62)
      fail(node, "declares " + describe(shape) + " elements, more than any file holds");
  return product;
}

void check_unpacked_size(const Array& array, int64_t needed, int64_t held) {
  // zlib cannot pack better than 1032 to 1, so more than that was never written.
  const int64_t most = array.compressed && held < (int64_t{1} << 50) ? held * 1032 : held;
  if (needed > most)
    fail(array.node,
         fmt::format(
             "declares {}, {} bytes, but the file holds only {} bytes of it. It is truncated or damaged",
             describe(array.shape), needed, held));
}

void check_chunks(const Array& array, int64_t file_bytes) {
  std::vector<int64_t> grid;
  for (size_t i = 0; i < array.shape.size(); ++i)
    grid.push_back((array.shape[i] + array.chunk[i] - 1) / array.chunk[i]);
  const int64_t expected = checked_product(array.node, grid, 1);
  hsize_t written = 0;
  const Handle space(H5Dget_space(array.node.id.get()), H5Sclose);
  if (H5Dget_num_chunks(array.node.id.get(), space.get(), &written) < 0)
    fail(array.node, "its chunk index is damaged (" + reason() + ")");
  if (static_cast<int64_t>(written) != expected)
    fail(array.node,
         fmt::format("declares {} in {} chunks, but {} were written. The file is unfinished or damaged",
                     describe(array.shape), expected, written));
  const int64_t chunk_bytes = checked_product(array.node, array.chunk, array.element_bytes);
  const int64_t held = std::min(array.stored_bytes, file_bytes);
  check_unpacked_size(array, checked_product(array.node, {expected}, std::max<int64_t>(chunk_bytes, 1)),
                      held);
}

void check_contiguous(const Array& array, int64_t bytes, int64_t file_bytes) {
  if (bytes == 0) return;
  const haddr_t offset = H5Dget_offset(array.node.id.get());
  if (offset == HADDR_UNDEF)
    fail(array.node, "declares " + describe(array.shape) + ", but nothing was written to it");
  const int64_t held =
      std::max<int64_t>(0, file_bytes - static_cast<int64_t>(std::min<haddr_t>(offset, haddr_t{1} << 62)));
  check_unpacked_size(array, bytes, std::min(array.stored_bytes, held));
}

void check_storage(Array& array, hid_t creation) {
  std::error_code error;
  const auto file_bytes = static_cast<int64_t>(fs::file_size(array.node.file, error));
  const int64_t bytes = checked_product(array.node, array.shape, array.element_bytes);
  array.stored_bytes = static_cast<int64_t>(H5Dget_storage_size(array.node.id.get()));
  switch (H5Pget_layout(creation)) {
    case H5D_CHUNKED:
      return check_chunks(array, file_bytes);
    case H5D_CONTIGUOUS:
      if (H5Pget_external_count(creation) != 0)
        fail(array.node, "keeps its numbers in other files, which is not supported");
      return check_contiguous(array, bytes, file_bytes);
    case H5D_COMPACT:
      return check_unpacked_size(array, bytes, array.stored_bytes);
    default:
      fail(array.node, "is a virtual dataset, which hides missing files. Use external links");
  }
}

void read_shape(Array& array) {
  const Handle space(H5Dget_space(array.node.id.get()), H5Sclose);
  const H5S_class_t kind = H5Sget_simple_extent_type(space.get());
  if (kind != H5S_SIMPLE && kind != H5S_SCALAR) fail(array.node, "is empty");
  hsize_t extents[H5S_MAX_RANK] = {};
  const int rank = H5Sget_simple_extent_dims(space.get(), extents, nullptr);
  if (rank < 0) fail(array.node, "its extents are damaged (" + reason() + ")");
  for (int i = 0; i < rank; ++i) {
    if (extents[i] > hsize_t{1} << 62) fail(array.node, fmt::format("declares an extent of {}", extents[i]));
    array.shape.push_back(static_cast<int64_t>(extents[i]));
  }
}

void read_chunk_shape(Array& array, hid_t creation) {
  if (H5Pget_layout(creation) != H5D_CHUNKED) return;
  hsize_t extents[H5S_MAX_RANK] = {};
  const int rank = H5Pget_chunk(creation, H5S_MAX_RANK, extents);
  if (rank != static_cast<int>(array.shape.size())) fail(array.node, "its chunk shape is damaged");
  for (int i = 0; i < rank; ++i) {
    if (extents[i] == 0 || extents[i] > hsize_t{1} << 32)
      fail(array.node, fmt::format("has chunks of {}", extents[i]));
    array.chunk.push_back(static_cast<int64_t>(extents[i]));
  }
}

// Every chunk that a read touches must have been written, through all filters, with a plausible size.
// HDF5 1.10 itself takes the sizes in the index on trust.
void check_touched_chunks(const Array& array, const std::vector<int64_t>& start,
                          const std::vector<int64_t>& count) {
  const size_t rank = array.shape.size();
  int64_t bytes = array.element_bytes;
  for (const int64_t n : array.chunk) bytes *= n;
  const int64_t checksum = array.filters.find("fletcher32") == std::string::npos ? 0 : 4;
  std::vector<hsize_t> at(rank);
  for (size_t i = 0; i < rank; ++i) at[i] = static_cast<hsize_t>(start[i] / array.chunk[i] * array.chunk[i]);
  for (size_t i = rank + 1; i != 0;) {
    unsigned skipped = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    if (H5Dget_chunk_info_by_coord(array.node.id.get(), at.data(), &skipped, &address, &size) < 0)
      fail(array.node, "its chunk index is damaged (" + reason() + ")");
    const auto stored = static_cast<int64_t>(size);
    const bool plausible = array.compressed ? stored > checksum && stored <= bytes + bytes / 64 + 64
                                            : stored == bytes + checksum;
    if (address == HADDR_UNDEF || skipped != 0 || !plausible)
      fail(array.node, fmt::format("the chunk at {} is missing or damaged ({} bytes stored)",
                                   fmt::join(at, ","), stored));
    for (i = rank; i != 0; --i) {  // the next chunk, last axis fastest
      const size_t axis = i - 1;
      at[axis] += static_cast<hsize_t>(array.chunk[axis]);
      if (static_cast<int64_t>(at[axis]) < start[axis] + count[axis]) break;
      at[axis] = static_cast<hsize_t>(start[axis] / array.chunk[axis] * array.chunk[axis]);
    }
  }
}

}  // namespace

std::string describe(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string Node::where() const { return file.string() + ": " + name; }
bool Node::is_group() const { return H5Iget_type(id.get()) == H5I_GROUP; }
bool Node::is_dataset() const { return H5Iget_type(id.get()) == H5I_DATASET; }

Node open_root(const fs::path& file) {
  check_is_hdf5(file);
  return open_checked_root(file, "/");
}

bool has_child(const Node& parent, const std::string& name) {
  const htri_t found = H5Lexists(parent.id.get(), name.c_str(), H5P_DEFAULT);
  if (found < 0) fail(parent, fmt::format("is damaged: looking for \"{}\" failed ({})", name, reason()));
  return found > 0;
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
  int64_t whole = 0;  // HDF5 knows no way from an enumeration (numpy's bool) to a double
  const herr_t status = kind == H5T_ENUM ? H5Aread(attribute.get(), H5T_NATIVE_INT64, &whole)
                                         : H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value);
  if (status < 0) fail(node, fmt::format("attribute {} is damaged ({})", name, reason()));
  if (kind == H5T_ENUM) value = static_cast<double>(whole);
  if (!std::isfinite(value))
    fail(node, fmt::format("attribute {} is {}, it must be a finite number", name, value));
  return value;
}

std::optional<int64_t> integer(const Node& node, const std::string& name, int64_t low, int64_t high) {
  const auto value = number(node, name);
  if (!value) return std::nullopt;
  if (*value != std::floor(*value) || *value < static_cast<double>(low) || *value > static_cast<double>(high))
    fail(node,
         fmt::format("attribute {} is {}, it must be a whole number from {} to {}", name, *value, low, high));
  return static_cast<int64_t>(*value);
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
  std::string value = H5Tis_variable_str(type.get()) > 0
                          ? read_variable_string(attribute.get(), type.get(), where)
                          : read_fixed_string(attribute.get(), type.get(), where);
  if (!is_utf8(value)) fail(where, "is not UTF-8 text");
  return value;
}

int64_t Array::elements() const {
  int64_t product = 1;
  for (const int64_t n : shape) product *= n;
  return product;
}

Array open_array(const Node& parent, const std::string& path) {
  Array array;
  array.node = open_path(parent, path);
  if (!array.node.is_dataset()) fail(array.node, "is not a dataset");
  Handle creation(H5Dget_create_plist(array.node.id.get()), H5Pclose);
  if (!creation.valid()) fail(array.node, "is damaged (" + reason() + ")");
  array.type = Handle(H5Dget_type(array.node.id.get()), H5Tclose);
  array.element_bytes = static_cast<int64_t>(H5Tget_size(array.type.get()));
  if (!array.type.valid() || array.element_bytes < 1)
    fail(array.node, "its type is damaged (" + reason() + ")");
  read_shape(array);
  read_chunk_shape(array, creation.get());
  read_filters(array, creation.get());
  check_storage(array, creation.get());
  return array;
}

void read_box(const Array& array, hid_t memory_type, const std::vector<int64_t>& start,
              const std::vector<int64_t>& count, void* into) {
  for (const int64_t n : count)
    if (n == 0) return;
  if (!array.chunk.empty()) check_touched_chunks(array, start, count);
  const std::vector<hsize_t> from(start.begin(), start.end()), extent(count.begin(), count.end());
  const int rank = static_cast<int>(from.size());
  const Handle file_space(H5Dget_space(array.node.id.get()), H5Sclose);
  const Handle memory_space(
      rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, extent.data(), nullptr), H5Sclose);
  const bool selected = rank == 0 || H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, from.data(),
                                                         nullptr, extent.data(), nullptr) >= 0;
  if (!selected ||
      H5Dread(array.node.id.get(), memory_type, memory_space.get(), file_space.get(), H5P_DEFAULT, into) < 0)
    fail(array.node, fmt::format("cannot be read at {}, extent {}: {}. Make or copy the file again",
                                 describe(start), describe(count), reason()));
}

std::vector<int64_t> read_integers(const Array& array) {
  if (H5Tget_class(array.type.get()) != H5T_INTEGER) fail(array.node, "does not hold integers");
  std::vector<int64_t> values(static_cast<size_t>(array.elements()));
  read_box(array, H5T_NATIVE_INT64, std::vector<int64_t>(array.shape.size(), 0), array.shape, values.data());
  return values;
}

}  // namespace kvreplay::h5
