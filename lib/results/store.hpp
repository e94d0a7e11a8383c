#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"
#include "results/folder.hpp"

// The output directory of a run, for the process that publishes. A cell is published whole or not at all: one
// sealed line in this process's file OUT/shards/<name>.jsonl (a torn one does not exist); arrays that the run
// saves are appended to its file OUT/cells/<name>.arrays first. A cell that failed is a line in
// OUT/attempts/<name>.jsonl.

namespace kvreplay {

class Store {
 public:
  // Makes the directory if needed and checks that it can be written. Throws OutputError.
  // force: forget what an earlier run left there. `name`: what the names of this process's files start with.
  Store(const std::filesystem::path& dir, const SaveOptions& save, bool force, const ProcessRecord& process = {},
        const std::string& name = "run");
  ~Store();

  // What is published, by this process too. Not to be read while another thread publishes.
  const ResultsFolder& folder() const;
  // Cells that have failed in this process.
  const std::unordered_set<std::string>& failed_here() const;
  // Thread-safe. When it returns, the cell outlives this process, and after sync() the machine; false: as a
  // failed one (result.ok was false, or it held a number that is none).
  bool publish(const Cell& cell, const CellResult& result);
  // Thread-safe. A unit of work is begun: one that has killed its worker is known by it.
  void begin(int64_t unit);
  // Thread-safe. What was published is on disk.
  void sync();
  // Reads again what all processes have published, and writes the tables; the notes on them.
  Notes finish(const Keys& plan, const std::string& meta = "{}", const RowVisitor& visit = {},
               const SharesOfCells& shares = {}, const Registry& methods = registry());

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay
