#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/h5_raii.hpp"

// Builds HDF5 files. Callers must hold an h5::Lock. All functions throw OutputError.

namespace kvreplay::h5 {

class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  hid_t id() const { return file_.get(); }
  void check(bool good, const std::string& what) const;  // throws with HDF5's reason if `good` is false

 protected:
  OutputFile(std::filesystem::path path, Handle file) : path_(std::move(path)), file_(std::move(file)) {}
  ~OutputFile() = default;
  std::filesystem::path path_;  // for messages
  Handle file_;
};

// A file that is published whole or not at all: `<path>.part` until publish(), deleted if publish() is never called.
// Its root attribute `written_by` records version and commit.
class PartFile : public OutputFile {
 public:
  explicit PartFile(const std::filesystem::path& path);
  ~PartFile();
  void publish();

 private:
  std::filesystem::path part_;
};

// A small file that exists only in memory.
class MemoryFile : public OutputFile {
 public:
  MemoryFile();
  std::string bytes() const;  // the bytes that a file would hold
};
// Opens the bytes of an HDF5 file for reading. The handle is not valid if the bytes are not HDF5.
Handle open_bytes(std::string_view bytes);

// How a dataset is stored. create_dataset also creates the groups in its name; an empty `chunk` means contiguous.
struct Filters {
  bool fletcher32 = false, shuffle_gzip = false;
};
Handle create_dataset(const OutputFile& file, const std::string& name, hid_t type, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& chunk, Filters filters);

// Attributes of the root ("" or "/"), a dataset or a group; a missing group is created.
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, int64_t value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, double value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   const std::string& value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   std::span<const double> values);  // [values.size()]

Handle link_list();                                // creates missing groups
std::string object_path(const std::string& name);  // absolute path: "/a/b"

}  // namespace kvreplay::h5
