#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"
#include "results/folder.hpp"

// The output directory of a run, for the process that publishes. A cell is published whole or not at all: one sealed
// line in this process's file OUT/shards/<name>.jsonl (truncated lines are ignored). Arrays that the run saves are
// appended to its file OUT/cells/<name>.arrays first. A cell that failed is a line in OUT/attempts/<name>.jsonl.

namespace kvreplay {

class Store {
 public:
  // Creates the directory if needed and checks that it can be written. Throws OutputError. force: removes the results
  // of earlier runs. name: prefix of the names of this process's files.
  Store(const std::filesystem::path& dir, const SaveOptions& save, bool force, const ProcessRecord& process = {},
        const std::string& name = "run");
  ~Store();

  // The published cells, including those of this process. Must not be read while another thread publishes.
  const ResultsFolder& folder() const;
  // Cells that have failed in this process.
  const std::unordered_set<std::string>& failed_here() const;
  // Thread-safe. After it returns, the cell survives the end of this process, and after sync() a crash of the machine.
  // Returns false if the cell was published as failed (result.ok was false, or a value was not a number).
  bool publish(const Cell& cell, const CellResult& result);
  // Thread-safe. Records that a unit of work starts, so that a unit that kills its worker is identified.
  void begin(int64_t unit);
  // Thread-safe. Forces what was published to disk.
  void sync();
  // Reads again what all processes have published, writes the tables and returns their notes.
  Notes finish(const Keys& plan, const std::string& meta = "{}", const RowVisitor& visit = {},
               const SharesOfCells& shares = {}, const Registry& methods = registry());

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay
