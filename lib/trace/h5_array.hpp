#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trace/h5_walk.hpp"

// Datasets of a file that may be hostile: a size that the file claims is checked against the size of the file.

namespace kvreplay::h5 {

// A dataset whose extents were checked against the bytes that the file holds.
struct Array {
  Node node;
  Handle type;                        // as stored
  std::vector<int64_t> shape, chunk;  // chunk is empty unless the layout is chunked
  int64_t element_bytes = 0;
  int64_t stored_bytes = 0;
  bool compressed = false;
  std::string filters;  // "fletcher32", "shuffle+gzip", or empty

  int64_t elements() const;
};
Array open_array(const Node& parent, const std::string& path);

// Reads the box [start, start + count) into `into`, converted to `memory_type`.
void read_box(const Array& array, hid_t memory_type, const std::vector<int64_t>& start,
              const std::vector<int64_t>& count, void* into);
std::vector<int64_t> read_integers(const Array& array);   // throws if the stored numbers are not integers
std::vector<std::string> read_texts(const Array& array);  // throws unless UTF-8 strings are stored

std::string describe(const std::vector<int64_t>& shape);  // "[9, 1024, 64]"

}  // namespace kvreplay::h5
