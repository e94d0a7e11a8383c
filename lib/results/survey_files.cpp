#include "results/survey_files.hpp"

#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "results/columns.hpp"
#include "results/output_files.hpp"
#include "trace/h5_file.hpp"
#include "trace/publish.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kSurveySchema = 1;

// One name of the file, with the labels of its axes. Both formats are written from it.
struct Entry {
  std::string name, view;      // view: empty for an entry of the unit
  std::vector<double> values;  // [param, x]
  std::vector<double> param;   // labels of the first axis; empty: no such axis
  std::vector<double> x;       // labels of the second axis
  bool attribute = false;      // true: attribute of the view's group; false: dataset
  bool whole = false;          // whole numbers
  bool table = true;           // also written to the table

  std::vector<int64_t> shape() const {
    std::vector<int64_t> s;
    if (!param.empty()) s.push_back(int64_t(param.size()));
    if (!x.empty()) s.push_back(int64_t(x.size()));
    return values.empty() ? std::vector<int64_t>{0} : s;
  }
};

std::vector<double> counting(size_t n, double first) {
  std::vector<double> labels(n);
  std::iota(labels.begin(), labels.end(), first);
  return labels;
}
template <class T>
std::vector<double> wide(const std::vector<T>& x) {
  return {x.begin(), x.end()};
}
template <size_t N>
std::vector<double> wide(const double (&x)[N]) {
  return {std::begin(x), std::end(x)};
}

void add_view(const Clusterability& c, std::vector<Entry>& entries) {
  const std::vector<double> k = counting(c.radii.size(), 1), f = wide(kDeltaRel), n = wide(c.m_n);
  const auto dataset = [&](const char* name, std::vector<double> values, const std::vector<double>& param,
                           const std::vector<double>& x) -> Entry& {
    return entries.emplace_back(
        Entry{.name = name, .view = c.view, .values = std::move(values), .param = param, .x = x});
  };
  const auto attribute = [&](const char* name, std::vector<double> values, const std::vector<double>& param) {
    dataset(name, std::move(values), param, {}).attribute = true;
  };
  dataset("centers", wide(c.centers), {}, k).whole = true;
  dataset("radii", c.radii, {}, k);
  dataset("mean_distance", c.mean_distance, {}, k);
  Entry& lengths = dataset("m_n", n, {}, n);
  lengths.whole = true, lengths.table = false;  // in the table these are the x of m_count
  dataset("m_count", wide(c.m_count), f, n).whole = true;
  attribute("rms", {c.rms}, {});
  attribute("median_distance", {c.median_distance}, {});
  attribute("delta_rel", f, f);
  if (c.spectral_share_16) attribute("spectral_share_16", {*c.spectral_share_16}, {});
  if (c.effective_rank) attribute("effective_rank", {*c.effective_rank}, {});
  if (c.growth_exponent.empty()) return;
  attribute("growth_exponent", c.growth_exponent, f);
  attribute("growth_r2", c.growth_r2, f);
}

void add_attention(const AttentionShape& a, std::vector<Entry>& entries) {
  const std::vector<double> head = counting(size_t(a.heads), 0), token = counting(a.accumulated.size(), 0),
                            share = wide(kTopShares);
  const auto add = [&](const std::string& name, const std::vector<double>& values, const std::vector<double>& param,
                       const std::vector<double>& x) -> Entry& {
    return entries.emplace_back(Entry{.name = name, .view = "", .values = values, .param = param, .x = x});
  };
  add("sparsity", a.sparsity, head, {});
  add("sparsity_no_sink", a.sparsity_no_sink, head, {});
  add("sparsity_masked", a.sparsity_masked, head, {});
  add("sink_mass", a.sink_mass, head, {});
  add("top1_is_sink", a.top1_is_sink, head, {});
  add("attended_effective", a.attended_effective, head, {});
  add("accumulated", a.accumulated, {}, token);
  add("accumulated_heads", a.accumulated_heads, head, token).table = false;
  add("top_share", a.top_share, share, {});
  add("top_share_null", a.top_share_null, share, {});
  add("top_share_heads", a.top_share_heads, head, share);
  add("top_share_ratio", a.top_share_ratio, share, {});
  for (const auto& overlap : a.overlaps) add("overlap_" + overlap.name, overlap.jaccard, share, {});
  if (a.gini) add("gini", {*a.gini}, {}, {});
  if (!a.tail) return;
  add("log_log_slope", {a.tail->log_log_slope}, {}, {});
  add("log_log_r2", {a.tail->log_log_r2}, {}, {});
  add("exponential_slope", {a.tail->exponential_slope}, {}, {});
  add("exponential_r2", {a.tail->exponential_r2}, {}, {});
}

// Tensors are finite, but a huge `scaling` may make logits overflow a double.
void check_finite(const SurveyUnit& unit, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries)
    for (const double x : entry.values)
      if (!std::isfinite(x))
        throw TraceError(
            fmt::format("/prompts/{}/layers/{:03}: {} of kv head {} is not a finite number: are "
                        "`scaling` and the tensors sound?",
                        unit.place.prompt, unit.place.layer, entry.name, unit.place.kv_head));
}

std::vector<Entry> entries_of(const UnitSurvey& survey) {
  std::vector<Entry> entries;
  add_attention(survey.attention, entries);
  for (const Clusterability& view : survey.views) add_view(view, entries);
  check_finite(survey.unit, entries);
  return entries;
}

void write_entry(H5Output& file, const std::string& group, const Entry& entry) {
  const std::string place = entry.view.empty() ? group : group + "/" + entry.view;
  if (entry.attribute && entry.shape().empty()) return file.attribute(place, entry.name, entry.values.front());
  if (entry.attribute) return file.attribute(place, entry.name, std::span<const double>(entry.values));
  const std::string name = place + "/" + entry.name;
  if (!entry.whole) return file.write(name, std::span<const double>(entry.values), entry.shape());
  const std::vector<int64_t> whole(entry.values.begin(), entry.values.end());
  file.write(name, std::span<const int64_t>(whole), entry.shape());
}

void write_unit(H5Output& file, const UnitSurvey& survey) {
  const SurveyUnit& unit = survey.unit;
  const std::string group = fmt::format("{}/{:03}/{}", unit.place.prompt, unit.place.layer, unit.place.kv_head);
  for (const Entry& entry : entries_of(survey)) write_entry(file, group, entry);
  file.attribute(group, "tokens", int64_t(unit.extent.tokens));
  file.attribute(group, "prefill", int64_t(unit.extent.prompt_tokens));
  file.attribute(group, "query_rows", int64_t(survey.attention.rows));
}

void fill(H5Output& file, const SurveyHeader& header, const std::vector<UnitSurvey>& surveys) {
  file.attribute("", "kvreplay_cluster", kSurveySchema);
  file.attribute("", "trace_id", header.trace_id);
  file.attribute("", "model", header.model);
  file.attribute("", "seed", int64_t(header.seed));
  file.attribute("", "sparsity_threshold", kSparsityThreshold);
  file.attribute("", "local_rows", int64_t(kLocalRows));
  file.attribute("", "top_shares", std::span<const double>(kTopShares));
  for (const UnitSurvey& survey : surveys) write_unit(file, survey);
}

void append_entry(const std::string& place, const Entry& entry, std::string& csv) {
  const size_t inner = std::max<size_t>(entry.x.size(), 1);
  for (size_t i = 0; i < entry.values.size(); ++i) {
    const std::string param = entry.param.empty() ? "" : number_text(entry.param[i / inner]);
    const std::string x = entry.x.empty() ? "" : number_text(entry.x[i % inner]);
    csv += fmt::format("{},{},{},{},{},{}\n", place, entry.name, entry.view, param, x, number_text(entry.values[i]));
  }
}

std::string table_text(const SurveyHeader& header, const std::vector<UnitSurvey>& surveys) {
  std::string csv =
      csv_line({"trace_id", "model", "prompt", "layer", "kv_head", "measure", "view", "param", "x", "value"});
  for (const UnitSurvey& survey : surveys) {
    const SurveyUnit& unit = survey.unit;
    std::string place = csv_line({header.trace_id, header.model, unit.place.prompt, std::to_string(unit.place.layer),
                                  std::to_string(unit.place.kv_head)});
    place.pop_back();  // the line goes on
    for (const Entry& entry : entries_of(survey))
      if (entry.table) append_entry(place, entry, csv);
  }
  return csv;
}

}  // namespace

fs::path survey_table(const fs::path& file) { return fs::path(file).replace_extension(".csv"); }

void write_survey(const fs::path& file, const SurveyHeader& header, const std::vector<UnitSurvey>& surveys) {
  const fs::path temporary = temporary_name(file);
  try {
    H5Output out(temporary);
    fill(out, header, surveys);
    out.close();
    publish_text(survey_table(file), table_text(header, surveys));
    publish(temporary, file);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

}  // namespace kvreplay
