#include "results/columns.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json_text.hpp"
#include "catalog/cell.hpp"
#include "formats/registry.hpp"

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

constexpr Column fact(const char* name, const char* unit, const char* help) { return {name, unit, help}; }
constexpr Column identity(const char* name, const char* unit, const char* help) {
  return {.name = name, .unit = unit, .help = help, .identity = true};
}
constexpr Column time_of(const char* name, const char* unit, const char* help) {
  return {.name = name, .unit = unit, .help = help, .timing = true};
}
Column measure(const MetricInfo& metric) {
  return {
      .name = metric.name, .unit = metric.unit, .help = metric.help, .measure = true, .comparison = metric.comparison};
}

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

// A word as it is, a map as text.
std::string row_format_text(const Sources& s) {
  const RowFormat here = at_layer(s.cell.options().row_format, s.cell.place.layer, s.cell.variant->trace->n_layers);
  const std::string json = row_format_json(here);
  return json.starts_with('"') ? json : json_of(json);
}

// Columns about the cell.
constexpr Source kCell[] = {
    {fact("key", "", "hash of everything that determines the numbers"),
     [](const Sources& s) { return json_of(s.cell.key); }},
    {identity("trace_id", "", "hash of the trace's content"),
     [](const Sources& s) { return json_of(s.cell.variant->trace->trace_id); }},
    {fact("model", "", "model the trace was recorded from"),
     [](const Sources& s) { return json_of(s.cell.variant->trace->model); }},
    {identity("prompt", "", "prompt in the trace"), [](const Sources& s) { return json_of(s.cell.place.prompt); }},
    {identity("layer", "", "layer of the model, from 0"), [](const Sources& s) { return json_of(s.cell.place.layer); }},
    {identity("kv_head", "", "key/value head of the layer, from 0"),
     [](const Sources& s) { return json_of(s.cell.place.kv_head); }},
    {identity("method", "", "compression method"), [](const Sources& s) { return json_of(s.cell.method_name()); }},
    {fact("params", "", "all parameters, resolved, as canonical JSON"),
     [](const Sources& s) { return json_of(s.cell.variant->params); }},
    {identity("budget_tokens", "tokens", "budget per kv head, empty if the method takes none"),
     [](const Sources& s) { return s.cell.budget.none() ? kEmpty : json_of(s.cell.budget.tokens); }},
    {identity("seed", "", "seed, empty if nothing is random"),
     [](const Sources& s) { return s.cell.seed ? json_of(*s.cell.seed) : kEmpty; }},
    {fact("n_prefill", "tokens", "tokens that arrive in the prompt call"),
     [](const Sources& s) { return json_of(s.cell.extent.prompt_tokens); }},
    {fact("n_tokens", "tokens", "tokens replayed, prompt included"),
     [](const Sources& s) { return json_of(s.cell.extent.tokens); }},
    {fact("n_queries", "rows", "decode rows that were scored"),
     [](const Sources& s) { return s.result.ok ? json_of(s.result.n_queries) : kEmpty; }},
};

// Columns about the outcome. In the table they follow this metric.
constexpr size_t kOutcomeAfter = Metric("bound_holds").index;
constexpr Source kOutcome[] = {
    {time_of("select_s", "s", "time of this run at the end of the prompt: scores and the cut"),
     seconds<&Measured::select_s>},
    {time_of("attend_s", "s", "time of this run in decode steps: attention and evictions"),
     seconds<&Measured::attend_s>},
    {fact("status", "", "ok or failed"),
     [](const Sources& s) { return json_of(std::string(s.result.ok ? "ok" : "failed")); }},
    {fact("error", "", "why it failed"), error_text},
};

constexpr Source kRemarks[] = {
    {identity("given", "", "parameters and options that are not the method's defaults, as canonical JSON"),
     [](const Sources& s) { return json_of(s.cell.variant->given); }},
    {fact("extras", "", "what the method reports about itself, as canonical JSON"), extras_text},
    {fact("precision", "", "width of the arithmetic: single or double"),
     [](const Sources& s) { return or_empty(s.process.precision); }},
    {fact("device", "", "where it was computed"), device},
    {fact("schema", "", "version of the definitions"), [](const Sources& s) { return json_of(s.process.schema); }},
    {fact(kShareColumn, "",
          "shares of the full cache's bytes (budget.of says which) that the budget was asked for, as 0.1;0.2"),
     [](const Sources& s) { return or_empty(shares_text(s.cell.shares)); }},
    {fact("row_format", "", "how the head's rows are stored: a word, or a map as canonical JSON"), row_format_text},
};

JsonObject row_object(const Sources& sources) {
  JsonObject row;
  for (const auto& table :
       {std::span<const Source>(kCell), std::span<const Source>(kOutcome), std::span<const Source>(kRemarks)})
    for (const Source& source : table) row.add_json(source.column.name, source.json(sources));
  const auto values = sources.result.measures.all();
  for (size_t i = 0; i < values.size(); ++i)
    row.add_json(kMetrics[i].name, sources.result.ok && values[i] ? json_of(*values[i]) : kEmpty);
  return row;
}

struct SegmentSource {
  Column column;
  std::string (*json)(const SegmentResult&);
};

std::string or_null(const std::optional<double>& value) { return value ? json_of(*value) : kEmpty; }

// All columns of segments.csv behind the key.
constexpr SegmentSource kSegments[] = {
    {fact("segment", "", "index of the output in the trace's segments, or of the branch"),
     [](const SegmentResult& s) { return json_of(s.number); }},
    {fact("name", "", "its name, or output"),
     [](const SegmentResult& s) { return json_of(s.name.empty() ? std::string("output") : s.name); }},
    {fact("first_row", "", "token of its first scored row"),
     [](const SegmentResult& s) { return json_of(s.first_row); }},
    {fact("rows", "rows", "scored rows"), [](const SegmentResult& s) { return json_of(s.rows); }},
    {fact("tokens_seen", "tokens", "tokens before its first one"),
     [](const SegmentResult& s) { return json_of(s.tokens_seen); }},
    {fact("resident_tokens", "tokens", "tokens in the cache when it begins"),
     [](const SegmentResult& s) { return json_of(s.resident_tokens); }},
    {fact("rel_err_out_mean", "1", "as in results.csv, over its rows"),
     [](const SegmentResult& s) { return or_null(s.rel_err_mean); }},
    {fact("rel_err_out_max", "1", "as in results.csv, over its rows"),
     [](const SegmentResult& s) { return or_null(s.rel_err_max); }},
    {fact("kept_mass_mean", "1", "as in results.csv, over its rows"),
     [](const SegmentResult& s) { return or_null(s.kept_mass_mean); }},
    {fact("needle_mass", "1", "as in results.csv, over its rows"),
     [](const SegmentResult& s) { return or_null(s.needle_mass); }},
};

std::string segments_json(const std::vector<SegmentResult>& segments) {
  std::vector<std::string> rows;
  for (const SegmentResult& segment : segments) {
    JsonObject row;
    for (const SegmentSource& source : kSegments) row.add_json(source.column.name, source.json(segment));
    rows.push_back(row.text());
  }
  return rows.empty() ? "" : "[" + join(rows, ",") + "]";
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
  for (const auto& [branch, lists] : result.branches)
    if (!finite(lists.num) || !finite(lists.den)) return "the weight of a kept token";
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
    add(kCell);
    for (const MetricInfo& metric : kMetrics) {
      out.push_back(measure(metric));
      if (size_t(&metric - kMetrics) == kOutcomeAfter) add(kOutcome);
    }
    add(kRemarks);
    return out;
  }();
  return all;
}

const std::vector<Column>& segment_columns() {
  static const std::vector<Column> all = [] {
    std::vector<Column> out = {kCell[0].column};
    for (const SegmentSource& source : kSegments) out.push_back(source.column);
    return out;
  }();
  return all;
}

JsonObject column_facts(const Column& column) {
  JsonObject facts;
  facts.add("unit", std::string(column.unit)).add("help", std::string(column.help)).add("timing", column.timing);
  if (column.identity) facts.add("identity", true);
  if (column.comparison.better == Better::unsaid) return facts;
  const std::string words = column.comparison.words;
  facts.add("better", std::string(word(column.comparison.better)));
  return facts.add("words", words.empty() ? column.name : words);
}

Row row_of(const Cell& cell, const CellResult& result, const ProcessRecord& process) {
  const std::string culprit = result.ok ? not_a_number(result) : "";
  if (culprit.empty()) return {result.ok, row_object({cell, result, process}).text(), segments_json(result.segments)};
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

std::vector<double> shares_of_text(std::string_view text) {
  std::vector<double> shares;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(';', at), text.size());
    if (const auto share = parse_number<double>(text.substr(at, end - at))) shares.push_back(*share);
    at = end + 1;
  }
  return shares;
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
