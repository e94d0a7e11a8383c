#include "results/columns.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json_text.hpp"
#include "catalog/cell.hpp"

namespace kvreplay {
namespace {

struct Sources {
  const Cell& cell;
  const CellResult& result;
  const ProcessRecord& process;
};

struct Source {
  Column column;
  std::string (*json)(const Sources&);
};

constexpr const char* kEmpty = "null";

std::string or_empty(const std::string& text) { return text.empty() ? kEmpty : json_of(text); }

std::string error_text(const Sources& s) {
  std::string text = s.result.error;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return json_of(text);
}
std::string extras_text(const Sources& s) {
  JsonObject extras;
  for (const auto& [name, value] : s.result.measures.extras) extras.add(name, value);
  return extras.empty() ? kEmpty : json_of(extras.text());
}
// The CPU replays cells that the device cannot replay.
std::string device(const Sources& s) { return s.result.on_cpu ? json_of("cpu") : or_empty(s.process.device); }
template <auto Member>
std::string seconds(const Sources& s) {
  return s.result.ok ? json_of(s.result.measures.*Member) : kEmpty;
}

// Columns that identify the cell.
constexpr Source kIdentity[] = {
    {{"key", "", "hash of everything that determines the numbers", false, false},
     [](const Sources& s) { return json_of(s.cell.key); }},
    {{"trace_id", "", "hash of the trace's content", false, false},
     [](const Sources& s) { return json_of(s.cell.variant->trace->trace_id); }},
    {{"model", "", "model the trace was recorded from", false, false},
     [](const Sources& s) { return json_of(s.cell.variant->trace->model); }},
    {{"prompt", "", "prompt in the trace", false, false},
     [](const Sources& s) { return json_of(s.cell.place.prompt); }},
    {{"layer", "", "layer of the model, from 0", false, false},
     [](const Sources& s) { return json_of(s.cell.place.layer); }},
    {{"kv_head", "", "key/value head of the layer, from 0", false, false},
     [](const Sources& s) { return json_of(s.cell.place.kv_head); }},
    {{"method", "", "compression method", false, false},
     [](const Sources& s) { return json_of(std::string(s.cell.method().info.name)); }},
    {{"params", "", "all parameters, resolved, as canonical JSON", false, false},
     [](const Sources& s) { return json_of(s.cell.variant->params); }},
    {{"budget_tokens", "tokens", "budget per kv head, empty if the method takes none", false, false},
     [](const Sources& s) { return s.cell.budget.none() ? kEmpty : json_of(s.cell.budget.tokens); }},
    {{"seed", "", "seed, empty if nothing is random", false, false},
     [](const Sources& s) { return s.cell.seed ? json_of(*s.cell.seed) : kEmpty; }},
    {{"n_prefill", "tokens", "tokens that arrive in the prompt call", false, false},
     [](const Sources& s) { return json_of(s.cell.extent.prompt_tokens); }},
    {{"n_tokens", "tokens", "tokens replayed, prompt included", false, false},
     [](const Sources& s) { return json_of(s.cell.extent.tokens); }},
    {{"n_queries", "rows", "decode rows that were scored", false, false},
     [](const Sources& s) { return s.result.ok ? json_of(s.result.n_queries) : kEmpty; }},
};

// Columns about the outcome. In the table they follow this metric.
constexpr size_t kOutcomeAfter = Metric("bound_holds").index;
constexpr Source kOutcome[] = {
    {{"select_s", "s", "time of this run at the end of the prompt: scores and the cut", false, true},
     seconds<&Measured::select_s>},
    {{"attend_s", "s", "time of this run in decode steps: attention and evictions", false, true},
     seconds<&Measured::attend_s>},
    {{"status", "", "ok or failed", false, false},
     [](const Sources& s) { return json_of(std::string(s.result.ok ? "ok" : "failed")); }},
    {{"error", "", "why it failed", false, false}, error_text},
};

constexpr Source kRemarks[] = {
    {{"given", "", "parameters and options that are not the method's defaults, as canonical JSON", false, false},
     [](const Sources& s) { return json_of(s.cell.variant->given); }},
    {{"extras", "", "what the method reports about itself, as canonical JSON", false, false}, extras_text},
    {{"precision", "", "width of the arithmetic: single or double", false, false},
     [](const Sources& s) { return or_empty(s.process.precision); }},
    {{"device", "", "where it was computed", false, false}, device},
    {{"schema", "", "version of the definitions", false, false},
     [](const Sources& s) { return json_of(s.process.schema); }},
    {{kShareColumn, "",
      "shares of the full cache's bytes (budget.of says which) that the budget was asked for, as 0.1;0.2", false,
      false},
     [](const Sources& s) { return or_empty(shares_text(s.cell.shares)); }},
};

JsonObject row_object(const Sources& sources) {
  JsonObject row;
  for (const auto& table :
       {std::span<const Source>(kIdentity), std::span<const Source>(kOutcome), std::span<const Source>(kRemarks)})
    for (const Source& source : table) row.add_json(source.column.name, source.json(sources));
  const auto values = sources.result.measures.all();
  for (size_t i = 0; i < values.size(); ++i)
    row.add_json(kMetrics[i].name, sources.result.ok && values[i] ? json_of(*values[i]) : kEmpty);
  return row;
}

bool finite(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isfinite(x); });
}

// Name of a value in the result that is not a number, or "".
std::string not_a_number(const CellResult& result) {
  const auto values = result.measures.all();
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] && !std::isfinite(*values[i])) return kMetrics[i].name;
  for (const auto& [name, value] : result.measures.extras)
    if (!std::isfinite(value)) return name;
  if (!finite(result.rel_err)) return "rel_err of a row";
  if (!finite(result.partition_err)) return "partition_err of a row";
  if (!finite(result.out)) return "out of a row";
  if (!finite(result.num) || !finite(result.den)) return "the weight of a kept token";
  return "";
}

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
  std::string out = "\"";
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

}  // namespace

const std::vector<Column>& columns() {
  static const std::vector<Column> all = [] {
    std::vector<Column> out;
    const auto add = [&](std::span<const Source> table) {
      for (const Source& source : table) out.push_back(source.column);
    };
    add(kIdentity);
    for (const MetricInfo& metric : kMetrics) {
      out.push_back({metric.name, metric.unit, metric.help, true, false});
      if (size_t(&metric - kMetrics) == kOutcomeAfter) add(kOutcome);
    }
    add(kRemarks);
    return out;
  }();
  return all;
}

Row row_of(const Cell& cell, const CellResult& result, const ProcessRecord& process) {
  const std::string culprit = result.ok ? not_a_number(result) : "";
  if (culprit.empty()) return {result.ok, row_object({cell, result, process}).text()};
  CellResult failed;
  failed.ok = false;
  failed.error = "internal error: " + culprit + " is not a finite number";
  return {false, row_object({cell, failed, process}).text()};
}

std::string shares_text(const std::vector<double>& shares) {
  std::vector<std::string> all;
  for (const double share : shares) all.push_back(number_text(share));
  return join(all, ";");
}

std::vector<std::string> column_names() {
  std::vector<std::string> names;
  for (const Column& column : columns()) names.emplace_back(column.name);
  return names;
}

size_t column_index(std::string_view name) {
  static const std::unordered_map<std::string_view, size_t> at = [] {
    std::unordered_map<std::string_view, size_t> places;
    for (const Column& column : columns()) places.emplace(column.name, places.size());
    return places;
  }();
  return at.at(name);
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::vector<std::string> out;
  for (const std::string& field : fields) out.push_back(quoted(field));
  return join(out, ",") + "\n";
}

}  // namespace kvreplay
