#include "config/run_needs.hpp"

#include <algorithm>

#include "catalog/cell.hpp"
#include "core/method_info.hpp"

namespace kvreplay {
namespace {

// Needs are declared for a context. This one is large enough for the defaults of every method.
PromptNeeds usual_needs(const MethodInstance& instance) {
  LayerInfo layer;
  layer.q_heads = layer.kv_heads = 8, layer.head_dim = layer.v_head_dim = 64;
  layer.tokens = layer.query_rows = 4096, layer.scaling = 0.125;
  try {
    MethodContext context = context_of(instance, layer, 1, {4096, 2048});
    context.budget.tokens = 1024;
    return BoundMethod(instance.values, context).needs();
  } catch (const ParameterError&) {
    return {};  // reported where the real context is checked
  }
}

void add(const MethodInstance& instance, RunNeeds& all) {
  const PromptNeeds needs = usual_needs(instance);
  all.repeat |= needs.repeat || needs.input_norms;
  all.lookahead = std::max(all.lookahead, needs.lookahead);
  all.output_weights |= needs.output_norms || instance.options.wrapper.kind == Wrapper::Kind::critical;
  all.token_classes |= needs.token_classes;
  all.all_layers |= needs_all_layers(instance.values, instance.options);
  const Calibration* heads = calibration_heads(instance.values, instance.options);
  all.all_prompts |=
      instance.values.calibration().uses_other_prompts() || (heads != nullptr && heads->uses_other_prompts());
}

}  // namespace

RunNeeds needs_of(const RunConfig& config) {
  RunNeeds all;
  for (const MethodInstance& instance : config.methods) add(instance, all);
  all.gradient = config.output.projections;
  return all;
}

}  // namespace kvreplay
