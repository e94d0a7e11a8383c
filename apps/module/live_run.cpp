#include "apps/module/live_run.hpp"

#include "apps/module/argument_wording.hpp"
#include "apps/module/hosted_in_python.hpp"
#include "base/json_text.hpp"
#include "config/run_needs.hpp"
#include "measures/metrics.hpp"
#include "results/columns.hpp"
#include "results/notes.hpp"

namespace kvreplay::python {
namespace nb = nanobind;

std::string needs_json(const std::string& config, nb::list methods) {
  const std::atomic<bool> stop{false};
  const AllMethods all(methods, stop);
  const RunNeeds needs = needs_of(parse_over(config, all.registry, metric_names(), argument_wording()));
  return JsonObject()
      .add("repeat", needs.repeat)
      .add("lookahead", needs.lookahead)
      .add("output_weights", needs.output_weights)
      .add("token_classes", needs.token_classes)
      .add("gradient", needs.gradient)
      .add("all_layers", needs.all_layers)
      .add("all_prompts", needs.all_prompts)
      .text();
}

std::string notes_on(const std::vector<std::string>& rows, nb::list methods) {
  const std::atomic<bool> stop{false};
  const AllMethods all(methods, stop);
  SeenCells seen(all.registry);
  for (const std::string& row : rows) seen.add(fields_of(row));
  return notes_json(notes_of(seen));
}

}  // namespace kvreplay::python
