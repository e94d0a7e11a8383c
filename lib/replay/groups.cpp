#include "replay/groups.hpp"

#include <algorithm>
#include <set>

namespace kvreplay {
namespace {

bool decides_together(const Cell& cell) {
  const bool joins = cell.method().looks_at_queries || cell.method().info.joins_heads;
  return cell.options().serving.pages.tied() || (cell.options().gqa_level == GqaLevel::layer && joins);
}
bool same_decision(const Cell& a, const Cell& b) {
  return decides_together(a) && decides_together(b) && &a.method() == &b.method() && a.seed == b.seed &&
         a.budget.tokens == b.budget.tokens && a.budget.share == b.budget.share &&
         a.variant->params == b.variant->params;
}

// Adds what the cell's method needs of the stream.
void add_needs(const Cell& cell, HeadRequest& request) {
  const BoundMethod method(cell.variant->values, cell.context());
  request.add_needs(method.needs(), cell.variant->values.calibration());
  request.all_queries = request.all_queries || method.reads_at_cuts();
  if (const auto& later = cell.variant->later; later != nullptr) {
    const BoundMethod second = later->method_for(cell.context());
    request.add_needs(second.needs(), later->values.calibration());
    request.all_queries = request.all_queries || second.reads_at_cuts();
  }
  request.rotation = request.rotation || cell.options().positions == Positions::cache;
  request.output_norms = request.output_norms || cell.options().wrapper.kind == Wrapper::Kind::critical;
  request.all_queries = request.all_queries || cell.variant->values.oracle_needs().largest_query_norm;
}

HeadRequest::Gradient gradient_for(const RunOptions& options) {
  if (options.save.projections) return HeadRequest::Gradient::required;
  return options.wanted.has(Work::projections) ? HeadRequest::Gradient::recorded : HeadRequest::Gradient::none;
}

}  // namespace

std::vector<Group> group_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  std::vector<Group> groups;
  std::map<Place, size_t> at;
  for (const Cell& cell : cells) {
    Place place = cell.place;
    if (decides_together(cell)) place.kv_head = Place::kWholeLayer;
    const auto [found, is_new] = at.emplace(place, groups.size());
    if (is_new)
      groups.push_back(
          {{.place = place, .extent = cell.extent, .gradient = gradient_for(options), .all_queries = false}, {}});
    Group& group = groups[found->second];
    add_needs(cell, group.request);
    const auto same = std::find_if(group.decisions.begin(), group.decisions.end(),
                                   [&](const auto& d) { return same_decision(*d.front(), cell); });
    if (same == group.decisions.end()) group.decisions.push_back({&cell});
    else same->push_back(&cell);
  }
  return groups;
}

std::map<size_t, TraceScope> scopes_of(const std::vector<Cell>& cells, bool to_share) {
  struct Wanted {
    std::set<std::string> prompts;
    std::set<int32_t> layers;
    bool all_layers = false, all_prompts = false;
  };
  std::map<size_t, Wanted> wanted;
  for (const Cell& cell : cells) {
    Wanted& of = wanted[cell.place.trace];
    of.prompts.insert(cell.place.prompt);
    if (to_share)
      for (const CalibrationPrompt& prompt : cell.variant->calibration) of.prompts.insert(prompt.id);
    of.layers.insert(cell.place.layer);
    of.all_layers = of.all_layers || (to_share && needs_all_layers(cell));
    of.all_prompts = of.all_prompts || needs_other_prompts(cell);
  }
  std::map<size_t, TraceScope> scopes;
  for (const auto& [trace, of] : wanted) {
    scopes[trace];
    if (!of.all_prompts) scopes[trace].prompts.emplace(of.prompts.begin(), of.prompts.end());
    if (!of.all_layers) scopes[trace].layers.emplace(of.layers.begin(), of.layers.end());
  }
  return scopes;
}

std::vector<int32_t> Reader::windows(size_t trace, const std::string& prompt) {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> held;
  for (const LayerInfo& l : opened(trace).prompt(prompt).layers) held.push_back(l.window().most());
  return held;
}
std::vector<Place> Reader::layers(size_t trace, const std::string& prompt) {
  const std::lock_guard lock(mutex_);
  std::vector<Place> held;
  for (const LayerInfo& l : opened(trace).prompt(prompt).layers) held.push_back({trace, prompt, l.layer, l.kv_heads});
  return held;
}
const Tensors& Reader::opened(size_t trace) {
  std::unique_ptr<Tensors>& tensors = opened_[trace];
  if (tensors == nullptr) tensors = open_(trace, scopes_.at(trace));
  return *tensors;
}
const Tensors& Reader::text(const HeadRequest& request) {
  const Tensors& trace = opened(request.place.trace);
  const int32_t branch = request.extent.branch;
  if (branch < 0) return trace;
  std::unique_ptr<Tensors>& with = branches_[{request.place.trace, request.place.prompt, branch}];
  if (with == nullptr) with = with_branch(trace, request.place.prompt, size_t(branch));
  return *with;
}

template <class Real>
WithoutBudget divide_budgets(std::vector<Cell>& cells, const RunOptions& options) {
  Reader reader(options.tensors, scopes_of(cells, true));
  const HeadSource<Real> heads{[&](const HeadRequest& request) { return reader.load<Real>(request); },
                               [&](size_t trace, const std::string& prompt) { return reader.layers(trace, prompt); },
                               [&](size_t trace, const std::string& prompt) { return reader.windows(trace, prompt); }};
  return share_budgets<Real>(
      cells, {options.jobs, options.audit, options.queries, options.stop, options.continue_on_head_failure}, heads);
}

template WithoutBudget divide_budgets<float>(std::vector<Cell>&, const RunOptions&);
template WithoutBudget divide_budgets<double>(std::vector<Cell>&, const RunOptions&);

}  // namespace kvreplay
