#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Writes HDF5 output files (results and traces) without including HDF5 in the header.

namespace kvreplay {

class H5Output {
 public:
  H5Output();  // builds the file in memory
  // Builds the file as `<path>.part`; close() publishes it: flush, fsync, rename. Without close() no file appears under
  // the final name. Throws OutputError.
  explicit H5Output(const std::filesystem::path& path);
  ~H5Output();
  H5Output(const H5Output&) = delete;
  H5Output& operator=(const H5Output&) = delete;

  // `name` may contain groups ("a/b/c"), which are created. Shapes are row-major; data.size() = product of the extents.
  // If `compress`, datasets of 8 KiB or more are chunked with shuffle + gzip; small ones are contiguous.
  void write(const std::string& name, std::span<const float> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const double> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const int32_t> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const int64_t> data, const std::vector<int64_t>& shape,
             bool compress = true);
  // Sets an attribute of a group or dataset ("" or "/": the root).
  void attribute(const std::string& object, const std::string& name, int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void attribute(const std::string& object, const std::string& name, const std::string& value);
  void attribute(const std::string& object, const std::string& name, std::span<const double> values);
  // Copies a group from another HDF5 file. from: the bytes of that file; both paths are paths inside the files.
  void copy_group(std::string_view from, const std::string& group, const std::string& to);
  void close();
  std::string bytes() const;  // the file that was built in memory

 private:
  struct State;
  State* state_;
};

// A program must call this before any other use of HDF5. If a full disk made a close fail, HDF5 1.10 closes the file
// again at exit and crashes. This call prevents that; kvreplay closes all its files itself.
void disable_hdf5_exit_handler();
std::string hdf5_version();

// Reads a whole numeric dataset as doubles, e.g. injected uniforms; `shape` receives its extents. Throws ConfigError,
// which names file and dataset, also for more than max_elements.
std::vector<double> read_dataset(const std::filesystem::path& file, const std::string& name,
                                 std::vector<int64_t>& shape, int64_t max_elements = int64_t{1} << 28);
bool has_dataset(const std::filesystem::path& file, const std::string& name);
// Sorted names of the members of a group ("/": the root).
std::vector<std::string> group_members(const std::filesystem::path& file, const std::string& group);

}  // namespace kvreplay
