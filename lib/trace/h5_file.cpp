#include "trace/h5_file.hpp"

#include <fmt/core.h>

#include <cassert>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include "base/errors.hpp"
#include "trace/h5_array.hpp"
#include "trace/h5_write.hpp"

namespace kvreplay {
namespace fs = std::filesystem;

struct H5Output::State {
  std::optional<h5::PartFile> part;
  std::optional<h5::MemoryFile> memory;
  h5::OutputFile& file() { return part ? static_cast<h5::OutputFile&>(*part) : *memory; }
};

namespace {

constexpr int64_t kSmallestChunked = 8 << 10, kChunkBytes = 1 << 20;

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Whole rows, about kChunkBytes; leading axes are split first.
std::vector<int64_t> chunk_shape(const std::vector<int64_t>& shape, int64_t element_bytes) {
  std::vector<int64_t> chunk = shape;
  for (int64_t& extent : chunk)
    while (extent > 1 && product(chunk) * element_bytes > kChunkBytes) extent = (extent + 1) / 2;
  return chunk;
}

template <class T>
void put(const h5::OutputFile& file, const std::string& name, hid_t type, std::span<const T> data,
         const std::vector<int64_t>& shape, bool compress) {
  assert(product(shape) == static_cast<int64_t>(data.size()));
  const bool chunked = compress && !shape.empty() && static_cast<int64_t>(data.size_bytes()) >= kSmallestChunked;
  const h5::Handle dataset =
      h5::create_dataset(file, name, type, shape, chunked ? chunk_shape(shape, sizeof(T)) : std::vector<int64_t>{},
                         {.shuffle_gzip = chunked});
  if (data.empty()) return;
  file.check(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0, "writing " + name);
}

}  // namespace

H5Output::H5Output(const fs::path& path) : state_(nullptr) {
  const h5::Lock lock;
  auto state = std::make_unique<State>();
  state->part.emplace(path);
  state_ = state.release();
}

H5Output::H5Output() : state_(nullptr) {
  const h5::Lock lock;
  auto state = std::make_unique<State>();
  state->memory.emplace();
  state_ = state.release();
}

H5Output::~H5Output() {
  const h5::Lock lock;
  delete state_;
}

void H5Output::write(const std::string& name, std::span<const float> data, const std::vector<int64_t>& shape,
                     bool compress) {
  const h5::Lock lock;
  put(state_->file(), name, H5T_NATIVE_FLOAT, data, shape, compress);
}

void H5Output::write(const std::string& name, std::span<const double> data, const std::vector<int64_t>& shape,
                     bool compress) {
  const h5::Lock lock;
  put(state_->file(), name, H5T_NATIVE_DOUBLE, data, shape, compress);
}

void H5Output::write(const std::string& name, std::span<const int32_t> data, const std::vector<int64_t>& shape,
                     bool compress) {
  const h5::Lock lock;
  put(state_->file(), name, H5T_NATIVE_INT32, data, shape, compress);
}

void H5Output::write(const std::string& name, std::span<const int64_t> data, const std::vector<int64_t>& shape,
                     bool compress) {
  const h5::Lock lock;
  put(state_->file(), name, H5T_NATIVE_INT64, data, shape, compress);
}

void H5Output::attribute(const std::string& object, const std::string& name, int64_t value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file(), object, name, value);
}

void H5Output::attribute(const std::string& object, const std::string& name, double value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file(), object, name, value);
}

void H5Output::attribute(const std::string& object, const std::string& name, const std::string& value) {
  const h5::Lock lock;
  h5::set_attribute(state_->file(), object, name, value);
}

void H5Output::attribute(const std::string& object, const std::string& name, std::span<const double> values) {
  const h5::Lock lock;
  h5::set_attribute(state_->file(), object, name, values);
}

void H5Output::copy_group(std::string_view from, const std::string& group, const std::string& to) {
  const h5::Lock lock;
  const h5::Handle links = h5::link_list(), source = h5::open_bytes(from);
  if (!source.valid()) throw OutputError("copying " + group + " to " + to + ": the source is not an HDF5 file");
  const bool copied = H5Ocopy(source.get(), group.c_str(), state_->file().id(), h5::object_path(to).c_str(),
                              H5P_DEFAULT, links.get()) >= 0;
  state_->file().check(copied, "copying " + group + " to " + to);
}

void H5Output::close() {
  const h5::Lock lock;
  state_->part->publish();
}

std::string H5Output::bytes() const {
  const h5::Lock lock;
  return state_->memory->bytes();
}

std::vector<double> read_dataset(const fs::path& file, const std::string& name, std::vector<int64_t>& shape,
                                 int64_t max_elements) {
  const h5::Lock lock;
  try {
    const h5::Array array = h5::open_array(h5::open_root(file), name);
    const H5T_class_t kind = H5Tget_class(array.type.get());
    if (kind != H5T_INTEGER && kind != H5T_FLOAT) throw h5::Problem(array.node.where() + ": does not hold numbers");
    if (array.elements() > max_elements)
      throw h5::Problem(fmt::format("{}: holds {} numbers, at most {} can be used here", array.node.where(),
                                    array.elements(), max_elements));
    std::vector<double> values(static_cast<size_t>(array.elements()));
    h5::read_box(array, H5T_NATIVE_DOUBLE, std::vector<int64_t>(array.shape.size(), 0), array.shape, values.data());
    shape = array.shape;
    return values;
  } catch (const h5::Problem& problem) {
    throw ConfigError(problem.what());
  }
}

bool has_dataset(const fs::path& file, const std::string& name) {
  const h5::Lock lock;
  try {
    h5::Node at = h5::open_root(file);
    for (const auto& step : fs::path(name).relative_path()) {
      if (!at.is_group() || !h5::has_child(at, step.string())) return false;
      at = h5::open_child(at, step.string());
    }
    return at.is_dataset();
  } catch (const h5::Problem& problem) {
    throw ConfigError(problem.what());
  }
}

std::vector<std::string> group_members(const fs::path& file, const std::string& group) {
  const h5::Lock lock;
  try {
    return h5::members(h5::open_path(h5::open_root(file), group));
  } catch (const h5::Problem& problem) {
    throw ConfigError(problem.what());
  }
}

void disable_hdf5_exit_handler() { H5dont_atexit(); }

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace kvreplay
