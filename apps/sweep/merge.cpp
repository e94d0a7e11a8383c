#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "apps/earlier_results.hpp"
#include "apps/exit_codes.hpp"
#include "apps/meta.hpp"
#include "apps/remarks.hpp"
#include "apps/summary.hpp"
#include "apps/sweep/sweep.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "results/repeats.hpp"

// `kvreplay sweep merge`: writes the table that one machine would have written.

namespace kvreplay::app {
namespace {

std::string record_of(const Manifest& manifest, const std::string& command_line) {
  JsonObject record = run_record(manifest.config, trace_records(manifest.traces), command_line);
  if (!manifest.unreachable.empty()) record.add_json("unreachable", manifest.unreachable);
  return record.add("plan", manifest.name).text();
}

void tell_repeats(const Repeats& repeats, Console& console) {
  if (repeats.equal > 0)
    console.note(fmt::format("{} cells were computed more than once, with the same numbers", repeats.equal));
  if (repeats.replaced > 0)
    console.note(fmt::format("{} results of other builds are replaced by this one's", repeats.replaced));
  if (repeats.elsewhere > 0)
    console.warning(
        fmt::format("{} cells have other numbers on another path (device, instruction set, precision); the "
                    "line in the first file by name is kept",
                    repeats.elsewhere));
}

SharesOfCells shares_of(const Manifest& manifest) {
  SharesOfCells shares;
  const Keys keys = manifest.keys();
  for (size_t i = 0; i < keys.size(); ++i)
    if (const std::string text = shares_text(shares_in(manifest.cells[i])); !text.empty()) shares[keys[i]] = text;
  return shares;
}

void expect_cells(const Manifest& manifest, Summary& summary) {
  for (const std::string& line : manifest.cells) try {
      const nlohmann::json cell = nlohmann::json::parse(line);
      const nlohmann::json& budget = cell.at("budget_tokens");
      summary.expect(cell.at("key"), NamedInstance{cell.at("method"), cell.at("given").dump()}.label(),
                     budget.is_null() ? 0 : budget.get<int32_t>(), shares_in(line));
    } catch (const nlohmann::json::exception&) {
      throw ConfigError(fmt::format("plan {}: error: a line names no cell: {}", manifest.name, line.substr(0, 80)));
    }
  for (const nlohmann::json& one : nlohmann::json::parse(manifest.unreachable.empty() ? "[]" : manifest.unreachable))
    if (one.at("heads") == one.at("of_heads"))
      summary.expect_none(NamedInstance{one.at("method"), one.at("given").dump()}.label(), one.at("share"),
                          one.at("floor_low"));
}

// Appends cells that a run has added to a sweep's directory.
Keys with_others(Keys keys, const ResultsFolder& folder) {
  const Keys others = folder.others(keys);
  keys.insert(keys.end(), others.begin(), others.end());
  return keys;
}

}  // namespace

int merge_sweep(const Sweep& sweep, bool partial, Context& context) {
  Console& console = context.console;
  const Manifest& manifest = sweep.manifest;
  const ResultsFolder& folder = sweep.folder;
  const SweepStatus& status = sweep.status;
  const std::string out = folder.dir().string();
  refuse_foreign_table(folder.dir(), false);
  warn_damaged_lines(folder, console);
  if (!status.complete() && !partial) {
    console.error(
        fmt::format("{}: {} of {} cells are missing{}. Run what is left (kvreplay sweep submit {} --engine "
                    "local), or take what is there with --partial",
                    out, status.missing + status.failed, status.cells,
                    status.failed > 0 ? fmt::format(", {} of them failed and will be tried again", status.failed) : "",
                    shell_quoted(out)));
    return kStoppedEarly;
  }
  tell_repeats(compare_repeats(folder), console);
  Summary summary;
  Failures failures;
  expect_cells(manifest, summary);
  const Keys own = manifest.keys();
  const Keys table = with_others(own, folder);
  const std::unordered_set<std::string> planned(own.begin(), own.end());
  const std::string record = with_earlier_records(record_of(manifest, context.command_line), folder, own);
  const auto visit = [&](const Fields& row) {
    if (planned.count(row[column_index("key")]) == 0) return;
    summary.add(row);
    failures.add(row);
  };
  const SharesOfCells shares = with_earlier_shares(shares_of(manifest), folder, table);
  const Notes notes = folder.write_tables(table, record, visit, shares);
  print(summary.text(notes));
  failures.tell(console);
  print_notes(notes, console);
  console.note(fmt::format("wrote {}", (folder.dir() / "results.csv").string()));
  if (!status.complete()) console.warning(fmt::format("{} cells are missing", status.missing));
  return status.failed + status.parked > 0 ? kSomeFailed : 0;
}

void add_sweep_merge(Command& sweep) {
  struct Choices {
    std::string out;
    bool partial = false;
  };
  Command command = sweep.command("merge", "write results.csv from what the workers have published");
  command.footer(sweep_example("merge out/first"));
  const auto choices = std::make_shared<Choices>();
  add_out_option(command, choices->out);
  command.flag("--partial", choices->partial, "also while cells are missing");
  command.runs([choices](Context& context) { return merge_sweep(sweep_in(choices->out), choices->partial, context); });
}

}  // namespace kvreplay::app
