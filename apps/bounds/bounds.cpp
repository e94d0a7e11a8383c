#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bounds/inputs.hpp"
#include "apps/config_options.hpp"
#include "apps/summary.hpp"
#include "base/text.hpp"
#include "results/columns.hpp"

// `kvreplay bounds [PAPER...]`: what the papers' theorems require and promise, as a table, CSV or JSON.

namespace kvreplay::app {
namespace {

using nlohmann::json;

constexpr const char* kBoundsExamples =
    "Theorems state orders: their constants are 1 unless set, and sizes are shown as log10.\n"
    "examples:\n"
    "  kvreplay bounds                                             # every paper, default inputs\n"
    "  kvreplay bounds subgen --n 1024,4096 --delta 2 --r 6 --constant c_t=2\n"
    "  kvreplay bounds balancekv --trace TRACE.h5 --layers 0,15    # norms measured for each kv head\n"
    "  kvreplay bounds buzz --sinks 4 --window 50 --stride 3,4,5 --threshold 125 --csv\n";

// The rows of one set of inputs.
struct Computed {
  const BoundPaper* paper;
  BoundCase of;
  std::vector<BoundRow> rows;
};

std::vector<std::vector<Computed>> computed(const BoundChoices& choices) {
  const std::vector<const BoundPaper*> papers = chosen_papers(choices);
  auto cases = bound_cases(choices, papers);
  std::vector<std::vector<Computed>> all(papers.size());
  for (size_t i = 0; i < papers.size(); ++i)
    for (BoundCase& one : cases[i]) {
      std::vector<BoundRow> rows = papers[i]->rows(one.inputs);
      all[i].push_back({papers[i], std::move(one), std::move(rows)});
    }
  return all;
}

// A whole number is written without a point, as in all output.
json number(double x) { return json::parse(number_text(x)); }
json or_null(const std::optional<double>& x) { return x ? number(*x) : json(nullptr); }

std::string as_json(const std::vector<std::vector<Computed>>& all) {
  json list = json::array();
  for (const auto& of_paper : all)
    for (const Computed& c : of_paper) {
      json inputs;
      for (const auto& [name, value] : c.of.inputs)
        inputs[name] = name == "variant" ? json(bound_input_text(name, value)) : number(value);
      for (const BoundRow& row : c.rows)
        list.push_back({{"paper", c.paper->name},
                        {"quantity", row.quantity},
                        {"layer", c.of.layer ? json(*c.of.layer) : json(nullptr)},
                        {"kv_head", c.of.kv_head ? json(*c.of.kv_head) : json(nullptr)},
                        {"inputs", inputs},
                        {"log10_value", or_null(row.log10)},
                        {"value", or_null(row.value)},
                        {"unit", row.unit},
                        {"holds_with_probability", or_null(row.probability)},
                        {"note", row.note}});
    }
  return list.dump(2) + "\n";
}

std::string or_empty(const std::optional<double>& x) { return x ? number_text(*x) : ""; }
std::string or_empty(const std::optional<int32_t>& x) { return x ? std::to_string(*x) : ""; }

std::string as_csv(const std::vector<std::vector<Computed>>& all) {
  const std::vector<std::string> inputs = bound_input_names();
  std::vector<std::string> fields = {"paper", "quantity", "layer", "kv_head"};
  fields.insert(fields.end(), inputs.begin(), inputs.end());
  fields.insert(fields.end(), {"log10_value", "value", "unit", "holds_with_probability", "note"});
  std::string text = csv_line(fields);
  for (const auto& of_paper : all)
    for (const Computed& c : of_paper)
      for (const BoundRow& row : c.rows) {
        fields = {c.paper->name, row.quantity, or_empty(c.of.layer), or_empty(c.of.kv_head)};
        for (const std::string& name : inputs) {
          const auto at = c.of.inputs.find(name);
          fields.push_back(at == c.of.inputs.end() ? "" : bound_input_text(name, at->second));
        }
        fields.insert(fields.end(),
                      {or_empty(row.log10), or_empty(row.value), row.unit, or_empty(row.probability), row.note});
        text += csv_line(fields);
      }
  return text;
}

// Inputs that are equal in all cases of a paper are shown above its table, the others are columns.
bool varies(const std::vector<Computed>& cases, const std::string& name) {
  return std::any_of(cases.begin(), cases.end(),
                     [&](const Computed& c) { return c.of.inputs.at(name) != cases[0].of.inputs.at(name); });
}

std::string short_text(const std::string& name, double value) {
  return name == "variant" ? bound_input_text(name, value) : fmt::format("{:.6g}", value);
}

std::vector<std::string> table_fields(const Computed& c, const std::vector<std::string>& columns, const BoundRow& row) {
  std::vector<std::string> fields;
  if (c.of.layer) fields = {or_empty(c.of.layer), or_empty(c.of.kv_head)};
  for (const std::string& name : columns) fields.push_back(short_text(name, c.of.inputs.at(name)));
  const auto shown = [](const std::optional<double>& x, int digits) {
    return x ? fmt::format("{:.{}g}", *x, digits) : "-";
  };
  fields.insert(fields.end(), {row.quantity, row.log10 ? fmt::format("{:.3f}", *row.log10) : "-", shown(row.value, 6),
                               row.unit, shown(row.probability, 10), row.note});
  return fields;
}

std::string as_table(const std::vector<Computed>& cases) {
  std::string same = fmt::format("{}: {}\n ", cases[0].paper->name, cases[0].paper->title);
  std::vector<std::string> columns, head;
  for (const std::string& name : bound_input_names()) {
    if (!cases[0].of.inputs.contains(name)) continue;
    if (varies(cases, name)) columns.push_back(name);
    else same += fmt::format(" {}={}", name, short_text(name, cases[0].of.inputs.at(name)));
  }
  if (cases[0].of.layer) head = {"layer", "kv_head"};
  head.insert(head.end(), columns.begin(), columns.end());
  head.insert(head.end(), {"quantity", "log10", "value", "unit", "holds", "note"});
  std::vector<std::vector<std::string>> table = {head};
  for (const Computed& c : cases)
    for (const BoundRow& row : c.rows) table.push_back(table_fields(c, columns, row));
  return same + "\n" + left_aligned(table);
}

int bounds(const BoundChoices& choices) {
  const auto all = computed(choices);
  if (choices.json) return print(as_json(all)), 0;
  if (choices.csv) return print(as_csv(all)), 0;
  std::vector<std::string> tables;
  for (const auto& of_paper : all) tables.push_back(as_table(of_paper));
  print(join(tables, "\n"));
  return 0;
}

}  // namespace

void add_bounds(Command& app) {
  const auto choices = std::make_shared<BoundChoices>();
  Command command =
      app.command("bounds", "the papers' bounds for given n, d, r, delta, epsilon, or measured from a trace");
  add_bound_options(command, *choices);
  command.footer(kBoundsExamples);
  command.runs([choices](Context&) {
    std::erase_if(choices->lists, [&](const auto& list) { return !choices->inputs.at(list.first).given(); });
    return bounds(*choices);
  });
}

}  // namespace kvreplay::app
