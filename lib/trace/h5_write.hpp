#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trace/h5_raii.hpp"

// Building HDF5 files that are published whole or not at all. Callers hold an h5::Lock.

namespace kvreplay::h5 {

// `<path>.part` until publish(), nothing if that is never reached. Its root says in `written_by` which
// version and commit wrote it. Throws OutputError.
class PartFile {
 public:
  explicit PartFile(const std::filesystem::path& path);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  hid_t id() const { return file_.get(); }
  void check(bool good, const std::string& what) const;  // throws with HDF5's reason unless good
  void publish();

 private:
  std::filesystem::path path_, part_;
  Handle file_;
};

// Creates a dataset, and the groups in its name; `chunk` empty: contiguous.
struct Filters {
  bool fletcher32 = false, shuffle_gzip = false;
};
Handle create_dataset(const PartFile& file, const std::string& name, hid_t type,
                      const std::vector<int64_t>& shape, const std::vector<int64_t>& chunk, Filters filters);

// Attributes of "" or "/" (the root), a dataset, or a group, which is made where it is missing.
void set_attribute(const PartFile& file, const std::string& object, const std::string& name, int64_t value);
void set_attribute(const PartFile& file, const std::string& object, const std::string& name, double value);
void set_attribute(const PartFile& file, const std::string& object, const std::string& name,
                   const std::string& value);
void set_attribute(const PartFile& file, const std::string& object, const std::string& name,
                   std::span<const double> values);  // [values.size()]

Handle link_list();                                // makes the groups on the way
std::string object_path(const std::string& name);  // from the root: "/a/b"

}  // namespace kvreplay::h5
