#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json_text.hpp"
#include "measures/accumulator.hpp"

// The columns of results.csv: facts about a cell and its outcome, and its metrics (measures/metrics.hpp).

namespace kvreplay {

struct Column {  // the table drives csv, meta, `list metrics` and the docs
  const char* name;
  const char* unit;  // "1" = a pure number, "" = not a number
  const char* help;
  bool identity = false;  // names the cell: rows that are equal in these columns are of one cell
  bool timing = false;    // left out of every comparison
  bool measure = false;   // may be named under `metrics:`
  Comparison comparison = {};
};
const std::vector<Column>& columns();
// {"unit", "help", "timing"} and, where they say something, "identity", "better" ("less" or "more") and "words".
JsonObject column_facts(const Column& column);

// Facts that all cells of a process share.
struct ProcessRecord {
  std::string version, git_commit;
  std::string precision, device, isa;  // "": unknown
  std::string host;
  int schema = 0;

  std::string build() const { return version + " " + git_commit; }
};

// One row. A measure that is not a finite number is a bug of this program: the row is then marked as failed and says
// so.
struct Row {
  bool ok = false;
  std::string json;           // value of each column; null is an empty field
  std::string segments = "";  // with turns or branches: the rows of segments.csv without the key, as JSON
};
Row row_of(const Cell& cell, const CellResult& result, const ProcessRecord& process);

// The columns of segments.csv, which has a row for each output or branch of each cell. The first is the key.
const std::vector<Column>& segment_columns();

// The column with the shares that a budget was asked for. Shares are no part of a cell, so its published line has none.
constexpr const char* kShareColumn = "budget_share";
std::string shares_text(const std::vector<double>& shares);
std::vector<double> shares_of_text(std::string_view text);

std::vector<std::string> column_names();
size_t column_index(std::string_view name);  // index in columns()
// Fields joined by commas and quoted where needed, with the line's end.
std::string csv_line(const std::vector<std::string>& fields);

}  // namespace kvreplay
