#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"
#include "results/note.hpp"
#include "results/shards.hpp"

// What stands in the output directory of a run or a sweep, for those who read it.

namespace kvreplay {

constexpr const char* kTableFile = "results.csv";
constexpr const char* kMetaFile = "results.meta.json";

// Whether a directory has a table, whoever wrote it.
bool holds_table(const std::filesystem::path& dir);

using Keys = std::vector<std::string>;                               // of the cells of a plan, in its order
using SharesOfCells = std::unordered_map<std::string, std::string>;  // by key, as shares_text() writes them
using RowVisitor = std::function<void(const Fields&)>;

// Runs what may throw std::filesystem_error; such an error becomes an OutputError with a remedy.
void in_directory(const std::filesystem::path& dir, const std::function<void()>& work);

class ResultsFolder {
 public:
  // Reads what is published, and makes nothing. `save`: the arrays without which a cell is not done;
  // `own_build`: whose lines are preferred where a cell was computed twice. Throws OutputError.
  ResultsFolder(const std::filesystem::path& dir, const SaveOptions& save, const std::string& own_build);

  const std::filesystem::path& dir() const { return dir_; }
  const Shards& shards() const { return shards_; }
  // Keys of cells that are published with their arrays. Failed cells are not done.
  const std::unordered_set<std::string>& done() const { return done_; }
  int32_t failures(const std::string& key) const;  // attempts that failed
  // Published cells that a plan does not hold, in the order of their shards.
  Keys others(const Keys& plan) const;
  // The published cells of a plan, in its order; rows are read one at a time.
  void each_row(const Keys& plan, const RowVisitor& visit) const;
  // Writes results.csv, results.meta.json (`meta`, a JSON object; the columns' units, the counts, the notes) and the
  // .h5 files that `save` asks for: each whole or not at all. `visit` sees each row on its way. Returns the notes (none
  // while cells are missing), for which `methods` are asked what they declare. Throws OutputError.
  Notes write_tables(const Keys& plan, const std::string& meta, const RowVisitor& visit = {},
                     const SharesOfCells& shares = {}, const Registry& methods = registry()) const;

  // A line that this process has just published.
  void add(const std::string& key, const Published& line);
  uint32_t add_file(const std::filesystem::path& file);  // one that this process writes; its number

 private:
  void gather(const Keys& plan, const std::string& kind) const;
  // Of a plan's published cells the lines in the shards, in its order.
  void each_line(const Keys& plan, const std::function<void(const CellLine&)>& visit) const;

  std::filesystem::path dir_;
  SaveOptions save_;
  Shards shards_;
  std::unordered_set<std::string> done_;
};

Keys keys_of(const std::vector<Cell>& plan);
SharesOfCells shares_of(const std::vector<Cell>& plan);

// Removes what runs and sweeps have left in a directory, temporary files included; what users have put there
// stays.
void forget_results(const std::filesystem::path& dir);

}  // namespace kvreplay
