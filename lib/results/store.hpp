#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "catalog/cell.hpp"

// The output directory of a run. A cell is published whole or not at all: one JSON line in this
// process's shard file OUT/shards/<name>.jsonl (a torn last line does not exist); arrays that the run
// saves go to one small HDF5 file per cell first, and are gathered at the end. results.csv and the .h5
// files are rewritten (temporary file, fsync, rename) from what is published.

namespace kvreplay {

// Rows of results.csv, of the cells of a plan that are done, in its order.
using ResultTable = std::vector<std::vector<std::string>>;

struct Column {  // one column of results.csv; the table drives csv, meta, `list metrics` and the docs
  const char* name;
  const char* unit;  // "1" = a pure number, "" = not a number
  const char* help;
  bool measure;  // may be named under `metrics:`
  bool timing;   // left out of every comparison
};
const std::vector<Column>& columns();

class Store {
 public:
  // Makes the directory if needed and checks that it can be written. Throws OutputError.
  // force: forget what an earlier run left there. `run`: what is the same for all cells of this process
  // ("precision", "device" and "schema" are columns; "isa", "version", ... stay in the shard's lines).
  Store(const std::filesystem::path& dir, const SaveOptions& save, bool force,
        nlohmann::json run = nlohmann::json::object());
  ~Store();

  // Keys of cells that are published (with the arrays that `save` asks for). Failed cells are not done.
  // Not to be read while another thread publishes.
  const std::unordered_set<std::string>& done() const;
  // Lines of shards that could not be read (a torn last line does not count).
  size_t unreadable_lines() const;
  // Published cells that `plan` does not hold: not 0 when an earlier run here had another plan.
  size_t foreign(const std::vector<Cell>& plan) const;
  // Thread-safe. When it returns, the cell outlives this process, and after sync() the machine; false: as a
  // failed one (result.ok was false, or it held a number that is none).
  bool publish(const Cell& cell, const CellResult& result);
  // Thread-safe. What was published is on disk.
  void sync();
  // Writes results.csv (rows of `plan`, in its order; columns above), results.meta.json and the .h5
  // files asked for, from the published cells.
  void finish(const std::vector<Cell>& plan, const nlohmann::json& meta);
  // Rows of results.csv, without the header, as fields without quotes.
  ResultTable table(const std::vector<Cell>& plan) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay
