#include "apps/method_text.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/parameter_text.hpp"
#include "apps/text_table.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "config/run_config.hpp"

namespace kvreplay::app {
namespace {

using nlohmann::json;
using Lines = std::vector<std::pair<std::string, std::string>>;

std::string budget_text(const Method& method) {
  const MethodInfo& info = method.info;
  if (!info.takes_budget) return "none: its size is an output";
  if (info.reads_full_cache) return "tokens that are read; the whole cache is stored";
  if (!method.lists_in.empty()) return "most tokens that a list may hold; without one, lists are as long as they are";
  const std::string tokens = "tokens that stay, protected ones included";
  return info.default_fraction > 0 ? fmt::format("{}; without one, {} of the prompt", tokens, info.default_fraction)
                                   : tokens;
}

std::string positions_text(const MethodInfo& info) {
  if (!info.any_positions) return "original";
  const bool cache = info.default_positions == Positions::cache;
  return fmt::format("{} (default), {}", word(info.default_positions), cache ? "original" : "cache");
}

// Facts about a method, in one order for all output; empty lines are left out.
Lines facts(const Method& method) {
  const MethodInfo& info = method.info;
  const bool told = !method.lists_in.empty();
  const Lines all = {{"source", info.source},
                     {"tier", std::to_string(info.tier)},
                     {"alias", info.alias},
                     {"phases", phases_text(info) + (told ? " (as its file says)" : " (the first is the default)")},
                     {"positions", positions_text(info)},
                     {"budget", budget_text(method)},
                     {"memory", info.memory},
                     {"deviation", info.deviation},
                     {"warning", info.warning}};
  Lines said;
  for (const auto& line : all)
    if (!line.second.empty()) said.push_back(line);
  return said;
}

constexpr const char* kAxes =
    "Every method also takes phase, positions, order, prompt, gqa.level, gqa.agg, row_format, reweight, "
    "wrapper, merge, allocator and uniforms, where they have a meaning for it.";

}  // namespace

std::string phases_text(const MethodInfo& info) {
  if (!info.oneshots) return "stream";
  if (!info.streams) return "oneshot";
  return info.default_phase == Phase::stream ? "stream, oneshot" : "oneshot, stream";
}

std::string method_json(const Method& method) {
  json parameters = json::array();
  for (const ParameterSpec& spec : method.parameters) {
    parameters.push_back(json::parse(spec_json(spec)));
    for (size_t i = 0; i < spec.nested.size(); ++i)
      for (const ParameterSpec& inner : spec.nested[i])
        parameters.back()["parameters"][spec.choices[i]].push_back(json::parse(spec_json(inner)));
  }
  const MethodInfo& info = method.info;
  const json all = {{"name", info.name},           {"title", info.title},     {"source", info.source},
                    {"tier", info.tier},           {"memory", info.memory},   {"deviation", info.deviation},
                    {"phases", phases_text(info)}, {"alias", info.alias},     {"takes_budget", info.takes_budget},
                    {"warning", info.warning},     {"parameters", parameters}};
  return all.dump(2);
}

std::string method_text(const Method& method) {
  std::string text = fmt::format("{}: {}\n\n", method.info.name, method.info.title);
  for (const auto& [name, value] : facts(method)) text += fmt::format("{:<11}{}\n", name, value);
  text += method.parameters.empty() ? "\nno parameters\n" : "\n" + left_aligned(parameter_rows(method.parameters));
  return text + "\n" + kAxes + "\n";
}

std::string method_markdown(const Method& method) {
  std::string text = fmt::format("## {}\n\n{}.\n\n", method.info.name, method.info.title);
  for (const auto& [name, value] : facts(method)) text += fmt::format("- **{}**: {}\n", name, value);
  if (!method.parameters.empty()) text += "\n" + markdown_table(parameter_rows(method.parameters));
  return text;
}

std::string methods_markdown_table(const Registry& methods) {
  std::vector<std::vector<std::string>> rows = {{"name", "what it keeps", "tier", "phases", "source"}};
  for (const Method& m : methods)
    rows.push_back({fmt::format("[`{}`](docs/methods.md#{})", m.info.name, m.info.name), m.info.title,
                    std::to_string(m.info.tier), phases_text(m.info), m.info.source});
  return markdown_table(rows);
}

std::string methods_markdown_page(const Registry& methods) {
  std::string text = fmt::format(
      "# Methods\n\nThis page says what every method keeps, which parameters it has and what it is charged for. "
      "`kvreplay describe all --markdown` prints it from the methods' own files. Tiers: 1 are the seed papers and "
      "what their figures need, 2 the field's standard, 3 the frontier.\n\n{}\n",
      kAxes);
  for (const Method& m : methods) text += "\n" + method_markdown(m);
  return text;
}

const Method& method_named(const Registry& methods, const std::string& name, const Wording& words) {
  if (const Method* method = find_method(methods, name)) return *method;
  std::vector<std::string> names;
  for (const Method& m : methods) names.emplace_back(m.info.name);
  throw ConfigError(
      fmt::format("unknown method \"{}\"{}: see {}", name, did_you_mean(name, names), words.list("methods")));
}

}  // namespace kvreplay::app
