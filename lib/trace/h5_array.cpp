#include "trace/h5_array.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"

namespace kvreplay::h5 {
namespace fs = std::filesystem;
namespace {

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
    const H5Z_filter_t id =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &parameters, nullptr, sizeof name, name, &config);
    const std::string known = filter_name(id);
    if (known.empty())
      fail(array.node, fmt::format("filter {} is not supported. Write it without compression, or with gzip", int{id}));
    array.filters += (array.filters.empty() ? "" : "+") + known;
    array.compressed |= id == H5Z_FILTER_DEFLATE;
  }
}

// Product of extents. Fails beyond 2^62: a file may declare any extents.
int64_t checked_product(const Node& node, const std::vector<int64_t>& shape, int64_t factor) {
  int64_t product = factor;
  for (const int64_t n : shape)
    if (__builtin_mul_overflow(product, n, &product) || product > int64_t{1} << 62)
      fail(node, "declares " + describe(shape) + " elements, more than any file holds");
  return product;
}

void check_unpacked_size(const Array& array, int64_t needed, int64_t held) {
  // zlib's best compression is 1032 to 1, so a larger claim cannot be true.
  const int64_t most = array.compressed && held < (int64_t{1} << 50) ? held * 1032 : held;
  if (needed > most)
    fail(array.node,
         fmt::format("declares {}, {} bytes, but the file holds only {} bytes of it. It is truncated or damaged",
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
    fail(array.node, fmt::format("declares {} in {} chunks, but {} were written. The file is unfinished or damaged",
                                 describe(array.shape), expected, written));
  const int64_t chunk_bytes = checked_product(array.node, array.chunk, array.element_bytes);
  const int64_t held = std::min(array.stored_bytes, file_bytes);
  check_unpacked_size(array, checked_product(array.node, {expected}, std::max<int64_t>(chunk_bytes, 1)), held);
}

void check_contiguous(const Array& array, int64_t bytes, int64_t file_bytes) {
  if (bytes == 0) return;
  const haddr_t offset = H5Dget_offset(array.node.id.get());
  if (offset == HADDR_UNDEF) fail(array.node, "declares " + describe(array.shape) + ", but nothing was written to it");
  const int64_t held =
      std::max<int64_t>(0, file_bytes - static_cast<int64_t>(std::min<haddr_t>(offset, haddr_t{1} << 62)));
  check_unpacked_size(array, bytes, std::min(array.stored_bytes, held));
}

bool is_image(const Node& node) {
  const Handle file(H5Iget_file_id(node.id.get()), H5Fclose);
  const Handle access(H5Fget_access_plist(file.get()), H5Pclose);
  return H5Pget_driver(access.get()) == H5FD_CORE;
}

void check_storage(Array& array, hid_t creation) {
  if (is_image(array.node)) return;  // this program made it; large tensors have no numbers in it
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
    if (extents[i] == 0 || extents[i] > hsize_t{1} << 32) fail(array.node, fmt::format("has chunks of {}", extents[i]));
    array.chunk.push_back(static_cast<int64_t>(extents[i]));
  }
}

// Checks that every chunk a read touches was written, through all filters, with a plausible size. HDF5 1.10 itself
// trusts the sizes in the index.
void check_touched_chunks(const Array& array, const std::vector<int64_t>& start, const std::vector<int64_t>& count) {
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
    const bool plausible =
        array.compressed ? stored > checksum && stored <= bytes + bytes / 64 + 64 : stored == bytes + checksum;
    if (address == HADDR_UNDEF || skipped != 0 || !plausible)
      fail(array.node,
           fmt::format("the chunk at {} is missing or damaged ({} bytes stored)", fmt::join(at, ","), stored));
    for (i = rank; i != 0; --i) {  // the next chunk, last axis fastest
      const size_t axis = i - 1;
      at[axis] += static_cast<hsize_t>(array.chunk[axis]);
      if (static_cast<int64_t>(at[axis]) < start[axis] + count[axis]) break;
      at[axis] = static_cast<hsize_t>(start[axis] / array.chunk[axis] * array.chunk[axis]);
    }
  }
}

}  // namespace

std::string describe(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

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
  if (!array.type.valid() || array.element_bytes < 1) fail(array.node, "its type is damaged (" + reason() + ")");
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
  const Handle memory_space(rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, extent.data(), nullptr),
                            H5Sclose);
  const bool selected = rank == 0 || H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, from.data(), nullptr,
                                                         extent.data(), nullptr) >= 0;
  if (!selected ||
      H5Dread(array.node.id.get(), memory_type, memory_space.get(), file_space.get(), H5P_DEFAULT, into) < 0)
    fail(array.node, fmt::format("cannot be read at {}, extent {}: {}. Make or copy the file again", describe(start),
                                 describe(count), reason()));
}

std::vector<int64_t> read_integers(const Array& array) {
  if (H5Tget_class(array.type.get()) != H5T_INTEGER) fail(array.node, "does not hold integers");
  std::vector<int64_t> values(static_cast<size_t>(array.elements()));
  read_box(array, H5T_NATIVE_INT64, std::vector<int64_t>(array.shape.size(), 0), array.shape, values.data());
  return values;
}

std::vector<std::string> read_texts(const Array& array) {
  if (H5Tget_class(array.type.get()) != H5T_STRING) fail(array.node, "does not hold strings");
  const std::vector<int64_t> begin(array.shape.size(), 0);
  std::vector<std::string> texts(static_cast<size_t>(array.elements()));
  if (H5Tis_variable_str(array.type.get()) > 0) {
    std::vector<char*> found(texts.size(), nullptr);
    read_box(array, array.type.get(), begin, array.shape, found.data());
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i] = found[i] == nullptr ? "" : found[i];
      H5free_memory(found[i]);
    }
  } else {
    const auto width = static_cast<size_t>(array.element_bytes);
    std::string all(texts.size() * width, '\0');
    read_box(array, array.type.get(), begin, array.shape, all.data());
    for (size_t i = 0; i < texts.size(); ++i) texts[i] = all.substr(i * width, width).c_str();
  }
  if (!std::all_of(texts.begin(), texts.end(), is_utf8)) fail(array.node, "holds what is not UTF-8 text");
  return texts;
}

}  // namespace kvreplay::h5
