#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"
#include "results/note.hpp"
#include "results/output_files.hpp"
#include "results/shards.hpp"

// Reads the output directory of a run or a sweep.

namespace kvreplay {

constexpr const char* kTableFile = "results.csv";
constexpr const char* kSegmentsFile = "segments.csv";
constexpr const char* kMetaFile = "results.meta.json";

// Whether a directory has a table, written by any program.
bool holds_table(const std::filesystem::path& dir);

using Keys = std::vector<std::string>;                               // keys of a plan's cells, in its order
using SharesOfCells = std::unordered_map<std::string, std::string>;  // by key, in the format of shares_text()
using RowVisitor = std::function<void(const Fields&)>;

// Runs `work`; a std::filesystem_error becomes an OutputError with a remedy.
void in_directory(const std::filesystem::path& dir, const std::function<void()>& work);

class ResultsFolder {
 public:
  // Reads the published cells and creates nothing. save: the arrays without which a cell is not done. own_build: lines
  // of this build are preferred where a cell was computed twice. Throws OutputError.
  ResultsFolder(const std::filesystem::path& dir, const SaveOptions& save, const std::string& own_build);

  const std::filesystem::path& dir() const { return dir_; }
  const Shards& shards() const { return shards_; }
  // Keys of cells that are published with their arrays. Failed cells are not done.
  const std::unordered_set<std::string>& done() const { return done_; }
  int32_t failures(const std::string& key) const;  // attempts that failed
  // Published cells that are not in a plan, in the order of their shards.
  Keys others(const Keys& plan) const;
  // Visits the published cells of a plan, in its order; rows are read one at a time.
  void each_row(const Keys& plan, const RowVisitor& visit) const;
  // Writes results.csv, segments.csv if texts have turns, consensus.csv if `save` asks for it, results.meta.json
  // (`meta`, a JSON object; the columns' units, the counts, the notes) and the .h5 files that `save` asks for; each
  // file whole or not at all. `visit` gets each row on the way. Returns the notes; none while cells are missing.
  // `methods` supply what the notes need to know of methods. Throws OutputError.
  Notes write_tables(const Keys& plan, const std::string& meta, const RowVisitor& visit = {},
                     const SharesOfCells& shares = {}, const Registry& methods = registry()) const;

  // Adds a line that this process has just published.
  void add(const std::string& key, const Published& line);
  uint32_t add_file(const std::filesystem::path& file);  // a file that this process writes; returns its number

 private:
  // Appends the rows of a cell to segments.csv, which is created with the first.
  void append_segments(const CellLine& line, std::optional<TextFile>& csv) const;
  void gather(const Keys& plan, const std::string& kind) const;
  // Visits the lines of a plan's published cells, in the plan's order.
  void each_line(const Keys& plan, const std::function<void(const CellLine&)>& visit) const;

  std::filesystem::path dir_;
  SaveOptions save_;
  Shards shards_;
  std::unordered_set<std::string> done_;
};

Keys keys_of(const std::vector<Cell>& plan);
SharesOfCells shares_of(const std::vector<Cell>& plan);

// Removes the files of runs and sweeps from a directory, temporary files included. Files of the user stay.
void forget_results(const std::filesystem::path& dir);

}  // namespace kvreplay
