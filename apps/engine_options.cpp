#include "apps/engine_options.hpp"

#include <utility>

#include "device/devices.hpp"

namespace kvreplay::app {

RunOptions engine_options(const RunConfig& config, bool every_row, OpenTensors tensors) {
  using Queries = RunConfig::Replay::Queries;
  RunOptions options;
  options.tensors = std::move(tensors);
  options.queries.kind = config.replay.queries == Queries::all    ? QuerySelection::Kind::all
                         : config.replay.queries == Queries::last ? QuerySelection::Kind::last
                                                                  : QuerySelection::Kind::stride;
  options.queries.count = config.replay.queries_count;
  options.double_precision = config.run.double_precision;
  options.audit = config.run.audit;
  if (config.run.device != "cpu") options.device = open_device(config.run.device);
  options.every_row = every_row;
  options.needles = {config.replay.needles.at, int32_t(config.replay.needles.tokens), config.replay.needles.recorded};
  options.working_set = config.replay.working_set;
  options.wanted = wanted_by(config.metrics);
  if (options.needles.any()) options.wanted.add(Work::masses);
  if (config.output.projections) options.wanted.add(Work::projections);
  if (config.output.curves) options.wanted.add(Work::masses | Work::curves);
  return options;
}

}  // namespace kvreplay::app
