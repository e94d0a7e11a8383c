#include "catalog/method.hpp"

namespace kvreplay {

nlohmann::json word_json(const std::vector<std::string>& words, size_t which) {
  return which < words.size() ? nlohmann::json(words[which]) : nlohmann::json();
}

// The names of the axes in configurations.
nlohmann::json to_json(const CommonOptions& options) {
  nlohmann::json all = {
      {"phase", word(options.phase)},
      {"gqa.level", word(options.gqa_level)},
      {"gqa.agg", word(options.gqa_aggregate)},
      {"positions", word(options.positions)},
      {"order", word(options.order)},
      {"reweight", word(options.reweight)},
      {"allocator",
       word(options.allocator) + (options.allocator_file.empty() ? "" : ":" + options.allocator_file)},
      {"row_format", to_json(options.row_format)}};
  if (options.prompt != PromptMode::as_run) all["prompt"] = word(options.prompt);
  return all;
}

// A word where nothing but the kind was chosen by the user or applies.
nlohmann::json to_json(const RowFormat& f) {
  using Kind = RowFormat::Kind;
  nlohmann::json all = {{"name", word(f.kind)}};
  if (!f.quantises()) return word(f.kind);
  if (f.kind == Kind::int8 || f.kind == Kind::int4) {
    all["group"] = f.group;
    return all;
  }
  all.update({{"bits", f.bits}, {"g", f.group}, {"R", f.residual}});
  if (f.kind == Kind::gear) all.update({{"rank", f.rank}, {"outliers", f.outliers}});
  return all;
}

const char* word(RowFormat::Kind kind) {
  constexpr const char* words[] = {"source", "f32", "f16", "bf16", "int8", "int4", "kivi", "gear"};
  return words[int32_t(kind)];
}

const char* word(Reweight reweight) { return reweight == Reweight::none ? "none" : "uniform"; }

const char* word(Allocator allocator) {
  constexpr const char* words[] = {"uniform", "pyramid", "ada", "cake", "file"};
  return words[int(allocator)];
}

const char* word(PromptMode mode) {
  return mode == PromptMode::as_run ? "as_run" : mode == PromptMode::cut ? "cut" : "stream";
}

const char* word(Phase phase) { return phase == Phase::stream ? "stream" : "oneshot"; }

const char* word(GqaLevel level) {
  return level == GqaLevel::kv ? "kv" : level == GqaLevel::query ? "query" : "layer";
}

const char* word(Aggregate how) {
  switch (how) {
    case Aggregate::sum:
      return "sum";
    case Aggregate::mean:
      return "mean";
    case Aggregate::max:
      return "max";
    case Aggregate::first:
      return "first";
  }
  return "";
}

const char* word(Positions positions) { return positions == Positions::original ? "original" : "cache"; }

const char* word(Order order) {
  return order == Order::attend_then_evict ? "attend_then_evict" : "evict_then_attend";
}

nlohmann::json given_of(const Method& method, const nlohmann::json& params, const CommonOptions& options) {
  nlohmann::json given = nlohmann::json::object();
  for (const ParameterSpec& spec : method.parameters) {
    if (!params.contains(spec.name) || params.at(spec.name) == spec.default_value) continue;
    const nlohmann::json& value = params.at(spec.name);
    given[spec.name] = spec.kind == ParameterSpec::Kind::file ? file_json(value) : value;
  }
  const nlohmann::json mine = to_json(options), usual = to_json(method.default_options(params));
  for (const auto& [name, value] : mine.items())
    if (!usual.contains(name) || value != usual.at(name)) given[name] = value;
  return given;
}

const Method* find_method(const Registry& methods, const std::string& name_or_alias) {
  if (name_or_alias.empty()) return nullptr;
  for (const Method& method : methods)
    if (method.info.name == name_or_alias || method.info.alias == name_or_alias) return &method;
  return nullptr;
}

}  // namespace kvreplay
