#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

// Reading back what processes have published: shard files with one JSON line per cell.

namespace kvreplay {

struct Published {
  bool ok = false;
  std::string row;  // JSON text of the row's values: a parsed one takes ten times the memory
};

struct Shards {
  std::unordered_map<std::string, Published> cells;  // by key
  size_t unreadable_lines = 0;
  // A cell that is ok stays so: only a later failure is forgotten.
  void add(const std::string& key, Published cell);
};

bool is_key(const std::string& text);  // k and 16 lower-case hex digits
// {"key", "status", "row", and the members of `run`} in one line, without its end.
std::string shard_line(const nlohmann::json& row, const nlohmann::json& run);
// All *.jsonl of `dir`, in the order of their names. What follows the last line's end in a file was
// being written when its process died: it does not exist. Other unreadable lines are counted.
Shards read_shards(const std::filesystem::path& dir);

}  // namespace kvreplay
