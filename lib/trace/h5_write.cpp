#include "trace/h5_write.hpp"

#include <algorithm>
#include <cassert>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "trace/publish.hpp"

namespace kvreplay::h5 {
namespace fs = std::filesystem;
namespace {

Handle creation_list(const std::vector<int64_t>& chunk, Filters filters) {
  Handle list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(list.get(), false);  // equal numbers must give identical files
  if (chunk.empty()) return list;
  const std::vector<hsize_t> extents(chunk.begin(), chunk.end());
  H5Pset_chunk(list.get(), static_cast<int>(extents.size()), extents.data());
  if (filters.shuffle_gzip) {
    H5Pset_shuffle(list.get());
    H5Pset_deflate(list.get(), 4);
  }
  if (filters.fletcher32) H5Pset_fletcher32(list.get());  // last filter, so that the checksum covers the stored bytes
  return list;
}

Handle open_or_make(const OutputFile& file, const std::string& path) {
  Handle object(H5Oopen(file.id(), path.c_str(), H5P_DEFAULT), H5Oclose);
  if (object.valid()) return object;
  const Handle links = link_list();
  return Handle(H5Gcreate2(file.id(), path.c_str(), links.get(), H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
}

void write_attribute(const OutputFile& file, const std::string& object, const std::string& name, hid_t type,
                     const Handle& space, const void* value) {
  const Handle node = open_or_make(file, object_path(object));
  file.check(node.valid(), "opening " + object);
  if (H5Aexists(node.get(), name.c_str()) > 0) H5Adelete(node.get(), name.c_str());
  const Handle attribute(H5Acreate2(node.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  file.check(attribute.valid() && H5Awrite(attribute.get(), type, value) >= 0, "writing attribute " + name);
}

Handle access_list() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  return access;
}

// HDF5 confuses two open files that share a name, so every name is unique.
std::string memory_name() {
  static int64_t count = 0;
  return "memory " + std::to_string(count++);
}

Handle memory_access() {
  constexpr size_t kGrowth = size_t{64} << 10;
  Handle access = access_list();
  H5Pset_fapl_core(access.get(), kGrowth, false);
  return access;
}

Handle one_value() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

}  // namespace

void OutputFile::check(bool good, const std::string& what) const {
  if (!good) throw OutputError(path_.string() + ": " + what + " failed (" + reason() + "). Is the disk full?");
}

PartFile::PartFile(const fs::path& path) : OutputFile(path, {}), part_(path.string() + ".part") {
  const Handle access = access_list();
  // The caller guarantees one writer per name; network file systems may have no locks.
  H5Pset_file_locking(access.get(), false, true);
  file_ = Handle(H5Fcreate(part_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  if (!file_.valid())
    throw OutputError(path_.string() + ": cannot be written (" + reason() +
                      "). Check the folder, its permissions and the space on its disk");
  set_attribute(*this, "/", "written_by", std::string("kvreplay ") + version() + ", " + git_commit());
}

PartFile::~PartFile() {
  if (!file_.valid()) return;
  file_.reset();
  std::error_code ignored;
  fs::remove(part_, ignored);
}

void PartFile::publish() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0, "writing");
  const bool closed = file_.reset();
  std::error_code ignored;
  if (!closed) fs::remove(part_, ignored);
  check(closed, "closing");
  kvreplay::publish(part_, path_);
}

MemoryFile::MemoryFile() : OutputFile("arrays of a cell", {}) {
  const Handle access = memory_access();
  file_ = Handle(H5Fcreate(memory_name().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  check(file_.valid(), "making it");
}

std::string MemoryFile::bytes() const {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0, "writing");
  const ssize_t size = H5Fget_file_image(file_.get(), nullptr, 0);
  check(size >= 0, "copying");
  std::string all(size_t(size), '\0');
  check(H5Fget_file_image(file_.get(), all.data(), all.size()) == size, "copying");
  return all;
}

Handle open_bytes(std::string_view bytes) {
  const Handle access = memory_access();
  // HDF5 copies the image when it opens it.
  H5Pset_file_image(access.get(), const_cast<char*>(bytes.data()), bytes.size());
  return {H5Fopen(memory_name().c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose};
}

Handle create_dataset(const OutputFile& file, const std::string& name, hid_t type, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& chunk, Filters filters) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Handle space(extents.empty() ? H5Screate(H5S_SCALAR)
                                     : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                     H5Sclose);
  const Handle creation = creation_list(chunk, filters), links = link_list();
  Handle dataset(
      H5Dcreate2(file.id(), object_path(name).c_str(), type, space.get(), links.get(), creation.get(), H5P_DEFAULT),
      H5Dclose);
  file.check(dataset.valid(), "creating " + name);
  return dataset;
}

void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, int64_t value) {
  write_attribute(file, object, name, H5T_NATIVE_INT64, one_value(), &value);
}

void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, double value) {
  write_attribute(file, object, name, H5T_NATIVE_DOUBLE, one_value(), &value);
}

void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   std::span<const double> values) {
  const hsize_t count = values.size();
  const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  write_attribute(file, object, name, H5T_NATIVE_DOUBLE, space, values.data());
}

void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<size_t>(value.size(), 1));  // HDF5 has no strings of size 0
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  write_attribute(file, object, name, type.get(), one_value(), value.c_str());
}

Handle link_list() {
  Handle list(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(list.get(), 1);
  H5Pset_char_encoding(list.get(), H5T_CSET_UTF8);
  return list;
}

std::string object_path(const std::string& name) {
  return name.empty() ? "/" : name.front() == '/' ? name : "/" + name;
}

}  // namespace kvreplay::h5
