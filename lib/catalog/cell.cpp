#include "catalog/cell.hpp"

#include "base/json_text.hpp"

namespace kvreplay {

MethodContext Cell::context() const {
  MethodContext context;
  static_cast<Extent&>(context) = extent;
  context.budget = {budget.share.value_or(budget.tokens), budget.requested_tokens, std::nullopt, budget.growth};
  context.shape = variant->shape, context.kv_heads = variant->kv_heads;
  context.layer = place.layer, context.n_layers = variant->trace->n_layers;
  context.phase = variant->options.phase;
  context.serving = variant->options.serving;
  context.scale = variant->scale;
  context.aggregate = variant->options.gqa_aggregate;
  return context;
}

BoundMethod LaterMethod::method_for(MethodContext context) const {
  context.phase = Phase::stream;
  context.handed_tokens = context.prompt_tokens;
  const Serving first = context.serving;
  context.serving = options.serving;
  context.serving.pages = first.pages, context.serving.prefill_chunk = first.prefill_chunk;
  if (!budget.none() || budget.growth.any()) context.budget = budget;
  if (budget.growth.any())
    context.budget.tokens = CutPlan{{}, budget.growth}.target(context.tokens),
    context.budget.requested_tokens = context.budget.tokens;
  return {values, context};
}

CommonOptions LaterMethod::options_of(const CommonOptions& first) const {
  CommonOptions all = first;
  const Pages pages = first.serving.pages;
  all.phase = Phase::stream;
  all.serving = options.serving;
  all.serving.pages = pages;
  return all;
}

std::string name_of(const Method& method, const LaterMethod* later) {
  const std::string first = method.info.name;
  return later == nullptr ? first : first + "+" + later->values.method().info.name;
}

std::string later_json(const LaterMethod* later, const MethodContext* first) {
  if (later == nullptr) return "";
  JsonObject all;
  all.add("name", later->values.method().info.name);
  all.add_json("params", first == nullptr ? given_json(later->values, later->options)
                                          : params_json(later->method_for(*first), later->options));
  const Budget& budget = later->budget;
  if (budget.growth.any()) all.add("ratio_of_seen", budget.growth.ratio).add("floor", budget.growth.floor);
  else if (!budget.none()) all.add("tokens", budget.tokens);
  return all.text();
}

std::string shown_params(const BoundMethod& method, const Variant& variant) {
  // Lists are named by their file, because each head of it has lists of its own.
  const std::string given = method.method().lists_in.empty() ? variant.digests.given : "";
  return params_json(method, variant.options,
                     {given, variant.digests.allocator, variant.digests.uniforms, variant.digests.calibration},
                     method.context().budget.growth, later_json(variant.later.get(), &method.context()));
}

namespace {

SharedOver over_by(Allocator rule) {
  switch (rule) {
    case Allocator::uniform:
      return SharedOver::none;
    case Allocator::ada:
      return SharedOver::layer;
    case Allocator::cake:
    case Allocator::lu_kv:
    case Allocator::duo:
    case Allocator::headkv:
    case Allocator::zigzag:
      return SharedOver::model;
    case Allocator::pyramid:
    case Allocator::windows:
    case Allocator::file:
      return SharedOver::head;
  }
  return SharedOver::none;
}

}  // namespace

SharedOver shared_over(const MethodValues& values, const CommonOptions& options) {
  return values.traits().shared_over != SharedOver::none ? values.traits().shared_over : over_by(options.allocator);
}
bool compares_heads(Allocator rule) { return over_by(rule) == SharedOver::layer || over_by(rule) == SharedOver::model; }

SharedOver shared_over(const Cell& cell) { return shared_over(cell.variant->values, cell.options()); }

bool has_fixed_share(const Cell& cell) { return shared_over(cell) == SharedOver::head; }

bool needs_all_layers(const MethodValues& values, const CommonOptions& options) {
  return options.allocator == Allocator::windows || shared_over(values, options) == SharedOver::model;
}
bool needs_all_layers(const Cell& cell) { return needs_all_layers(cell.variant->values, cell.options()); }

bool cuts_together(const Cell& cell) {
  return cell.method().hooks.has(Hook::cut_together) && shared_over(cell) != SharedOver::none;
}

const Calibration* calibration_heads(const MethodValues& values, const CommonOptions& options) {
  if (options.allocator == Allocator::lu_kv) return &options.lu_kv.calibration;
  return values.traits().learns_heads ? &values.calibration() : nullptr;
}

bool needs_other_prompts(const Cell& cell) { return cell.variant->values.calibration().uses_other_prompts(); }

void set_share(Cell& cell, int32_t tokens) {
  cell.budget.share = tokens;
  Variant own = *cell.variant;
  own.params = shown_params(BoundMethod(own.values, cell.context()), own);
  cell.variant = std::make_shared<const Variant>(std::move(own));
}

void tell(Cell& cell, const std::vector<HeadScores>& heads) {
  Variant own = *cell.variant;
  own.values.hear(heads);
  cell.variant = std::make_shared<const Variant>(std::move(own));
}

}  // namespace kvreplay
