#include "config/run_config.hpp"

// The contexts that methods are resolved for.

namespace kvreplay {

int32_t least_budget(const MethodInstance& instance, MethodContext context) {
  for (int32_t tokens = 1;; ++tokens) {
    context.budget = {tokens, double(tokens)};
    try {
      (void)BoundMethod(instance.values, context);
      return tokens;
    } catch (const ParameterError&) {
      if (tokens >= context.tokens) throw;
    }
  }
}

void add_variant(LoadedRun& run, size_t layer, size_t instance, int32_t tokens, int32_t kv_head,
                 std::optional<uint32_t> seed) {
  SelectedLayer& at = run.selection[layer];
  const TraceInfo& trace = run.traces[at.trace];
  const MethodInstance& m = run.config.methods[instance];
  MethodContext context = context_of(m, trace.prompts[at.prompt].layers[at.layer], trace.n_layers, at.extent);
  context.budget = {tokens, double(tokens)};
  at.variants.push_back({instance, BoundMethod(m.values, context), context.budget, {}, kv_head, seed});
}

MethodContext context_of(const MethodInstance& instance, const LayerInfo& layer, int32_t n_layers, Extent extent) {
  MethodContext context;
  static_cast<Extent&>(context) = extent;
  context.shape = {layer.head_dim, layer.v_head_dim, layer.group(), 1};
  if (instance.options.gqa_level == GqaLevel::query) context.shape.heads = 1;
  if (instance.options.gqa_level == GqaLevel::layer)
    context.shape.heads = layer.q_heads, context.shape.blocks = layer.kv_heads;
  context.layer = layer.layer, context.n_layers = n_layers;
  context.phase = instance.options.phase;
  context.scale = layer.scaling;
  return context;
}

}  // namespace kvreplay
