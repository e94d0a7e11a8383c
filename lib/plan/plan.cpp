#include "plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <unordered_set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "config/list_checks.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

constexpr size_t kKeyDigits = 16;
constexpr const char* kKeyLetter = "k";  // hex digits alone may look like a number (123e45) to readers of CSV

// Where cells are planned: one layer of one prompt of one trace.
struct Place {
  size_t trace_index;
  const TraceInfo& trace;
  const PromptInfo& prompt;
  const LayerInfo& layer;
  int32_t n_prefill, n_tokens;
};

// A method instance with everything but the kv head.
struct Variant {
  const MethodInstance& instance;
  json params;
  std::optional<double> budget;  // tokens, before they are rounded down
  std::optional<uint32_t> seed;
};

// What a list selects out of what there is; without a list, all.
template <class T>
std::vector<T> selected(const std::optional<std::vector<T>>& list, const std::vector<T>& held,
                        const std::string& what) {
  if (!list) return held;
  for (const T& wanted : *list)
    if (std::find(held.begin(), held.end(), wanted) == held.end())
      throw ConfigError(
          fmt::format("select.{}: the trace has no {}. It holds {}", what, wanted, fmt::join(held, ", ")));
  return *list;
}

template <class T, class Member>
auto members(const std::vector<T>& items, Member member) {
  std::vector<std::decay_t<decltype(items[0].*member)>> out;
  for (const T& item : items) out.push_back(item.*member);
  return out;
}

std::string file_digest(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || !std::filesystem::is_regular_file(file))
    throw ConfigError(file.string() + ": cannot be read. Is the path right?");
  return sha256_hex(std::string{std::istreambuf_iterator<char>(in), {}});
}

json queries_json(const RunConfig::Replay& replay) {
  using Queries = RunConfig::Replay::Queries;
  if (replay.queries == Queries::all) return "all";
  return {{replay.queries == Queries::last ? "last" : "stride", replay.queries_count}};
}

json metrics_json(std::vector<std::string> metrics) {
  if (metrics.empty()) return "default";
  std::sort(metrics.begin(), metrics.end());
  metrics.erase(std::unique(metrics.begin(), metrics.end()), metrics.end());
  return metrics;
}

// A trace id may cover the tensors alone: what else enters the logits of a layer.
json logits_json(const LayerInfo& layer) {
  json facts = {layer.scaling,     layer.softcap,    layer.sliding_window,
                layer.q_prescaled, layer.query_rows, layer.has_sinks};
  if (layer.rope) facts.push_back({layer.rope->inv_freq, int(layer.rope->layout)});
  return facts;
}

class Planner {
 public:
  explicit Planner(const RunConfig& config) : config_(config) {}

  void add(const Place& place) {
    const std::vector<Variant> variants = variants_of(place);
    std::vector<int32_t> held(size_t(place.layer.kv_heads));
    for (size_t i = 0; i < held.size(); ++i) held[i] = int32_t(i);
    for (const int32_t kv_head : selected(config_.select.kv_heads, held, "kv_heads"))
      for (const Variant& variant : variants) add(place, kv_head, variant);
  }
  std::vector<Cell> take() { return std::move(plan_); }

 private:
  // Two fractions or sizes in bytes may come to the same number of tokens: one cell.
  void add(const Place& place, int32_t kv_head, const Variant& variant) {
    Cell cell;
    cell.trace = place.trace_index;
    cell.trace_id = place.trace.trace_id;
    cell.model = place.trace.model;
    cell.prompt = place.prompt.id;
    cell.prompt_rank = uint32_t(&place.prompt - place.trace.prompts.data());
    cell.layer = place.layer.layer;
    cell.kv_head = kv_head;
    cell.method = variant.instance.method;
    cell.instance = size_t(&variant.instance - config_.methods.data());
    cell.params = variant.params;
    cell.given = variant.instance.params;
    cell.options = variant.instance.options;
    if (variant.budget) cell.budget = int32_t(*variant.budget), cell.real_budget = *variant.budget;
    cell.seed = variant.seed;
    cell.uniforms = variant.instance.uniforms.string();
    cell.n_prefill = place.n_prefill;
    cell.prompt_streams = config_.replay.streams_prompt(variant.instance.options);
    cell.n_tokens = place.n_tokens;
    cell.n_layers = place.trace.n_layers;
    const MethodContext context = context_of(variant.instance, place.layer, place.trace.n_layers, 0, 1, 1);
    cell.shape = context.shape;
    cell.scale = context.scale;
    if (!cell.method->lists_in.empty()) take_lists(cell, place.layer);
    cell.key = key_of(cell, place.layer);
    if (keys_.insert(cell.key).second) plan_.push_back(std::move(cell));
  }

  // Lists that the method is given say themselves how they are replayed.
  static void take_lists(Cell& cell, const LayerInfo& layer) {
    cell.kept = kept_file_of(cell.given.at(cell.method->lists_in).get<std::string>(), cell.budget);
    KeptScope scope = list_scope(cell.options, cell.context(), layer.sliding_window, layer.group());
    scope.prompt = cell.prompt, scope.kv_head = cell.kv_head;
    const KeptLists lists = read_kept_lists(cell.kept, scope);
    cell.kept_digest = digest_of(lists);
    if (lists.oneshot) cell.options.phase = Phase::oneshot;
    if (lists.attends) cell.options.order = Order::evict_then_attend;
    cell.lists_say_order = lists.attends;
    cell.params["phase"] = word(cell.options.phase), cell.params["order"] = word(cell.options.order);
  }

  // Whatever changes a number of the cell stands here; paths, threads and the audit do not. The content
  // of a file of uniforms is part of the parameters, that of lists stands for their file's name.
  std::string key_of(const Cell& cell, const LayerInfo& layer) const {
    json params = cell.params;
    if (!cell.kept.empty()) params[cell.method->lists_in] = cell.kept_digest;
    json all = {{"schema", kEngineSchema},
                {"trace_id", cell.trace_id},
                {"prompt", cell.prompt},
                {"prompt_rank", cell.prompt_rank},
                {"layer", cell.layer},
                {"logits", logits_json(layer)},
                {"kv_head", cell.kv_head},
                {"method", cell.method->info.name},
                {"params", params},
                {"budget", cell.budget ? json(*cell.budget) : json()},
                {"seed", cell.seed ? json(*cell.seed) : json()},
                {"prefill", cell.n_prefill},
                {"tokens", cell.n_tokens},
                {"queries", queries_json(config_.replay)},
                {"prompt_mode", cell.prompt_streams ? "stream" : "cut"},
                {"precision", config_.run.double_precision ? "double" : "single"},
                {"metrics", metrics_json(config_.metrics)}};
    if (const auto& needles = config_.replay.needles; !needles.at.empty())
      all["needles"] = {{"at", needles.at}, {"tokens", needles.tokens}};
    return fmt::format("{}{}", kKeyLetter, sha256_hex(canonical(all)).substr(0, kKeyDigits));
  }

  std::vector<Variant> variants_of(const Place& place) {
    std::vector<Variant> variants;
    for (const MethodInstance& instance : config_.methods)
      for (const auto& budget : budgets_of(instance, place)) add_seeds(instance, budget, place, variants);
    return variants;
  }

  void add_seeds(const MethodInstance& instance, std::optional<double> budget, const Place& place,
                 std::vector<Variant>& variants) {
    Variant variant{instance, resolved(instance, budget, place), budget, std::nullopt};
    const bool repeats = instance.uniforms.empty() && instance.method->random(variant.params);
    if (!repeats) return variants.push_back(std::move(variant));
    for (uint32_t i = 0; i < config_.seed_count; ++i) {
      variant.seed = config_.seed_first + i;
      variants.push_back(variant);
    }
  }

  std::vector<std::optional<double>> budgets_of(const MethodInstance& instance, const Place& place) const {
    if (runs_without_budget(instance, config_.budget)) return {std::nullopt};
    std::vector<std::optional<double>> budgets;
    const BudgetList list = budgets_for(instance, config_.budget);
    for (const double value : list.values) {
      budgets.emplace_back(
          real_budget(list.kind, value, place.n_prefill, place.layer, instance.options.row_format));
      if (*budgets.back() < 1)
        throw ConfigError(fmt::format("a budget of {} holds no token", number_text(value)));
    }
    if (budgets.empty()) throw ConfigError(fmt::format("{} needs a budget", instance.method->info.name));
    return budgets;
  }

  // The parameters that results show: of the method, resolved, and of the axes.
  json resolved(const MethodInstance& instance, std::optional<double> budget, const Place& place) {
    MethodContext context = context_of(instance, place.layer, place.trace.n_layers,
                                       int32_t(budget.value_or(0)), place.n_prefill, place.n_tokens);
    context.real_budget = budget.value_or(0);
    json params = instance.method->resolve(instance.params, context);
    params.update(to_json(instance.options));
    if (instance.options.allocator == Allocator::file)
      params["allocator"] = "file:" + digest_of_file(instance.options.allocator_file);
    if (!instance.uniforms.empty()) params["uniforms"] = digest_of_file(instance.uniforms);
    return params;
  }

  std::string digest_of_file(const std::filesystem::path& file) {
    const auto [at, is_new] = digests_.try_emplace(file);
    if (is_new) at->second = file_digest(file);
    return at->second;
  }

  const RunConfig& config_;
  std::map<std::filesystem::path, std::string> digests_;
  std::unordered_set<std::string> keys_;
  std::vector<Cell> plan_;
};

template <class T, class Member, class Value>
const T& find_by(const std::vector<T>& items, Member member, const Value& value) {
  return *std::find_if(items.begin(), items.end(), [&](const T& item) { return item.*member == value; });
}

int32_t checked_count(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return int32_t(value);
  throw ConfigError(fmt::format("{} is {}, but must be from 1 to {}", name, value, most));
}

void add_prompt(Planner& planner, const RunConfig& config, const TraceInfo& trace, size_t trace_index,
                const PromptInfo& prompt) {
  const int32_t tokens = checked_count("replay.tokens", config.replay.tokens.value_or(prompt.tokens),
                                       std::min(prompt.tokens, int64_t(kManyTokens)));
  const int32_t prefill =
      checked_count("replay.prefill", config.replay.prefill.value_or(prompt.n_prompt), tokens);
  const auto held = members(prompt.layers, &LayerInfo::layer);
  for (const int32_t layer : selected(config.select.layers, held, "layers"))
    planner.add(
        {trace_index, trace, prompt, find_by(prompt.layers, &LayerInfo::layer, layer), prefill, tokens});
}

}  // namespace

bool observes_rows(const std::vector<Cell>& plan) {
  return std::any_of(plan.begin(), plan.end(), [](const Cell& cell) {
    return cell.method->observes && cell.method->observes(cell.params, cell.options);
  });
}

std::vector<Cell> plan_cells(const RunConfig& config, const std::vector<TraceInfo>& traces) {
  Planner planner(config);
  for (size_t i = 0; i < traces.size(); ++i) {
    const auto held = members(traces[i].prompts, &PromptInfo::id);
    for (const std::string& id : selected(config.select.prompts, held, "prompts"))
      add_prompt(planner, config, traces[i], i, find_by(traces[i].prompts, &PromptInfo::id, id));
  }
  return planner.take();
}

}  // namespace kvreplay
