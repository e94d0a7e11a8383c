#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "measures/cell_result.hpp"

// The columns of results.csv: what a cell is, and what it is measured by (measures/metrics.hpp).

namespace kvreplay {

struct Column {  // the table drives csv, meta, `list metrics` and the docs
  const char* name;
  const char* unit;  // "1" = a pure number, "" = not a number
  const char* help;
  bool measure;  // may be named under `metrics:`
  bool timing;   // left out of every comparison
};
const std::vector<Column>& columns();

// What is the same for all cells of a process.
struct ProcessRecord {
  std::string version, git_commit;
  std::string precision, device, isa;  // "": not known
  std::string host;
  int schema = 0;

  std::string build() const { return version + " " + git_commit; }
};

// One row. A measure that is not a finite number is a bug of ours: the row is then a failed one that says so.
struct Row {
  bool ok = false;
  std::string json;  // of each column its value; null is an empty field
};
Row row_of(const Cell& cell, const CellResult& result, const ProcessRecord& process);

// The column of a table that says what a cell's budget was asked for. A cell is the same whoever asked: what is
// published of it has no share.
constexpr const char* kShareColumn = "budget_share";
std::string shares_text(const std::vector<double>& shares);

std::vector<std::string> column_names();
size_t column_index(std::string_view name);  // in columns()
// Fields joined by commas and quoted where needed, with the line's end.
std::string csv_line(const std::vector<std::string>& fields);

}  // namespace kvreplay
