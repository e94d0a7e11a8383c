#pragma once
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "trace/h5_file.hpp"
#include "trace/trace_writer.hpp"

// Small files for the tests of the trace room.

namespace kvreplay {

// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvreplay-trace-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

// A float that encodes its place and is exact in every dtype: a small whole number.
inline float marked(int64_t head, int64_t row, int64_t column) {
  return static_cast<float>(head * 64 + row % 8 * 8 + column) * (row % 2 == 0 ? 1.0f : -1.0f);
}

inline std::vector<float> marked_tensor(int64_t heads, int64_t rows, int64_t width) {
  std::vector<float> x;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c) x.push_back(marked(h, r, c));
  return x;
}

// The smallest trace, as a script would write it. Tests omit or replace single parts.
struct SmallTrace {
  std::vector<int64_t> q = {4, 10, 6}, k = {2, 10, 6}, v = {2, 10, 5};
  std::function<void(H5Output&)> more = [](H5Output&) {};  // called last
  bool schema = true, scaling = true;

  std::filesystem::path write(const std::filesystem::path& path) const {
    H5Output file(path);
    const std::string layer = "prompts/p0/layers/003";
    const auto tensor = [&](const char* name, const std::vector<int64_t>& shape) {
      if (shape.size() == 3)
        file.write(layer + "/" + name, std::span<const float>(marked_tensor(shape[0], shape[1], shape[2])), shape);
      if (shape.size() == 2)
        file.write(layer + "/" + name, std::span<const float>(marked_tensor(1, shape[0], shape[1])), shape);
    };
    tensor("q", q);
    tensor("k", k);
    tensor("v", v);
    if (scaling) file.attribute(layer, "scaling", 0.5);
    if (schema) file.attribute("/", "kvreplay_schema", int64_t{1});
    more(file);
    file.close();
    return path;
  }
};

}  // namespace kvreplay
