#include "results/store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "results/arrays.hpp"
#include "results/columns.hpp"
#include "results/output_files.hpp"
#include "results/shards.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTableFile = "results.csv";
constexpr const char* kMetaFile = "results.meta.json";

// File-system calls that throw std::filesystem_error, as errors with a remedy.
template <class Call>
auto in_directory(const fs::path& dir, Call call) {
  try {
    return call();
  } catch (const fs::filesystem_error& problem) {
    throw OutputError(fmt::format("{}: {}. Choose another output directory with -o", dir.string(),
                                  problem.code().message()));
  }
}

// Removes files whose name passes: users may have put other things beside ours.
template <class IsOurs>
void remove_files(const fs::path& dir, IsOurs is_ours) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.is_regular_file() && is_ours(entry.path().filename().string())) found.push_back(entry.path());
  for (const fs::path& file : found) fs::remove(file);
}

bool is_shard(const std::string& name) { return name.ends_with(".jsonl"); }
bool is_cell_file(const std::string& name) {
  return name.ends_with(".h5") && is_key(name.substr(0, name.size() - 3));
}
bool is_final_file(const std::string& name) {
  const std::vector<std::string> kinds = all_kinds();
  const auto gathers = [&](const std::string& kind) { return name == kind + ".h5"; };
  return name == kTableFile || name == kMetaFile || std::any_of(kinds.begin(), kinds.end(), gathers);
}
// Of a file that passes `is_ours`, or a temporary of one that a killed run left.
auto with_temporaries(bool (*is_ours)(const std::string&)) {
  return [is_ours](const std::string& name) { return is_ours(name) || is_ours(final_name(name)); };
}

}  // namespace

struct Store::State {
  fs::path dir;
  SaveOptions save;
  json run;
  Shards shards;
  std::unordered_set<std::string> done;
  std::unique_ptr<LineFile> lines;
  mutable std::mutex mutex;

  fs::path arrays_of(const std::string& key) const { return dir / "cells" / (key + ".h5"); }
  void make_directories() const {
    fs::create_directories(dir / "shards");
    if (!kinds_of(save).empty()) fs::create_directories(dir / "cells");
  }
  void forget() const {
    remove_files(dir / "shards", is_shard);
    if (fs::is_directory(dir / "cells")) remove_files(dir / "cells", with_temporaries(is_cell_file));
    remove_files(dir, with_temporaries(is_final_file));
  }
  void find_done() {
    const std::vector<std::string> kinds = kinds_of(save);
    for (const auto& [key, cell] : shards.cells)
      if (cell.ok && (kinds.empty() || holds_arrays(arrays_of(key), kinds))) done.insert(key);
  }

  ResultTable table(const std::vector<Cell>& plan) const {
    ResultTable rows;
    for (const Cell& cell : plan) {
      const auto found = shards.cells.find(cell.key);
      if (found != shards.cells.end()) rows.push_back(row_fields(json::parse(found->second.row)));
    }
    return rows;
  }
  json counts(const std::vector<Cell>& plan) const {
    int64_t ok = 0, failed = 0;
    for (const Cell& cell : plan) {
      const auto found = shards.cells.find(cell.key);
      if (found == shards.cells.end()) continue;
      ++(found->second.ok ? ok : failed);
    }
    return {{"planned", plan.size()},
            {"ok", ok},
            {"failed", failed},
            {"missing", int64_t(plan.size()) - ok - failed}};
  }
  std::vector<CellArrays> done_arrays(const std::vector<Cell>& plan) const {
    std::vector<CellArrays> cells;
    for (const Cell& cell : plan)
      if (done.count(cell.key) != 0) cells.push_back({cell.key, arrays_of(cell.key)});
    return cells;
  }
};

Store::Store(const fs::path& dir, const SaveOptions& save, bool force, json run)
    : state_(std::make_unique<State>()) {
  state_->dir = dir;
  state_->save = save;
  state_->run = std::move(run);
  state_->run["host"] = process_name();
  in_directory(dir, [&] {
    state_->make_directories();
    if (force) state_->forget();
    state_->lines = std::make_unique<LineFile>(dir / "shards");
    state_->shards = read_shards(dir / "shards");
    state_->find_done();
  });
}

Store::~Store() = default;

const std::unordered_set<std::string>& Store::done() const { return state_->done; }

size_t Store::unreadable_lines() const { return state_->shards.unreadable_lines; }

size_t Store::foreign(const std::vector<Cell>& plan) const {
  std::unordered_set<std::string> planned;
  for (const Cell& cell : plan) planned.insert(cell.key);
  size_t count = 0;
  for (const auto& [key, cell] : state_->shards.cells) count += planned.count(key) == 0;
  return count;
}

bool Store::publish(const Cell& cell, const CellResult& result) {
  const json row = row_values(cell, result, state_->run);
  const bool ok = row.at("status") == "ok";
  const std::string line = shard_line(row, state_->run);
  const std::lock_guard lock(state_->mutex);
  // The arrays first: a line says that all of its cell is there.
  if (ok && !kinds_of(state_->save).empty()) save_arrays(state_->arrays_of(cell.key), result, state_->save);
  state_->lines->append(line);
  state_->shards.add(cell.key, {ok, row.dump(-1, ' ', false, json::error_handler_t::replace)});
  if (ok) state_->done.insert(cell.key);
  return ok;
}

void Store::sync() {
  const std::lock_guard lock(state_->mutex);
  state_->lines->sync();
}

void Store::finish(const std::vector<Cell>& plan, const json& meta) {
  const std::lock_guard lock(state_->mutex);
  // Another process may have published cells of the same plan.
  in_directory(state_->dir, [&] {
    state_->shards = read_shards(state_->dir / "shards");
    state_->find_done();
  });
  std::string csv = csv_line(column_names());
  for (const auto& fields : state_->table(plan)) csv += csv_line(fields);
  json all = meta;
  all["columns"] = describe_columns();
  all["cells"] = state_->counts(plan);
  for (const std::string& kind : kinds_of(state_->save))
    gather_arrays(state_->dir / (kind + ".h5"), kind, state_->done_arrays(plan));
  publish_text(state_->dir / kTableFile, csv);
  publish_text(state_->dir / kMetaFile, all.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

ResultTable Store::table(const std::vector<Cell>& plan) const {
  const std::lock_guard lock(state_->mutex);
  return state_->table(plan);
}

}  // namespace kvreplay
