#include "results/store.hpp"

#include <fmt/format.h>

#include <mutex>
#include <optional>

#include "results/arrays.hpp"
#include "results/columns.hpp"
#include "results/output_files.hpp"

namespace kvreplay {

namespace fs = std::filesystem;
using nlohmann::json;

struct Store::State {
  // A log of this process, as a file of the folder.
  struct Log {
    LineFile lines;
    uint32_t file = 0;
    Log(const fs::path& dir, const std::string& name) : lines(dir, name) {}
    LineAt append(const std::string& line) { return {file, uint32_t(line.size()), lines.append(line)}; }
  };

  fs::path dir;
  SaveOptions save;
  json run;
  std::unique_ptr<Log> cells, attempts;
  std::optional<ResultsFolder> folder;
  std::unordered_set<std::string> failed_here;
  std::mutex mutex;

  void make_directories() const {
    for (const char* logs : {"shards", "attempts"}) fs::create_directories(dir / logs);
    if (!kinds_of(save).empty()) fs::create_directories(dir / "cells");
  }
  void read() {
    folder.emplace(dir, save, build_of(run));
    for (Log* log : {cells.get(), attempts.get()}) log->file = folder->add_file(log->lines.path());
  }
};

Store::Store(const fs::path& dir, const SaveOptions& save, bool force, json run, const std::string& name)
    : state_(std::make_unique<State>()) {
  state_->dir = dir;
  state_->save = save;
  state_->run = std::move(run);
  state_->run["host"] = process_name();
  in_directory(dir, [&] { state_->make_directories(); });
  if (force) forget_results(dir);
  state_->cells = std::make_unique<State::Log>(dir / "shards", name);
  state_->attempts = std::make_unique<State::Log>(dir / "attempts", name);
  state_->read();
}

Store::~Store() = default;

const ResultsFolder& Store::folder() const { return *state_->folder; }

const std::unordered_set<std::string>& Store::failed_here() const { return state_->failed_here; }

bool Store::publish(const Cell& cell, const CellResult& result) {
  const json row = row_values(cell, result, state_->run);
  const bool ok = row.at("status") == "ok";
  // Another process may compute the same cell on another path: its arrays are not those of this line.
  const bool saves = ok && !kinds_of(state_->save).empty();
  const std::string arrays = saves ? fmt::format("{}.{}.h5", cell.key, process_name()) : "";
  const std::string line = shard_line(row, state_->run, arrays);
  const std::lock_guard lock(state_->mutex);
  // The arrays first: a line says that all of its cell is there.
  if (saves) save_arrays(state_->dir / "cells" / arrays, result, state_->save);
  State::Log& log = ok ? *state_->cells : *state_->attempts;
  state_->folder->add(cell.key, {ok, true, 0, arrays, log.append(line)});
  if (!ok) state_->failed_here.insert(cell.key);
  return ok;
}

void Store::begin(int64_t unit) {
  const std::lock_guard lock(state_->mutex);
  state_->attempts->append(begun_line(unit, state_->run));
}

void Store::sync() {
  const std::lock_guard lock(state_->mutex);
  state_->cells->lines.sync();
  state_->attempts->lines.sync();
}

void Store::finish(const Keys& plan, const json& meta, const RowVisitor& visit) {
  const std::lock_guard lock(state_->mutex);
  state_->read();
  state_->folder->write_tables(plan, meta, visit);
}

}  // namespace kvreplay
