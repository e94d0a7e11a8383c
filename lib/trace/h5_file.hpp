#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// HDF5 output files without HDF5 in the header: what results and traces write.

namespace kvreplay {

class H5Output {
 public:
  H5Output();  // in memory
  // Built as `<path>.part`; close() publishes it: flush, fsync, rename. An object that is destroyed without close()
  // leaves nothing under the final name. Throws OutputError.
  explicit H5Output(const std::filesystem::path& path);
  ~H5Output();
  H5Output(const H5Output&) = delete;
  H5Output& operator=(const H5Output&) = delete;

  // `name` may hold groups ("a/b/c"), which are made. Shapes are row-major; data.size() = product.
  // Datasets of 8 KiB or more are chunked with shuffle + gzip when `compress`, small ones contiguous.
  void write(const std::string& name, std::span<const float> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const double> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const int32_t> data, const std::vector<int64_t>& shape,
             bool compress = true);
  void write(const std::string& name, std::span<const int64_t> data, const std::vector<int64_t>& shape,
             bool compress = true);
  // Attributes of a group or dataset ("" or "/" = root).
  void attribute(const std::string& object, const std::string& name, int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void attribute(const std::string& object, const std::string& name, const std::string& value);
  void attribute(const std::string& object, const std::string& name, std::span<const double> values);
  // Copies a group of another HDF5 file, whose bytes these are; both paths are inside the files.
  void copy_group(std::string_view from, const std::string& group, const std::string& to);
  void close();
  std::string bytes() const;  // of what was built in memory

 private:
  struct State;
  State* state_;
};

// To be called by a program before anything else of HDF5: what a full disk kept it from closing, HDF5 1.10
// closes once more at the end of the process, and crashes. Everything of ours is closed before.
void leave_hdf5_out_of_exit();
std::string hdf5_version();

// Reads a whole numeric dataset as doubles, e.g. injected uniforms; `shape` receives its extents.
// Throws ConfigError naming file and dataset. Refuses more than max_elements.
std::vector<double> read_dataset(const std::filesystem::path& file, const std::string& name,
                                 std::vector<int64_t>& shape, int64_t max_elements = int64_t{1} << 28);
bool has_dataset(const std::filesystem::path& file, const std::string& name);
// Names of the members of a group ("/" = root), sorted.
std::vector<std::string> group_members(const std::filesystem::path& file, const std::string& group);

}  // namespace kvreplay
