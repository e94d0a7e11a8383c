#include "results/columns.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

struct Row {
  const Cell& cell;
  const CellResult& result;
  const json& run;
};

struct Source {
  Column column;
  json (*value)(const Row&);
};

json value_of(double value) { return value; }
json value_of(int64_t value) { return value; }
json value_of(bool value) { return value ? 1 : 0; }  // read as a share of 0 or 1 by those who average
template <class T>
json value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : json();
}

template <auto CellMeasures::*Member>
json measured(const Row& row) {
  return row.result.ok ? value_of(row.result.measures.*Member) : json();
}
template <auto Cell::*Member>
json identity(const Row& row) {
  return row.cell.*Member;
}
template <auto Cell::*Member>
json identity_if_any(const Row& row) {
  return row.cell.*Member ? json(*(row.cell.*Member)) : json();
}
template <size_t Part>
json quarter(const Row& row) {
  return row.result.ok ? value_of(row.result.measures.rel_err_quarters[Part - 1]) : json();
}
json method_name(const Row& row) { return row.cell.method->info.name; }
json params_text(const Row& row) { return canonical(row.cell.params); }
json given_text(const Row& row) { return canonical(given_of(row.cell)); }
json status(const Row& row) { return row.result.ok ? "ok" : "failed"; }
json error_text(const Row& row) {
  std::string text = row.result.error;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}
json extras_text(const Row& row) {
  return row.result.measures.extras.empty() ? json() : json(canonical(row.result.measures.extras));
}
json precision(const Row& row) { return row.run.value("precision", json()); }
// A cell that the device has no way for is the cores' work.
json device(const Row& row) { return row.result.by_cores ? json("cpu") : row.run.value("device", json()); }
json schema(const Row& row) { return row.run.value("schema", json()); }

using M = CellMeasures;

constexpr bool kMeasure = true, kTiming = true, kNot = false;

const std::vector<Source>& sources() {
  static const std::vector<Source> table = {
      {{"key", "", "hash of everything that determines the numbers", kNot, kNot}, identity<&Cell::key>},
      {{"trace_id", "", "hash of the trace's content", kNot, kNot}, identity<&Cell::trace_id>},
      {{"model", "", "model the trace was recorded from", kNot, kNot}, identity<&Cell::model>},
      {{"prompt", "", "prompt in the trace", kNot, kNot}, identity<&Cell::prompt>},
      {{"layer", "", "layer of the model, from 0", kNot, kNot}, identity<&Cell::layer>},
      {{"kv_head", "", "key/value head of the layer, from 0", kNot, kNot}, identity<&Cell::kv_head>},
      {{"method", "", "compression method", kNot, kNot}, method_name},
      {{"params", "", "all parameters, resolved, as canonical JSON", kNot, kNot}, params_text},
      {{"budget_tokens", "tokens", "budget per kv head, empty if the method takes none", kNot, kNot},
       identity_if_any<&Cell::budget>},
      {{"seed", "", "seed, empty if nothing is random", kNot, kNot}, identity_if_any<&Cell::seed>},
      {{"n_prefill", "tokens", "tokens that arrive in the prompt call", kNot, kNot},
       identity<&Cell::n_prefill>},
      {{"n_tokens", "tokens", "tokens replayed, prompt included", kNot, kNot}, identity<&Cell::n_tokens>},
      {{"n_queries", "rows", "decode rows that were scored", kNot, kNot}, measured<&M::n_queries>},
      {{"rel_err_out_mean", "1", "|z - o| / |o|, mean over heads and scored rows", kMeasure, kNot},
       measured<&M::rel_err_out_mean>},
      {{"rel_err_out_p50", "1", "the same, median", kMeasure, kNot}, measured<&M::rel_err_out_p50>},
      {{"rel_err_out_p95", "1", "the same, 95 % quantile", kMeasure, kNot}, measured<&M::rel_err_out_p95>},
      {{"rel_err_out_max", "1", "the same, maximum", kMeasure, kNot}, measured<&M::rel_err_out_max>},
      {{"rel_err_fro", "1", "sqrt(sum |z - o|^2 / sum |o|^2) over the last 256 scored rows", kMeasure, kNot},
       measured<&M::rel_err_fro>},
      {{"cosine_mean", "1", "cosine of z and o, mean", kMeasure, kNot}, measured<&M::cosine_mean>},
      {{"eps_spectral_mean", "1", "|z - o| / (|x| |V|_op), mean", kMeasure, kNot},
       measured<&M::eps_spectral_mean>},
      {{"eps_spectral_max", "1", "the same, maximum", kMeasure, kNot}, measured<&M::eps_spectral_max>},
      {{"eps_frobenius_mean", "1", "|z - o| / (|x| |V|_F), mean", kMeasure, kNot},
       measured<&M::eps_frobenius_mean>},
      {{"eps_frobenius_max", "1", "the same, maximum", kMeasure, kNot}, measured<&M::eps_frobenius_max>},
      {{"partition_err_mean", "1", "|tau / Z - 1|, mean", kMeasure, kNot}, measured<&M::partition_err_mean>},
      {{"partition_err_max", "1", "the same, maximum", kMeasure, kNot}, measured<&M::partition_err_max>},
      {{"kept_mass_mean", "1", "exact probability of the attended tokens, mean", kMeasure, kNot},
       measured<&M::kept_mass_mean>},
      {{"mass_recall", "1", "kept mass over the mass of as many best tokens, mean", kMeasure, kNot},
       measured<&M::mass_recall>},
      {{"index_recall", "1", "share of the attended tokens that are among as many best, mean", kMeasure,
        kNot},
       measured<&M::index_recall>},
      {{"peak_kept_tokens", "tokens", "resident after a step, peak", kMeasure, kNot},
       measured<&M::peak_kept_tokens>},
      {{"mean_kept_tokens", "tokens", "resident after a step, mean", kMeasure, kNot},
       measured<&M::mean_kept_tokens>},
      {{"peak_attended_tokens", "tokens", "attended in a step, peak", kMeasure, kNot},
       measured<&M::peak_attended_tokens>},
      {{"peak_bytes", "bytes", "keys, values and weights at their stored width, peak", kMeasure, kNot},
       measured<&M::peak_bytes>},
      {{"aux_bytes", "bytes", "scores, sketches and indices of the method", kMeasure, kNot},
       measured<&M::aux_bytes>},
      {{"total_bytes", "bytes", "peak_bytes + aux_bytes", kMeasure, kNot}, measured<&M::total_bytes>},
      {{"full_bytes", "bytes", "the exact cache at the last token", kMeasure, kNot},
       measured<&M::full_bytes>},
      {{"n_evictions", "tokens", "dropped from residency, the prompt's cut included", kMeasure, kNot},
       measured<&M::n_evictions>},
      {{"bound_log10_tokens", "1", "log10 of the stored rows that the method's theorem asks for", kMeasure,
        kNot},
       measured<&M::bound_log10_tokens>},
      {{"bound_holds", "1", "share of (head, row) pairs whose error is within the theorem's", kMeasure, kNot},
       measured<&M::bound_holds>},
      {{"select_s", "s", "time of this run at the end of the prompt: scores and the cut", kNot, kTiming},
       measured<&M::select_s>},
      {{"attend_s", "s", "time of this run in decode steps: attention and evictions", kNot, kTiming},
       measured<&M::attend_s>},
      {{"status", "", "ok or failed", kNot, kNot}, status},
      {{"error", "", "why it failed", kNot, kNot}, error_text},
      {{"rows_skipped", "pairs", "(head, row) pairs whose exact output is zero, left out of every ratio",
        kMeasure, kNot},
       measured<&M::rows_skipped>},
      {{"mean_attended_tokens", "tokens", "attended in a step, mean over heads and scored rows", kMeasure,
        kNot},
       measured<&M::mean_attended_tokens>},
      {{"n_quantised", "rows", "rows that the row format rewrote", kMeasure, kNot},
       measured<&M::n_quantised>},
      {{"rel_err_clamped", "1",
        "|z - o| / |max(o, 1e-8)|, mean: divides by the positive part of o; only for comparison with "
        "BalanceKV's "
        "published bars",
        kMeasure, kNot},
       measured<&M::rel_err_clamped>},
      {{"rmse", "value", "sqrt(mean of |z - o|^2 / dv)", kMeasure, kNot}, measured<&M::rmse>},
      {{"rel_err_quarter_1", "1", "rel_err_out_mean over the first quarter of the scored rows", kMeasure,
        kNot},
       quarter<1>},
      {{"rel_err_quarter_2", "1", "over the second quarter", kMeasure, kNot}, quarter<2>},
      {{"rel_err_quarter_3", "1", "over the third quarter", kMeasure, kNot}, quarter<3>},
      {{"rel_err_quarter_4", "1", "over the last quarter", kMeasure, kNot}, quarter<4>},
      {{"rel_err_prefix_mean", "1",
        "the same error with tokens after the prompt removed from z and o; one-shot", kMeasure, kNot},
       measured<&M::rel_err_prefix_mean>},
      {{"rel_err_set_mean", "1", "error of exact attention over the attended tokens: what their choice costs",
        kMeasure, kNot},
       measured<&M::rel_err_set_mean>},
      {{"rel_err_numerator_mean", "1", "|N - o| / (tau' |o|), N = z tau', tau' = tau / Z: the values' part",
        kMeasure, kNot},
       measured<&M::rel_err_numerator_mean>},
      {{"rel_err_normaliser_mean", "1", "|1 / tau' - 1|: the normaliser's part", kMeasure, kNot},
       measured<&M::rel_err_normaliser_mean>},
      {{"eps_spectral_p99", "1", "|z - o| / (|x| |V|_op), 99 % quantile", kMeasure, kNot},
       measured<&M::eps_spectral_p99>},
      {{"eps_frobenius_p99", "1", "|z - o| / (|x| |V|_F), 99 % quantile", kMeasure, kNot},
       measured<&M::eps_frobenius_p99>},
      {{"eps_additive_mean", "1",
        "numerator error / (j exp(-r^2 / sqrt(d)) max |v|), unnormalised, mean; methods with such a theorem",
        kMeasure, kNot},
       measured<&M::eps_additive_mean>},
      {{"bound_epsilon", "1", "epsilon that the method's theorem was given", kMeasure, kNot},
       measured<&M::bound_epsilon>},
      {{"bound_slack", "1", "bound_epsilon / the measured mean in the theorem's form", kMeasure, kNot},
       measured<&M::bound_slack>},
      {{"bound_probability", "1", "probability with which the theorem holds", kMeasure, kNot},
       measured<&M::bound_probability>},
      {{"bound_capped", "1", "1 if sizes were smaller than the theorem asks for, else 0", kMeasure, kNot},
       measured<&M::bound_capped>},
      {{"log_partition_err_mean", "1", "|ln tau - ln Z|, mean", kMeasure, kNot},
       measured<&M::log_partition_err_mean>},
      {{"kept_mass_min", "1", "exact probability of the attended tokens, minimum", kMeasure, kNot},
       measured<&M::kept_mass_min>},
      {{"mass_recall_min", "1", "mass_recall, minimum over rows", kMeasure, kNot},
       measured<&M::mass_recall_min>},
      {{"missed_gap_mean", "1",
        "|o_missed - z| / |o| where more than 1e-3 of the mass is missed; renormalised subsets", kMeasure,
        kNot},
       measured<&M::missed_gap_mean>},
      {{"mass_bound_mean", "1", "2 missed mass max |v| / |o|, bounds the error of renormalised subsets; mean",
        kMeasure, kNot},
       measured<&M::mass_bound_mean>},
      {{"density_mean", "1", "attended tokens / (t + 1), mean", kMeasure, kNot}, measured<&M::density_mean>},
      {{"needle_mass", "1", "attended share of the exact mass on replay.needles, mean", kMeasure, kNot},
       measured<&M::needle_mass>},
      {{"mean_bytes", "bytes", "cache and scores, sketches, indices after a step, mean", kMeasure, kNot},
       measured<&M::mean_bytes>},
      {{"final_bytes", "bytes", "the same after the last step", kMeasure, kNot}, measured<&M::final_bytes>},
      {{"equivalent_tokens", "tokens", "stored key and value numbers / (d + dv), peak", kMeasure, kNot},
       measured<&M::equivalent_tokens>},
      {{"key_floats", "numbers", "stored numbers of keys, peak", kMeasure, kNot}, measured<&M::key_floats>},
      {{"value_floats", "numbers", "stored numbers of values, peak", kMeasure, kNot},
       measured<&M::value_floats>},
      {{"weight_floats", "numbers", "weights, counts, masses, peak", kMeasure, kNot},
       measured<&M::weight_floats>},
      {{"score_bytes", "bytes", "the scores' part of aux_bytes", kMeasure, kNot}, measured<&M::score_bytes>},
      {{"sketch_bytes", "bytes", "the sketches' part of aux_bytes", kMeasure, kNot},
       measured<&M::sketch_bytes>},
      {{"index_bytes", "bytes", "the positions' part of aux_bytes", kMeasure, kNot},
       measured<&M::index_bytes>},
      {{"read_bytes_per_step", "bytes", "keys, values, weights and sketches that attention reads, mean",
        kMeasure, kNot},
       measured<&M::read_bytes_per_step>},
      {{"median_evicted_age_tokens", "tokens", "age t - i of a token i when it is dropped, median", kMeasure,
        kNot},
       measured<&M::median_evicted_age_tokens>},
      {{"given", "", "parameters and axes that are not the method's defaults, as canonical JSON", kNot, kNot},
       given_text},
      {{"extras", "", "what the method reports of itself, as canonical JSON", kNot, kNot}, extras_text},
      {{"precision", "", "width of the arithmetic: single or double", kNot, kNot}, precision},
      {{"device", "", "where it was computed", kNot, kNot}, device},
      {{"schema", "", "version of the definitions", kNot, kNot}, schema},
  };
  return table;
}

json values_of(const Row& row) {
  json values = json::object();
  for (const Source& source : sources()) values[source.column.name] = source.value(row);
  return values;
}

bool finite(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isfinite(x); });
}

// What is not a number in a result, or "".
std::string not_a_number(const json& values, const CellResult& result) {
  for (const auto& [name, value] : values.items())
    if (value.is_number_float() && !std::isfinite(value.get<double>())) return name;
  if (!finite(result.rel_err)) return "rel_err of a row";
  if (!finite(result.partition_err)) return "partition_err of a row";
  if (!finite(result.out)) return "out of a row";
  if (!finite(result.num) || !finite(result.den)) return "the weight of a kept token";
  return "";
}

std::string field_text(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? number_text(value.get<double>()) : value.dump();
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
    for (const Source& source : sources()) out.push_back(source.column);
    return out;
  }();
  return all;
}

json row_values(const Cell& cell, const CellResult& result, const json& run) {
  const json values = values_of({cell, result, run});
  const std::string culprit = not_a_number(values, result);
  if (culprit.empty()) return values;
  CellResult failed;
  failed.ok = false;
  failed.error = "internal error: " + culprit + " is not a finite number";
  return values_of({cell, failed, run});
}

std::vector<std::string> row_fields(const json& values) {
  std::vector<std::string> fields;
  for (const Column& column : columns()) {
    const auto found = values.find(column.name);  // a row of an older build may lack a column
    fields.push_back(found == values.end() ? "" : field_text(*found));
  }
  return fields;
}

json describe_columns() {
  json all = json::object();
  for (const Column& column : columns())
    all[column.name] = {{"unit", column.unit}, {"help", column.help}, {"timing", column.timing}};
  return all;
}

std::vector<std::string> column_names() {
  std::vector<std::string> names;
  for (const Column& column : columns()) names.emplace_back(column.name);
  return names;
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::vector<std::string> out;
  for (const std::string& field : fields) out.push_back(quoted(field));
  return join(out, ",") + "\n";
}

}  // namespace kvreplay
