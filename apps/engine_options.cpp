#include "engine_options.hpp"

#include <algorithm>

#include "backend/devices.hpp"
#include "results/store.hpp"

namespace kvreplay::app {

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const Column& column : columns())
    if (column.measure) names.emplace_back(column.name);
  return names;
}

RunOptions engine_options(const RunConfig& config, bool every_row) {
  using Queries = RunConfig::Replay::Queries;
  RunOptions options;
  options.traces = config.traces;
  options.queries.kind = config.replay.queries == Queries::all    ? QuerySelection::Kind::all
                         : config.replay.queries == Queries::last ? QuerySelection::Kind::last
                                                                  : QuerySelection::Kind::stride;
  options.queries.count = config.replay.queries_count;
  options.double_precision = config.run.double_precision;
  options.audit = config.run.audit;
  if (config.run.device != "cpu") options.device = open_device(config.run.device);
  options.every_row = every_row;
  const auto asks = [&](const char* name) {
    return config.metrics.empty() ||
           std::find(config.metrics.begin(), config.metrics.end(), name) != config.metrics.end();
  };
  const auto asks_any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), asks);
  };
  Wanted& wanted = options.wanted;
  wanted.spectral = asks_any({"eps_spectral_mean", "eps_spectral_max", "eps_spectral_p99", "bound_epsilon",
                              "bound_holds", "bound_slack", "bound_probability", "bound_capped"});
  wanted.recalls = asks("index_recall") || asks("mass_recall") || asks("mass_recall_min");
  wanted.set_error = asks("rel_err_set_mean");
  wanted.prefix_error = asks("rel_err_prefix_mean");
  wanted.quantiles =
      asks_any({"rel_err_out_p50", "rel_err_out_p95", "eps_spectral_p99", "eps_frobenius_p99"});
  wanted.curves = config.output.curves;
  wanted.bounds =
      asks_any({"bound_epsilon", "bound_holds", "bound_slack", "bound_probability", "bound_capped"});
  wanted.details =
      asks_any({"cosine_mean", "rel_err_clamped", "rel_err_numerator_mean", "rel_err_normaliser_mean"});
  wanted.ages = asks("median_evicted_age_tokens");
  wanted.masses =
      config.output.curves || !options.needles.at.empty() ||
      asks_any({"partition_err_mean", "partition_err_max", "log_partition_err_mean", "kept_mass_mean",
                "kept_mass_min", "density_mean", "missed_gap_mean", "mass_bound_mean", "needle_mass"});
  options.needles = {config.replay.needles.at, int32_t(config.replay.needles.tokens)};
  return options;
}

}  // namespace kvreplay::app
