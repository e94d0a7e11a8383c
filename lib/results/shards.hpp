#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Reading back what processes have published: OUT/shards/*.jsonl with a line for each cell, and
// OUT/attempts/*.jsonl with a line for each cell that failed and each unit of work that was begun. Rows stay
// on disk: a sweep's table is larger than what a process should hold.

namespace kvreplay {

struct LineAt {
  uint32_t file = 0;  // of Shards::files
  uint32_t bytes = 0;
  uint64_t offset = 0;
};

struct Published {
  bool ok = false;
  bool own_build = false;  // by this build of the program
  int32_t failures = 0;    // attempts that failed, in all processes
  std::string arrays;      // file in OUT/cells, or empty
  LineAt at;
};

struct Shards {
  std::vector<std::filesystem::path> files;
  std::unordered_map<std::string, Published> cells;     // by key
  std::vector<std::pair<std::string, LineAt>> repeats;  // further lines of cells that are ok
  std::map<int64_t, int32_t> begun;                     // units of work -> how often
  size_t unreadable_lines = 0;

  // The first line of a cell that is ok stands, but for one of this build; a failure only until there is one.
  void add(const std::string& key, const Published& line);
};

constexpr size_t kKeyBytes = 17;
bool is_key(const std::string& text);  // k and 16 lower-case hex digits

// {"key", "status", "build", "arrays", the members of `run`, "row"} in one sealed line, without its end.
// `arrays`: the file in OUT/cells that this computation has written, or empty.
std::string shard_line(const nlohmann::json& row, const nlohmann::json& run, const std::string& arrays);
// "device isa precision" of a line: where two agree, so do the numbers, to the last bit.
std::string path_of(const nlohmann::json& line);
// "version commit" of what wrote a line.
std::string build_of(const nlohmann::json& run);
std::string begun_line(int64_t unit, const nlohmann::json& run);

// All *.jsonl of OUT/shards and OUT/attempts, in the order of their names. What follows the last line's end
// in a file was being written when its process died: it does not exist. Other lines without a right sum are
// counted. Throws OutputError.
Shards read_shards(const std::filesystem::path& out, const std::string& own_build);

// Lines by their place. Keeps one file open: neighbours in a table are mostly neighbours in a shard.
class LineReader {
 public:
  explicit LineReader(const Shards& shards) : shards_(shards) {}
  nlohmann::json read(const LineAt& at);  // the whole line; throws OutputError if it has changed meanwhile

 private:
  const Shards& shards_;
  uint32_t open_ = UINT32_MAX;
  std::ifstream in_;
};

}  // namespace kvreplay
