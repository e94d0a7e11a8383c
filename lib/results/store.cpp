#include "results/store.hpp"

#include <mutex>
#include <optional>

#include "results/arrays.hpp"
#include "results/columns.hpp"
#include "results/output_files.hpp"

namespace kvreplay {

namespace fs = std::filesystem;

struct Store::State {
  // A file of this process in the output directory.
  struct Log {
    LineFile lines;
    uint32_t file = 0;
    Log(const fs::path& dir, const std::string& name) : lines(dir, name) {}
    LineAt append(const std::string& line) { return {file, uint32_t(line.size()), lines.append(line)}; }
  };

  fs::path dir;
  SaveOptions save;
  ProcessRecord process;
  std::unique_ptr<Log> cells, attempts;
  std::unique_ptr<AppendFile> arrays;
  std::optional<ResultsFolder> folder;
  std::unordered_set<std::string> failed_here;
  std::mutex mutex;

  void make_directories() const {
    for (const char* logs : {"shards", "attempts"}) fs::create_directories(dir / logs);
    if (!kinds_of(save).empty()) fs::create_directories(dir / "cells");
  }
  ArraysAt append(const std::string& bytes) const {
    return arrays_at(arrays->path().filename().string(), arrays->append(bytes), bytes, save);
  }
  void read() {
    folder.emplace(dir, save, process.build());
    for (Log* log : {cells.get(), attempts.get()}) log->file = folder->add_file(log->lines.path());
  }
};

Store::Store(const fs::path& dir, const SaveOptions& save, bool force, const ProcessRecord& process,
             const std::string& name)
    : state_(std::make_unique<State>()) {
  state_->dir = dir;
  state_->save = save;
  state_->process = process;
  state_->process.host = process_name();
  in_directory(dir, [&] { state_->make_directories(); });
  if (force) forget_results(dir);
  state_->cells = std::make_unique<State::Log>(dir / "shards", name);
  state_->attempts = std::make_unique<State::Log>(dir / "attempts", name);
  if (!kinds_of(save).empty()) state_->arrays = std::make_unique<AppendFile>(dir / "cells", name, kArraysExtension);
  state_->read();
}

Store::~Store() = default;

const ResultsFolder& Store::folder() const { return *state_->folder; }

const std::unordered_set<std::string>& Store::failed_here() const { return state_->failed_here; }

bool Store::publish(const Cell& cell, const CellResult& result) {
  Cell itself = cell;
  itself.shares.clear();
  const Row row = row_of(itself, result, state_->process);
  const bool saves = row.ok && state_->arrays != nullptr;
  const std::string arrays = saves ? arrays_of(cell, result, state_->save) : "";
  const std::lock_guard lock(state_->mutex);
  // Arrays are written first: a line promises that its whole cell is stored.
  const std::string where = saves ? state_->append(arrays).text() : "";
  State::Log& log = row.ok ? *state_->cells : *state_->attempts;
  const LineAt at = log.append(shard_line(cell.key, row, state_->process, where));
  state_->folder->add(cell.key, {row.ok, true, 0, at, {}});
  if (!row.ok) state_->failed_here.insert(cell.key);
  return row.ok;
}

void Store::begin(int64_t unit) {
  const std::lock_guard lock(state_->mutex);
  state_->attempts->append(begun_line(unit, state_->process));
}

void Store::sync() {
  const std::lock_guard lock(state_->mutex);
  if (state_->arrays) state_->arrays->sync();
  state_->cells->lines.sync();
  state_->attempts->lines.sync();
}

Notes Store::finish(const Keys& plan, const std::string& meta, const RowVisitor& visit, const SharesOfCells& shares,
                    const Registry& methods) {
  const std::lock_guard lock(state_->mutex);
  state_->read();
  return state_->folder->write_tables(plan, meta, visit, shares, methods);
}

}  // namespace kvreplay
