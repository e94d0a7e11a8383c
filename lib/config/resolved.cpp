#include "config/run_config.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

template <class T>
json or_word(const std::optional<T>& value, const char* word) {
  return value ? json(*value) : json(word);
}

json replay_json(const RunConfig::Replay& replay) {
  using Queries = RunConfig::Replay::Queries;
  const char* kind = replay.queries == Queries::last ? "last" : "stride";
  json entry = {
      {"tokens", or_word(replay.tokens, "all")},
      {"prefill", or_word(replay.prefill, "trace")},
      {"prompt", replay.prompt_streams ? "stream" : "cut"},
      {"queries", replay.queries == Queries::all ? json("all") : json{{kind, replay.queries_count}}}};
  if (!replay.needles.at.empty())
    entry["needles"] = {{"at", replay.needles.at}, {"tokens", replay.needles.tokens}};
  return entry;
}

json method_json(const MethodInstance& instance) {
  json entry = instance.params;
  entry["name"] = instance.method->info.name;
  entry.update(to_json(instance.options));
  if (!instance.uniforms.empty()) entry["uniforms"] = instance.uniforms.string();
  return entry;
}

json budget_json(const BudgetList& budget) {
  const char* kinds[] = {"tokens", "fraction_kept", "bytes"};
  if (budget.values.empty()) return nullptr;
  json values = json::array();
  for (const double value : budget.values)
    values.push_back(budget.kind == BudgetList::Kind::fraction_kept ? json(value) : json(int64_t(value)));
  return {{kinds[size_t(budget.kind)], values}};
}

json output_json(const RunConfig::Output& output) {
  json save = json::array();
  if (output.curves) save.push_back("curves");
  if (output.kept) save.push_back("kept");
  if (output.outputs) save.push_back("outputs");
  json entry = {{"save", save}};
  if (!output.dir.empty()) entry["dir"] = output.dir.string();
  return entry;
}

}  // namespace

nlohmann::json resolved_json(const RunConfig& config) {
  json traces = json::array(), methods = json::array();
  for (const auto& path : config.traces) traces.push_back(path.string());
  for (const MethodInstance& instance : config.methods) methods.push_back(method_json(instance));
  return {{"schema", 1},
          {"name", config.name},
          {"traces", traces},
          {"select",
           {{"prompts", or_word(config.select.prompts, "all")},
            {"layers", or_word(config.select.layers, "all")},
            {"kv_heads", or_word(config.select.kv_heads, "all")}}},
          {"replay", replay_json(config.replay)},
          {"methods", methods},
          {"budget", budget_json(config.budget)},
          {"seeds", {{"first", config.seed_first}, {"count", config.seed_count}}},
          {"metrics", config.metrics.empty() ? json("default") : json(config.metrics)},
          {"run",
           {{"device", config.run.device},
            {"jobs", config.run.jobs == 0 ? json("auto") : json(config.run.jobs)},
            {"precision", config.run.double_precision ? "double" : "single"},
            {"audit", config.run.audit}}},
          {"output", output_json(config.output)}};
}

}  // namespace kvreplay
