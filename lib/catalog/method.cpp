#include "catalog/method.hpp"

#include "base/json_text.hpp"
#include "parameters/describe.hpp"

namespace kvreplay {
namespace {

std::vector<std::byte> made(const PolicyTable& table) {
  std::vector<std::byte> policy(table.bytes);
  table.make(policy.data());
  return policy;
}

}  // namespace

Method::Method(const PolicyTable& table) : Method(made(table), table) {}

Method::Method(std::vector<std::byte> by_default, const PolicyTable& table)
    : PolicyTable(table), defaults(std::move(by_default)) {
  Describer describer(defaults.data());
  describe(describer, defaults.data());
  parameters = describer.take();
  const auto has = [&](Hook hook) { return hooks.has(hook); };
  looks_at_queries = has(Hook::needs) || has(Hook::observe_prompt) || has(Hook::observe) ||
                     has(Hook::observe_queries) || has(Hook::choose) || has(Hook::given);
  scores_prompt = has(Hook::protection);
  shares_budget = has(Hook::share) || (info.shared_over != SharedOver::none && !has(Hook::hear));
  for (const ParameterSpec& spec : parameters)
    if (has(Hook::given) && spec.kind == ParameterSpec::Kind::file) lists_in = spec.name;
}

const ParameterSpec* Method::parameter(const std::string& name) const {
  for (const ParameterSpec& spec : parameters)
    if (spec.name == name) return &spec;
  return nullptr;
}

std::string wrapper_json(const Wrapper& wrapper) {
  JsonObject all;
  if (wrapper.is_none()) return json_of("none");
  if (wrapper.kind == Wrapper::Kind::critical)
    all.add("name", "critical").add("alpha", wrapper.alpha).add("eps", wrapper.eps);
  else
    all.add("name", "caote")
        .add("level", wrapper.level == Wrapper::Level::kv ? "kv" : "query")
        .add("fast", wrapper.fast);
  return all.text();
}
std::string merge_json(const Merge& merge) {
  if (merge.is_none()) return json_of("none");
  JsonObject all;
  all.add("name", word(merge.rule)).add("mass", merge.mass == Merge::Mass::keep ? "keep" : "none");
  if (merge.rule == Merge::Rule::cam)
    all.add("next", merge.next).add("attention", merge.attention == Merge::Attention::step ? "step" : "accumulated");
  if (merge.rule == Merge::Rule::d2o) all.add("release", merge.release);
  if (merge.rule == Merge::Rule::gaussian) all.add("threshold", merge.threshold);
  if (merge.rule == Merge::Rule::value_blend) all.add("threshold", merge.threshold).add("fraction", merge.fraction);
  return all.text();
}
std::string think_json(const Think& think) {
  if (think.is_none()) return json_of("none");
  return JsonObject().add("ratio", think.ratio).add("window", think.window).text();
}
namespace {

JsonObject lu_kv_object(const LuKv& rule) {
  JsonObject all;
  all.add("name", "lu_kv").add("calibration", word(rule.calibration));
  all.add("weight", rule.weight == LuKv::Weight::contrib ? "contrib" : "mass");
  return all.add_json("lo", rule.lo == 0 ? json_of("protected") : json_of(rule.lo));
}

JsonObject zigzag_object(const ZigZag& rule) {
  JsonObject all;
  all.add("name", "zigzag").add("mass", rule.mass);
  return all.add_json("lo", rule.lo == 0 ? json_of("protected") : json_of(rule.lo));
}

JsonObject headkv_object(const CommonOptions& o) {
  JsonObject all;
  all.add("name", "headkv").add("beta", o.headkv.beta).add("temp", o.headkv.temp);
  return all.add("importance", o.allocator_file.empty() ? "mass" : "file:" + o.allocator_file);
}

JsonObject duo_object(const CommonOptions& o) {
  JsonObject all;
  all.add("name", "duo");
  return o.allocator_file.empty() ? all : all.add("gates", o.allocator_file);
}

}  // namespace

std::string allocator_json(const CommonOptions& o) {
  if (o.allocator == Allocator::file) return json_of("file:" + o.allocator_file);
  if (o.allocator == Allocator::windows) return JsonObject().add("name", "windows").add("share", o.window_share).text();
  if (o.allocator == Allocator::lu_kv) return lu_kv_object(o.lu_kv).text();
  if (o.allocator == Allocator::zigzag) return zigzag_object(o.zigzag).text();
  if (o.allocator != Allocator::duo && o.allocator != Allocator::headkv) return json_of(word(o.allocator));
  JsonObject all = o.allocator == Allocator::headkv ? headkv_object(o) : duo_object(o);
  for (const auto& [name, json] : o.looking) all.add_json(name, json);
  return all.text();
}
const char* word(Reweight reweight) { return reweight == Reweight::none ? "none" : "uniform"; }
const char* word(Allocator allocator) {
  constexpr const char* words[] = {"uniform", "pyramid", "windows", "ada",    "cake",
                                   "lu_kv",   "duo",     "headkv",  "zigzag", "file"};
  return words[int(allocator)];
}
const char* word(Merge::Rule rule) {
  constexpr const char* words[] = {"none", "cam", "d2o", "pivot", "weighted_v", "gaussian", "value_blend"};
  return words[int(rule)];
}
const char* word(PromptMode mode) {
  constexpr const char* words[] = {"as_run", "cut", "stream"};
  return words[int(mode)];
}
const char* word(Phase phase) { return phase == Phase::stream ? "stream" : "oneshot"; }
const char* word(GqaLevel level) {
  constexpr const char* words[] = {"kv", "query", "layer"};
  return words[int(level)];
}
const char* word(Aggregate how) {
  constexpr const char* words[] = {"sum", "mean", "max", "first"};
  return words[int(how)];
}
const char* word(Positions positions) { return positions == Positions::original ? "original" : "cache"; }
const char* word(Order order) { return order == Order::attend_then_evict ? "attend_then_evict" : "evict_then_attend"; }

const Method* find_method(const Registry& methods, const std::string& name_or_alias) {
  if (name_or_alias.empty()) return nullptr;
  for (const Method& method : methods)
    if (method.info.name == name_or_alias || method.info.alias == name_or_alias) return &method;
  return nullptr;
}

const char* word(Pages::Evict evict) { return evict == Pages::Evict::page ? "page" : "token"; }
const char* word(Pages::Score score) {
  return score == Pages::Score::mean ? "mean" : score == Pages::Score::sum ? "sum" : "max";
}
const char* word(Pages::Heads heads) { return heads == Pages::Heads::tied ? "tied" : "own"; }

}  // namespace kvreplay
