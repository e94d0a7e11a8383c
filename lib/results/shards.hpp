#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "results/columns.hpp"

namespace kvreplay {

// Lines of JSON with a checksum of their own content: {"sum":"<16 hex digits>",<members>}. A truncated or altered line
// fails the check and is ignored.

// `members`: a JSON object's text without its braces, on one line.
std::string sealed_line(std::string_view members);
// The members of a line whose checksum is right; nothing otherwise.
std::optional<std::string_view> unsealed(std::string_view line);

// Reads what processes have published: OUT/shards/*.jsonl with a line for each cell, and OUT/attempts/*.jsonl with a
// line for each failed cell and each unit of work that was started. Rows stay on disk, because a sweep's table may
// exceed memory.

using Fields = std::vector<std::string>;  // one row of results.csv, without quotes

struct LineAt {
  uint32_t file = 0;  // index in Shards::files
  uint32_t bytes = 0;
  uint64_t offset = 0;
};

struct Published {
  bool ok = false;
  bool own_build = false;  // written by this build of the program
  int32_t failures = 0;    // attempts that failed, in all processes
  LineAt at;
  std::vector<std::string> arrays;  // ArraysAt::text() of each computation that wrote arrays
};

struct Shards {
  std::vector<std::filesystem::path> files;
  std::unordered_map<std::string, Published> cells;     // by key
  std::vector<std::pair<std::string, LineAt>> repeats;  // further lines of cells that are ok
  std::map<int64_t, int32_t> begun;                     // units of work -> how often
  size_t unreadable_lines = 0;

  // Keeps the first line of a cell that is ok, but prefers one of this build. A failure is kept only until a line is
  // ok.
  void add(const std::string& key, const Published& line);
};

constexpr size_t kKeyBytes = 17;
bool is_key(const std::string& text);  // k and 16 lower-case hex digits

// Fields of a row that row_of() made. A row of an older build may lack a column.
Fields fields_of(const std::string& row);
// {"key", "status", "build", "arrays", the process, "row", "segments"} in one sealed line, without its end. `arrays`:
// location of the arrays that this computation wrote (ArraysAt::text()), or empty.
std::string shard_line(const std::string& key, const Row& row, const ProcessRecord& process, const std::string& arrays);
std::string begun_line(int64_t unit, const ProcessRecord& process);

// Reads all *.jsonl of OUT/shards and OUT/attempts, in the order of their names. A last line without a line end was
// being written when its process died and is ignored. Other lines with a wrong checksum are counted. Throws
// OutputError.
Shards read_shards(const std::filesystem::path& out, const std::string& own_build);

// A line, read again.
struct CellLine {
  Fields fields;
  std::vector<Fields> segments;  // rows of segments.csv
  std::string build;             // "version commit" of the program that wrote it
  std::string path;              // "device isa precision": equal paths give bitwise equal numbers
};

// Reads lines by their location. Keeps one file open: neighbours in a table are mostly neighbours in a shard.
class LineReader {
 public:
  explicit LineReader(const Shards& shards) : shards_(shards) {}
  CellLine read(const LineAt& at);  // throws OutputError if the line has changed since

 private:
  const Shards& shards_;
  uint32_t open_ = UINT32_MAX;
  std::ifstream in_;
};

}  // namespace kvreplay
