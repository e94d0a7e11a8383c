#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/h5_raii.hpp"

// Building HDF5 files. Callers hold an h5::Lock. All of it throws OutputError.

namespace kvreplay::h5 {

class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  hid_t id() const { return file_.get(); }
  void check(bool good, const std::string& what) const;  // throws with HDF5's reason unless good

 protected:
  OutputFile(std::filesystem::path path, Handle file) : path_(std::move(path)), file_(std::move(file)) {}
  ~OutputFile() = default;
  std::filesystem::path path_;  // as messages name it
  Handle file_;
};

// A file that is published whole or not at all: `<path>.part` until publish(), nothing if that is never reached.
// Its root says in `written_by` which version and commit wrote it.
class PartFile : public OutputFile {
 public:
  explicit PartFile(const std::filesystem::path& path);
  ~PartFile();
  void publish();

 private:
  std::filesystem::path part_;
};

// A small file that never reaches a disk as such.
class MemoryFile : public OutputFile {
 public:
  MemoryFile();
  std::string bytes() const;  // what a file would hold
};
// Such a file, opened for reading; not valid where the bytes are none.
Handle open_bytes(std::string_view bytes);

// Creates a dataset, and the groups in its name; `chunk` empty: contiguous.
struct Filters {
  bool fletcher32 = false, shuffle_gzip = false;
};
Handle create_dataset(const OutputFile& file, const std::string& name, hid_t type, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& chunk, Filters filters);

// Attributes of "" or "/" (the root), a dataset, or a group, which is made where it is missing.
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, int64_t value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name, double value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   const std::string& value);
void set_attribute(const OutputFile& file, const std::string& object, const std::string& name,
                   std::span<const double> values);  // [values.size()]

Handle link_list();                                // makes the groups on the way
std::string object_path(const std::string& name);  // from the root: "/a/b"

}  // namespace kvreplay::h5
