#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "config/run_config.hpp"
#include "devices.hpp"
#include "options.hpp"
#include "results/store.hpp"
#include "summary.hpp"

// `kvreplay list methods|metrics|devices` and `kvreplay describe METHOD`.

namespace kvreplay::app {
namespace {

using nlohmann::json;

std::string phases(const MethodInfo& info) {
  if (!info.oneshots) return "stream";
  if (!info.streams) return "oneshot";
  return info.default_phase == Phase::stream ? "stream, oneshot" : "oneshot, stream";
}

json method_json(const Method& method) {
  json parameters = json::array();
  for (const ParameterSpec& spec : method.parameters)
    parameters.push_back({{"name", spec.name},
                          {"default", spec.default_value},
                          {"default_text", spec.default_text},
                          {"low", spec.low},
                          {"high", spec.high},
                          {"choices", spec.choices},
                          {"help", spec.help}});
  const MethodInfo& info = method.info;
  return {{"name", info.name},       {"title", info.title},   {"source", info.source},
          {"tier", info.tier},       {"memory", info.memory}, {"deviation", info.deviation},
          {"phases", phases(info)},  {"alias", info.alias},   {"takes_budget", info.takes_budget},
          {"parameters", parameters}};
}

void list_methods(bool as_json) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "tier", "phases", "budget", "title"}};
  for (const Method& m : registry()) {
    all.push_back(method_json(m));
    rows.push_back({m.info.name, std::to_string(m.info.tier), phases(m.info),
                    m.info.takes_budget ? "yes" : "no", m.info.title});
  }
  print(as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

void list_metrics(bool as_json) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "unit", "meaning"}};
  for (const Column& c : columns()) {
    if (!c.measure) continue;
    all.push_back({{"name", c.name}, {"unit", c.unit}, {"help", c.help}});
    rows.push_back({c.name, c.unit, c.help});
  }
  print(as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

void list_devices(bool as_json) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "description"}};
  for (const Device& d : devices()) {
    all.push_back({{"name", d.name}, {"description", d.description}});
    rows.push_back({d.name, d.description});
  }
  print(as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

std::string values_of(const ParameterSpec& spec) {
  using Kind = ParameterSpec::Kind;
  if (spec.kind == Kind::choice || spec.kind == Kind::scorer || spec.kind == Kind::rows)
    return join(spec.choices, " | ");
  if (spec.kind == Kind::boolean) return "true | false";
  const std::string range = range_text(spec.low, spec.high, spec.kind == Kind::integer);
  return spec.choices.empty() ? range : range + " | " + join(spec.choices, " | ");
}

std::string field(const char* name, const std::string& text) {
  return text.empty() ? "" : fmt::format("{:<11}{}\n", name, text);
}

void describe(const Method& method) {
  const MethodInfo& info = method.info;
  std::string text = fmt::format("{}: {}\n\n", info.name, info.title);
  text +=
      field("source", info.source) + field("tier", std::to_string(info.tier)) + field("alias", info.alias) +
      field("phases", phases(info) + " (the first is the default)") +
      field("positions", info.any_positions
                             ? fmt::format("{} (default), {}", word(info.default_positions),
                                           info.default_positions == Positions::cache ? "original" : "cache")
                             : "original") +
      field("budget", !info.takes_budget      ? "none: its size is an output"
                      : info.reads_full_cache ? "tokens that are read; the whole cache is stored"
                                              : "tokens that stay, protected ones included") +
      field("memory", info.memory) + field("deviation", info.deviation) + field("warning", info.warning);
  std::vector<std::vector<std::string>> rows = {{"parameter", "default", "values", "meaning"}};
  for (const ParameterSpec& spec : method.parameters)
    rows.push_back({spec.name, spec.default_text, values_of(spec), spec.help});
  text += rows.size() > 1 ? "\n" + left_aligned(rows) : "\nno parameters\n";
  text +=
      "\nEvery method also takes phase, positions, order, gqa.level, gqa.agg, allocator, reweight, "
      "row_format and "
      "uniforms.\n";
  print(text);
}

const Method& named(const std::string& name) {
  if (const Method* method = find_method(registry(), name)) return *method;
  std::vector<std::string> names;
  for (const Method& m : registry()) names.emplace_back(m.info.name);
  throw ConfigError(
      fmt::format("unknown method \"{}\"{}. Methods: {}", name, did_you_mean(name, names), join(names)));
}

struct ListChoices {
  std::string what;
  bool json = false;
};

}  // namespace

void add_list(CLI::App& app, std::vector<Command>& commands) {
  const auto choices = std::make_shared<ListChoices>();
  CLI::App* list = app.add_subcommand("list", "what there is: methods, metrics or devices");
  list->add_option("what", choices->what, "methods, metrics or devices")
      ->required()
      ->check(CLI::IsMember({"methods", "metrics", "devices"}));
  list->add_flag("--json", choices->json, "as JSON");
  commands.push_back({list, [choices](Context&) {
                        if (choices->what == "methods") list_methods(choices->json);
                        if (choices->what == "metrics") list_metrics(choices->json);
                        if (choices->what == "devices") list_devices(choices->json);
                        return 0;
                      }});
  CLI::App* one = app.add_subcommand("describe", "a method: parameters, defaults, ranges, paper, deviations");
  one->add_option("method", choices->what, "as in kvreplay list methods")->required();
  one->add_flag("--json", choices->json, "as JSON");
  commands.push_back({one, [choices](Context&) {
                        const Method& method = named(choices->what);
                        if (choices->json) print(method_json(method).dump(2) + "\n");
                        else describe(method);
                        return 0;
                      }});
}

}  // namespace kvreplay::app
