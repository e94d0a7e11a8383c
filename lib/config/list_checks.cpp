#include "config/list_checks.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

template <class T>
bool is_in(const std::optional<std::vector<T>>& list, const T& item) {
  return !list || std::find(list->begin(), list->end(), item) != list->end();
}

// The file that a budget's lists are read from.
fs::path file_of(const MethodInstance& m, const MethodContext& context) {
  return kept_file_of(m.values.file(), context.budget.none() ? std::nullopt : std::optional(context.budget.tokens));
}

std::vector<std::string> heads_groups(const std::vector<KeptScope>& heads) {
  std::vector<std::string> groups;
  for (const KeptScope& head : heads)
    groups.push_back(fmt::format("/{}/{:03d}/{}", head.place.prompt, head.place.layer, head.place.kv_head));
  return groups;
}

size_t selected_heads(const RunConfig& config, const std::vector<TraceInfo>& traces) {
  size_t heads = 0;
  for (const TraceInfo& trace : traces)
    for (const PromptInfo& prompt : trace.prompts)
      for (const LayerInfo& layer : prompt.layers)
        for (int32_t h = 0; h < layer.kv_heads; ++h)
          heads += is_in(config.select.prompts, prompt.id) && is_in(config.select.layers, layer.layer) &&
                           is_in(config.select.kv_heads, h)
                       ? 1
                       : 0;
  return heads;
}

}  // namespace

KeptScope list_scope(const CommonOptions& options, const MethodContext& context, const Place& place, LayerWindow window,
                     int32_t query_heads) {
  KeptScope scope;
  scope.place = place, scope.extent = context, scope.window = window;
  scope.caches = options.gqa_level == GqaLevel::query ? query_heads : 1;
  // A head's share from an allocator is known only after the other heads are scored.
  scope.most = options.allocator == Allocator::uniform ? context.budget.tokens : 0;
  return scope;
}

ListChecks::ListChecks(const RunConfig& config, const std::vector<TraceInfo>& traces, Problems& problems)
    : config_(config), problems_(problems), one_head_(selected_heads(config, traces) == 1) {}

void ListChecks::check(size_t m, const PromptInfo& prompt, const MethodContext& context) {
  const MethodInstance& instance = config_.methods[m];
  const std::string place = fmt::format("methods[{}]", m);
  const Mark mark = config_.mark_of({fmt::format("{}.{}", place, instance.method().lists_in), place});
  const std::vector<KeptScope> heads = heads_of(instance, prompt, context);
  if (heads.empty()) return;  // no selected layer exists: already reported
  try {
    check_heads(instance, readable_file(instance, context, heads), heads);
  } catch (const ConfigError& e) {
    // A wrong file is often wrong for every head, and may lack a file for every budget.
    std::vector<std::string> names = heads_groups(heads);
    if (!context.budget.none()) names.push_back(file_of(instance, context).string());
    Refusal refusal = refusal_of_group(e.what(), names);
    refusal.methods = {instance.named()};
    problems_.error(mark, std::move(refusal));
  }
}

bool ListChecks::is_selected(int32_t kv_head) const { return is_in(config_.select.kv_heads, kv_head); }

std::vector<KeptScope> ListChecks::heads_of(const MethodInstance& m, const PromptInfo& prompt,
                                            const MethodContext& context) const {
  const auto layer = std::find_if(prompt.layers.begin(), prompt.layers.end(),
                                  [&](const LayerInfo& l) { return l.layer == context.layer; });
  std::vector<KeptScope> heads;
  for (int32_t h = 0; h < layer->kv_heads; ++h) {
    if (!is_selected(h)) continue;
    KeptScope scope = list_scope(m.options, context, {0, prompt.id, context.layer, h}, layer->window(), layer->group());
    scope.may_be_root = one_head_;
    heads.push_back(scope);
  }
  return heads;
}

// The file for the context's budget, after a check that reading it does not crash HDF5.
fs::path ListChecks::readable_file(const MethodInstance& m, const MethodContext& context,
                                   const std::vector<KeptScope>& heads) {
  const fs::path file = file_of(m, context);
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored))
    throw ConfigError(fmt::format("no file {} with kept lists (the path is relative to {})", file.string(),
                                  problems_.words().folder()));
  const auto [damage, is_new] =
      damage_.try_emplace(std::tuple(file, heads.front().place.prompt, context.layer), std::string());
  if (is_new) damage->second = kept_lists_problem(file, heads);
  if (!damage->second.empty()) throw ConfigError(damage->second);
  return file;
}

// Reports the first wrong head.
void ListChecks::check_heads(const MethodInstance& m, const fs::path& file, const std::vector<KeptScope>& heads) const {
  std::string first;
  for (const KeptScope& head : heads) {
    const KeptLists lists = read_kept_lists(file, head);
    const std::string where =
        fmt::format("{}: /{}/{:03d}/{}", file.string(), head.place.prompt, head.place.layer, head.place.kv_head);
    if (m.options.phase == Phase::oneshot && !lists.oneshot)
      throw ConfigError(
          fmt::format("{}: holds {} lists, one after every token, but {} cuts once: leave "
                      "phase out, the file sets it",
                      where, lists.count(), problems_.words().option("phase", "oneshot")));
    if (m.options.gqa_level != GqaLevel::layer) continue;
    const std::string digest = digest_of(lists);
    if (first.empty()) first = digest;
    if (digest != first)
      throw ConfigError(
          fmt::format("{}: differs from that of kv head {}, but with {} all kv heads of "
                      "a layer hold the same tokens: leave gqa.level out",
                      where, heads.front().place.kv_head, problems_.words().option("gqa.level", "layer")));
  }
}

}  // namespace kvreplay
