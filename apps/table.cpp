#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/summary.hpp"
#include "base/csv_rows.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "results/columns.hpp"
#include "results/folder.hpp"

// `kvreplay table OUT`: the table that `run` and `sweep merge` print, from the files that they wrote.

namespace kvreplay::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The rows of a results.csv, which may be of another version: a column that it lacks is empty.
class WrittenRows {
 public:
  explicit WrittenRows(const fs::path& dir) : file_(dir / kTableFile) {
    if (!fs::is_regular_file(file_))
      throw TraceError(
          fmt::format("{}: holds no {}. table takes the output directory of a run", dir.string(), kTableFile));
    rows_ = read_csv(file_);
    if (rows_.size() < 2) throw TraceError(fmt::format("{}: has no cell yet", file_.string()));
    for (const std::string& name : rows_.front().fields) at_.push_back(place_of(name));
    for (const char* name : {"method", "budget_tokens", "status", "total_bytes", "full_bytes"})
      if (std::find(at_.begin(), at_.end(), int64_t(column_index(name))) == at_.end())
        throw TraceError(fmt::format("{}: not a kvreplay results file: it has no column {}", file_.string(), name));
  }

  template <class Visit>
  void each(Visit visit) const {
    for (size_t i = 1; i < rows_.size(); ++i) visit(row(rows_[i]));
  }

 private:
  static int64_t place_of(const std::string& name) {
    const std::vector<std::string> names = column_names();
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? -1 : found - names.begin();
  }
  Fields row(const CsvRow& written) const {
    if (written.fields.size() != at_.size())
      throw TraceError(fmt::format("{}:{}: has {} fields, and the header {}: is it cut off?", file_.string(),
                                   written.line, written.fields.size(), at_.size()));
    Fields fields(columns().size());
    for (size_t i = 0; i < at_.size(); ++i)
      if (at_[i] >= 0) fields[size_t(at_[i])] = written.fields[i];
    // Tables of older versions name an instance by all its parameters.
    if (std::string& given = fields[column_index("given")]; given.empty()) given = fields[column_index("params")];
    return fields;
  }

  fs::path file_;
  std::vector<CsvRow> rows_;
  std::vector<int64_t> at_;  // index in columns() of each of the file's columns; -1: another column
};

json meta_of(const fs::path& dir) {
  std::ifstream in(dir / kMetaFile);
  json meta = in ? json::parse(in, nullptr, false) : json::object();
  if (!meta.is_object())
    throw TraceError(fmt::format("{}: is not JSON: run the same command again", (dir / kMetaFile).string()));
  return meta;
}

std::string label_in(const json& one) { return NamedInstance{one.at("method"), one.at("given").dump()}.label(); }

Summary summary_of(const WrittenRows& rows, const json& meta) {
  Summary summary;
  rows.each([&](Fields row) {
    const auto field = [&](const char* name) -> std::string& { return row[column_index(name)]; };
    const std::string given = field("given").empty() ? "{}" : field("given");
    const std::string label = NamedInstance{field("method"), given}.label();
    summary.expect(field("key"), label, parse_number<int32_t>(field("budget_tokens")).value_or(0),
                   shares_of_text(field(kShareColumn)));
  });
  for (const json& one : meta.value("unreachable", json::array()))
    if (one.at("heads") == one.at("of_heads") && !one.value("fails_in_run", false))
      summary.expect_none(label_in(one), one.at("share"), one.at("floor_low"));
  rows.each([&](const Fields& row) { summary.add(row); });
  return summary;
}

int table(const fs::path& dir) {
  const WrittenRows rows(dir);
  const json meta = meta_of(dir);
  try {
    print(summary_of(rows, meta).text(notes_of_json(meta.value("notes", json::array()).dump())));
  } catch (const json::exception& error) {
    throw TraceError(fmt::format("{}: {} or {} is damaged: {}", dir.string(), kTableFile, kMetaFile, error.what()));
  }
  return 0;
}

}  // namespace

void add_table(Command& app) {
  Command command = app.command("table", "the table that a run has printed, from its results");
  const auto out = std::make_shared<std::string>();
  command.option("out", *out, "the output directory of a run").type("DIR").required();
  command.footer("examples:\n  kvreplay table out/first\n");
  command.runs([out](Context&) { return table(*out); });
}

}  // namespace kvreplay::app
