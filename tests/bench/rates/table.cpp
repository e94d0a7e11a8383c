#include "tests/bench/rates/table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/summary.hpp"
#include "base/text.hpp"
#include "results/columns.hpp"

namespace kvreplay::app {
namespace {

std::optional<double> value_of(const RatioSpec& spec, const std::vector<Measured>& rates) {
  const auto find = [&](const std::string& name) -> const Measured* {
    const auto at = std::find_if(rates.begin(), rates.end(), [&](const Measured& m) { return m.name == name; });
    return at == rates.end() ? nullptr : &*at;
  };
  const Measured *of = find(spec.of), *to = find(spec.to), *minus = find(spec.minus);
  if (of == nullptr || to == nullptr || (minus == nullptr && !spec.minus.empty())) return {};
  if (!spec.of_times) return of->rate() / to->rate();
  const double shared_s = minus == nullptr ? 0 : minus->time.min_s;
  const double rest_s = to->time.min_s - shared_s;
  if (!(rest_s > 0)) return {};
  return (of->time.min_s - shared_s) / rest_s;
}

const char* text_of(Clock clock) { return clock == Clock::wall ? "wall" : "cpu"; }

}  // namespace

double Measured::rate() const { return unit.factor * (unit.inverted ? time.min_s / work : work / time.min_s); }

std::vector<Ratio> ratios_of(const std::vector<Measured>& rates, const std::vector<RatioSpec>& specs) {
  std::vector<Ratio> ratios;
  for (const RatioSpec& spec : specs)
    if (const auto value = value_of(spec, rates)) ratios.push_back({spec, *value});
  return ratios;
}

std::string text_of(const BenchTable& table) {
  std::vector<std::vector<std::string>> rates = {{"rate", "value", "unit", "ms", "median", "clock"}};
  for (const Measured& m : table.rates)
    rates.push_back({m.name, fmt::format("{:.4g}", m.rate()), m.unit.name, fmt::format("{:.2f}", 1e3 * m.time.min_s),
                     fmt::format("{:.2f}", 1e3 * m.time.median_s), text_of(m.clock)});
  std::vector<std::vector<std::string>> ratios = {{"ratio", "value"}};
  for (const Ratio& r : table.ratios) ratios.push_back({r.spec.name, fmt::format("{:.4g}", r.value)});
  return aligned(rates) + "\n" + aligned(ratios);
}

std::string csv_of(const BenchTable& table) {
  std::string text = csv_line({"kind", "name", "value", "unit", "min_s", "median_s", "clock", "of", "to", "minus"});
  for (const Measured& m : table.rates)
    text += csv_line({"rate", m.name, number_text(m.rate()), m.unit.name, number_text(m.time.min_s),
                      number_text(m.time.median_s), text_of(m.clock), "", "", ""});
  for (const Ratio& r : table.ratios)
    text += csv_line({"ratio", r.spec.name, number_text(r.value), "", "", "", "", r.spec.of, r.spec.to, r.spec.minus});
  return text;
}

std::string json_of(const BenchTable& table, const std::string& facts) {
  nlohmann::json rates = nlohmann::json::array(), ratios = nlohmann::json::array();
  for (const Measured& m : table.rates)
    rates.push_back({{"name", m.name},
                     {"value", m.rate()},
                     {"unit", m.unit.name},
                     {"min_s", m.time.min_s},
                     {"median_s", m.time.median_s},
                     {"clock", text_of(m.clock)}});
  for (const Ratio& r : table.ratios)
    ratios.push_back(
        {{"name", r.spec.name}, {"value", r.value}, {"of", r.spec.of}, {"to", r.spec.to}, {"minus", r.spec.minus}});
  nlohmann::json all = {{"rates", rates}, {"ratios", ratios}};
  all.update(nlohmann::json::parse(facts));
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace kvreplay::app
