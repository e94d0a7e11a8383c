#include "plan/plan.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "base/errors.hpp"
#include "base/json_text.hpp"
#include "base/sha256.hpp"
#include "config/extents.hpp"
#include "config/list_checks.hpp"
#include "formats/registry.hpp"

namespace kvreplay {

namespace {

constexpr size_t kKeyDigits = 16;
constexpr const char* kKeyLetter = "k";  // readers of CSV may take hex digits alone for a number (123e45)

std::string read_digest(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || !std::filesystem::is_regular_file(file))
    throw ConfigError(file.string() + ": cannot be read. Is the path right?");
  return sha256_hex(std::string{std::istreambuf_iterator<char>(in), {}});
}

std::string queries_json(const RunConfig::Replay& replay) {
  using Queries = RunConfig::Replay::Queries;
  if (replay.queries == Queries::all) return json_of("all");
  return JsonObject().add(replay.queries == Queries::last ? "last" : "stride", replay.queries_count).text();
}

std::string metrics_json(std::vector<std::string> metrics) {
  if (metrics.empty()) return json_of("default");
  std::sort(metrics.begin(), metrics.end());
  metrics.erase(std::unique(metrics.begin(), metrics.end()), metrics.end());
  return json_of(metrics);
}

// A trace id may cover the tensors alone. These are the other inputs of a layer's logits.
std::string logits_json(const LayerInfo& layer) {
  JsonObject facts;
  facts.add("scaling", layer.scaling).add("softcap", layer.softcap).add("sliding_window", layer.sliding_window);
  facts.add("q_prescaled", layer.q_prescaled).add("query_rows", layer.query_rows).add("sinks", layer.has_sinks);
  if (layer.attention_chunk > 0) facts.add("attention_chunk", layer.attention_chunk);
  if (layer.rope) facts.add("inv_freq", layer.rope->inv_freq).add("rope_layout", int(layer.rope->layout));
  return facts.text();
}

// Other prompts whose rows affect a cell's numbers.
std::string calibration_json(const std::vector<CalibrationPrompt>& prompts) {
  JsonObject all;
  for (const CalibrationPrompt& p : prompts)
    all.add_json(p.id, JsonObject().add("prefill", p.extent.prompt_tokens).add("tokens", p.extent.tokens).text());
  return all.text();
}

// Marked tokens are attributes, which no trace_id covers.
std::string needles_json(const std::vector<TokenSpan>& needles) {
  std::vector<int64_t> bounds;
  for (const TokenSpan& span : needles) bounds.insert(bounds.end(), {span.begin, span.end});
  return json_of(bounds);
}

// The part of the key that all cells of a run share.
JsonObject run_object(const RunConfig& config) {
  JsonObject all;
  if (config.replay.turns) all.add("turns", true);
  if (config.replay.branches.any) all.add("branches", config.replay.branches.numbers);
  all.add("schema", kEngineSchema).add_json("queries", queries_json(config.replay));
  all.add("precision", config.run.double_precision ? "double" : "single");
  all.add_json("metrics", metrics_json(config.metrics));
  if (const auto& needles = config.replay.needles; !needles.at.empty())
    all.add_json("needles", JsonObject().add("at", needles.at).add("tokens", needles.tokens).text());
  add_json(config.replay.working_set, all);
  return all;
}

class Planner {
 public:
  Planner(const RunConfig& config, const std::vector<TraceInfo>& traces)
      : config_(config), traces_(traces), of_run_(run_object(config)) {
    for (const TraceInfo& trace : traces)
      names_.push_back(std::make_shared<TraceNames>(TraceNames{trace.trace_id, trace.model, trace.n_layers}));
  }

  void add(const SelectedLayer& selected) {
    if (!selected.by_share.empty())
      throw std::logic_error("shares of the cache are to be solved before cells are planned");
    std::vector<Planned> all;
    for (const SelectedLayer::Variant& variant : selected.variants) all.push_back(planned(selected, variant));
    for (const int32_t kv_head : selected.kv_heads)
      for (const Planned& one : all)
        if (one.selected.kv_head.value_or(kv_head) == kv_head) add(selected, one, kv_head);
  }
  std::vector<Cell> take() { return std::move(plan_); }

 private:
  // A variant. If it names a file of lists, the file is read later, for each head.
  struct Planned {
    const SelectedLayer::Variant& selected;
    std::shared_ptr<const Variant> variant;
    std::string key;  // everything that determines the numbers, except lists, kv head and seed
  };

  const PromptInfo& prompt_of(const SelectedLayer& at) const { return traces_[at.trace].prompts[at.prompt]; }
  const LayerInfo& layer_of(const SelectedLayer& at) const { return prompt_of(at).layers[at.layer]; }

  Planned planned(const SelectedLayer& at, const SelectedLayer::Variant& selected) {
    const MethodInstance& instance = config_.methods[selected.instance];
    auto variant = std::make_shared<Variant>(instance.values);
    variant->later = instance.later;
    variant->trace = names_[at.trace];
    variant->instance = selected.instance;
    variant->options = instance.options;
    if (!instance.options.allocator_file.empty())
      variant->digests.allocator = digest_of_file(instance.options.allocator_file);
    if (const std::string& file = instance.values.file(); !file.empty() && instance.method().lists_in.empty())
      variant->digests.given = digest_of_file(file);
    variant->uniforms = instance.uniforms.string();
    if (!variant->uniforms.empty()) variant->digests.uniforms = digest_of_file(instance.uniforms);
    Problems told;  // ignored: the check of the configuration has reported them
    variant->calibration = calibration_of(config_, instance, traces_[at.trace], prompt_of(at), told);
    if (const Calibration& by = instance.values.calibration(); by.source == Calibration::Source::file)
      variant->digests.calibration = digest_of_file(by.name);
    variant->params = shown_params(selected.method, *variant);
    variant->given = given_json(instance.values, instance.options, variant->digests, later_json(instance.later.get()));
    variant->options.serving = selected.method.context().serving;
    variant->prompt_streams = config_.replay.streams_prompt(variant->options);
    variant->shape = selected.method.context().shape;
    variant->kv_heads = selected.method.context().kv_heads;
    variant->scale = selected.method.context().scale;
    std::string key = key_of(at, selected, *variant);
    return {selected, std::move(variant), std::move(key)};
  }

  void add(const SelectedLayer& at, const Planned& planned, int32_t kv_head) {
    Cell cell;
    cell.place = {at.trace, prompt_of(at).id, layer_of(at).layer, kv_head};
    cell.prompt_rank = prompt_of(at).rank;
    cell.extent = at.extent;
    cell.branches = branches_of(config_, prompt_of(at));
    cell.budget = planned.selected.budget;
    cell.shares = planned.selected.shares;
    cell.variant = planned.variant;
    std::string key = fmt::format("{}\n{}\n", planned.key, kv_head);
    const BoundMethod& method = planned.selected.method;
    if (!cell.method().lists_in.empty()) {
      take_lists(cell, planned.selected, layer_of(at));
      key += params_json(method, cell.options(), cell.variant->digests);
    }
    if (!cell.options().row_format.rules.empty()) take_rule(cell, traces_[at.trace].n_layers);
    const auto& later = cell.variant->later;
    const bool random =
        draws(method, cell.options()) || (later != nullptr && later->method_for(method.context()).traits().random);
    if (!cell.variant->uniforms.empty() || !random) return add(std::move(cell), key);
    for (uint32_t i = 0; i < config_.seed_count; ++i) {
      cell.seed = config_.seed_first + i;
      if (planned.selected.seed.value_or(*cell.seed) == *cell.seed) add(cell, key + std::to_string(*cell.seed));
    }
  }

  // Two fractions, sizes in bytes or shares of the cache may be the same number of tokens: one cell.
  void add(Cell cell, const std::string& key) {
    cell.key = kKeyLetter + sha256_hex(key).substr(0, kKeyDigits);
    const auto [known, is_new] = places_.try_emplace(cell.key, plan_.size());
    if (is_new) return plan_.push_back(std::move(cell));
    std::vector<double>& shares = plan_[known->second].shares;
    shares.insert(shares.end(), cell.shares.begin(), cell.shares.end());
    std::sort(shares.begin(), shares.end());
    shares.erase(std::unique(shares.begin(), shares.end()), shares.end());
  }

  // A format by layer and kv head is one instance; a head's cell has the format of its rule.
  static void take_rule(Cell& cell, int32_t n_layers) {
    auto own = std::make_shared<Variant>(*cell.variant);
    const RowFormat& all = cell.options().row_format;
    const RowFormat* here = at_head(all, cell.place.layer, n_layers, cell.place.kv_head);
    own->options.row_format = here != nullptr ? *here : RowFormat{};
    cell.variant = std::move(own);
  }

  // A file of lists says how its lists are replayed, and may do so for each head.
  static void take_lists(Cell& cell, const SelectedLayer::Variant& selected, const LayerInfo& layer) {
    auto own = std::make_shared<Variant>(*cell.variant);
    own->kept = kept_file_of(own->values.file(), cell.budget.none() ? std::nullopt : std::optional(cell.budget.tokens));
    const KeptLists lists = read_kept_lists(
        own->kept, list_scope(own->options, selected.method.context(), cell.place, layer.window(), layer.group()));
    own->digests.given = digest_of(lists);
    const CommonOptions usual = own->values.default_options();
    CommonOptions given = own->options;
    given.phase = usual.phase;
    if (lists.attends) given.order = usual.order;
    own->given = given_json(own->values, given, own->digests);
    if (lists.oneshot) own->options.phase = Phase::oneshot;
    if (lists.attends) own->options.order = Order::evict_then_attend;
    own->params = shown_params(selected.method, *own);
    cell.variant = std::move(own);
  }

  // Contains everything that changes a number of the cell. Paths, threads and the audit do not. The content of a file
  // of uniforms is part of the parameters.
  std::string key_of(const SelectedLayer& at, const SelectedLayer::Variant& selected, const Variant& variant) const {
    JsonObject all = of_run_;
    all.add("trace_id", variant.trace->trace_id).add("prompt", prompt_of(at).id).add("prompt_rank", prompt_of(at).rank);
    all.add("layer", layer_of(at).layer).add_json("logits", logits_json(layer_of(at)));
    all.add("method", selected.method.method().info.name).add("prompt_mode", variant.prompt_streams ? "stream" : "cut");
    if (selected.method.method().lists_in.empty()) all.add_json("params", variant.params);
    if (const std::string text = selected.method.method().info.identity; !text.empty()) all.add("method_text", text);
    all.add("budget", selected.budget.tokens);
    if (const Growth& growth = selected.budget.growth; growth.any())
      all.add("ratio_of_seen", growth.ratio).add("floor", growth.floor);
    if (!variant.calibration.empty()) all.add_json("calibration", calibration_json(variant.calibration));
    all.add("prefill", at.extent.prompt_tokens).add("tokens", at.extent.tokens);
    if (config_.replay.needles.recorded) all.add_json("needles", needles_json(prompt_of(at).needles));
    return all.text();
  }

  std::string digest_of_file(const std::filesystem::path& file) {
    const auto [at, is_new] = digests_.try_emplace(file);
    if (is_new) at->second = read_digest(file);
    return at->second;
  }

  const RunConfig& config_;
  const std::vector<TraceInfo>& traces_;
  const JsonObject of_run_;
  std::vector<std::shared_ptr<const TraceNames>> names_;
  std::map<std::filesystem::path, std::string> digests_;
  std::unordered_map<std::string, size_t> places_;  // index of each cell in the plan, by key
  std::vector<Cell> plan_;
};

std::vector<Cell> plan_of(const RunConfig& config, const std::vector<TraceInfo>& traces,
                          const std::vector<SelectedLayer>& selection) {
  Planner planner(config, traces);
  for (const SelectedLayer& selected : selection) planner.add(selected);
  return planner.take();
}

}  // namespace

bool observes_rows(const std::vector<Cell>& plan) {
  return std::any_of(plan.begin(), plan.end(), [](const Cell& cell) {
    const auto& later = cell.variant->later;
    return cell.variant->values.observes(cell.options()) || (later != nullptr && later->values.traits().observes);
  });
}

std::vector<Cell> plan_cells(const LoadedRun& run) { return plan_of(run.config, run.traces, run.selection); }

std::vector<Cell> plan_cells(const RunConfig& config, const std::vector<TraceInfo>& traces) {
  RunConfig checked = config;
  std::vector<std::string> problems;
  const std::vector<SelectedLayer> selection = select(checked, traces, problems);
  if (!problems.empty()) throw ConfigError(join(problems, "\n"));
  return plan_of(config, traces, selection);
}

namespace {

using Family = std::tuple<Place, size_t, std::optional<uint32_t>>;

// kv heads that decide together are one family.
Family family_of(const Cell& cell) {
  Place place = cell.place;
  if (cell.options().spans_layer()) place.kv_head = Place::kWholeLayer;
  return {std::move(place), cell.variant->instance, cell.seed};
}

}  // namespace

std::vector<Cell> with_families(const std::vector<Cell>& todo, const std::vector<Cell>& plan) {
  std::set<Family> wanted;
  for (const Cell& cell : todo) wanted.insert(family_of(cell));
  std::vector<Cell> cells;
  for (const Cell& cell : plan)
    if (wanted.count(family_of(cell)) != 0) cells.push_back(cell);
  return cells;
}

}  // namespace kvreplay
