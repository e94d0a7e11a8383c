#include "engine_options.hpp"

#include <algorithm>

#include "results/store.hpp"

namespace kvreplay::app {

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const Column& column : columns())
    if (column.measure) names.emplace_back(column.name);
  return names;
}

RunOptions engine_options(const RunConfig& config, const std::vector<Cell>& plan) {
  using Queries = RunConfig::Replay::Queries;
  RunOptions options;
  options.traces = config.traces;
  options.queries.kind = config.replay.queries == Queries::all    ? QuerySelection::Kind::all
                         : config.replay.queries == Queries::last ? QuerySelection::Kind::last
                                                                  : QuerySelection::Kind::stride;
  options.queries.count = config.replay.queries_count;
  options.double_precision = config.run.double_precision;
  options.audit = config.run.audit;
  options.every_row = std::any_of(plan.begin(), plan.end(), [](const Cell& cell) {
    return cell.method->observes(cell.params, cell.axes);
  });
  const auto asks = [&](const char* name) {
    return config.metrics.empty() ||
           std::find(config.metrics.begin(), config.metrics.end(), name) != config.metrics.end();
  };
  const auto asks_any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), asks);
  };
  options.spectral = asks_any({"eps_spectral_mean", "eps_spectral_max", "eps_spectral_p99", "bound_epsilon",
                               "bound_holds", "bound_slack", "bound_probability", "bound_capped"});
  options.recalls = asks("index_recall") || asks("mass_recall") || asks("mass_recall_min");
  options.set_error = asks("rel_err_set_mean");
  options.prefix_error = asks("rel_err_prefix_mean");
  options.needles = {config.replay.needles.at, int32_t(config.replay.needles.tokens)};
  return options;
}

}  // namespace kvreplay::app
