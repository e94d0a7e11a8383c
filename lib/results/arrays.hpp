#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "catalog/cell.hpp"
#include "measures/accumulator.hpp"

// Arrays of cells. A process appends the arrays of its cells to one file OUT/cells/<name>.arrays: for each cell the
// bytes of a small HDF5 file with a group for each kind. They are gathered into curves.h5, kept.h5, outputs.h5,
// projections.h5 and consensus.h5.

namespace kvreplay {

// The kinds that a run saves: "curves", "kept", "outputs", "projections", "consensus".
std::vector<std::string> kinds_of(const SaveOptions& save);
constexpr const char* kArraysExtension = ".arrays";
// All kinds.
std::vector<std::string> all_kinds();

// The bytes to append for a cell. Throws OutputError.
std::string arrays_of(const Cell& cell, const CellResult& result, const SaveOptions& save);

// Location of a cell's arrays, as its line records it: "FILE@OFFSET+BYTES sum kind kind ...".
struct ArraysAt {
  std::string file;  // in OUT/cells
  uint64_t offset = 0, bytes = 0;
  std::string sum;  // checksum of the bytes: 16 hex digits of SHA-256
  std::vector<std::string> kinds;

  std::string text() const;
  static std::optional<ArraysAt> parse(const std::string& text);
};
// Location of arrays that were appended at `offset`.
ArraysAt arrays_at(const std::string& file, uint64_t offset, const std::string& arrays, const SaveOptions& save);

// Keeps one file open: neighbours in a plan are mostly neighbours in a file.
class ArraysReader {
 public:
  explicit ArraysReader(std::filesystem::path dir) : dir_(std::move(dir)) {}  // OUT/cells
  // Whether the file holds all of these bytes, with all of `kinds` among them.
  bool holds(const ArraysAt& at, const std::vector<std::string>& kinds);
  std::string read(const ArraysAt& at);  // throws OutputError if the bytes have changed

 private:
  void open(const std::string& file);
  std::filesystem::path dir_;
  std::string open_;
  std::ifstream in_;
  uint64_t size_ = 0;
};

struct CellArrays {
  std::string key;
  ArraysAt at;
};
// Publishes `to` with group /<key> = group <kind> of each cell's arrays. Throws OutputError.
void gather_arrays(const std::filesystem::path& to, const std::string& kind, const std::vector<CellArrays>& cells,
                   ArraysReader& from);

}  // namespace kvreplay
