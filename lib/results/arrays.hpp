#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "catalog/cell.hpp"

// Arrays of cells: one small HDF5 file per cell, gathered into curves.h5, kept.h5 and outputs.h5.

namespace kvreplay {

// The kinds that a run saves: "curves", "kept", "outputs".
std::vector<std::string> kinds_of(const SaveOptions& save);
// Every kind there is.
std::vector<std::string> all_kinds();

// Writes one group per kind, whole or not at all. Throws OutputError.
void save_arrays(const std::filesystem::path& file, const CellResult& result, const SaveOptions& save);
// Does the file exist, with a group for each of `kinds`?
bool holds_arrays(const std::filesystem::path& file, const std::vector<std::string>& kinds);

struct CellArrays {
  std::string key;
  std::filesystem::path file;
};
// Publishes `to` with group /<key> = group <kind> of each cell's file. Throws OutputError.
void gather_arrays(const std::filesystem::path& to, const std::string& kind,
                   const std::vector<CellArrays>& cells);

}  // namespace kvreplay
