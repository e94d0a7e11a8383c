#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/devices.hpp"
#include "apps/method_text.hpp"
#include "apps/offered/registry.hpp"
#include "apps/summary.hpp"
#include "base/errors.hpp"
#include "results/columns.hpp"

// `kvreplay list methods|formats|metrics|devices` and `kvreplay describe METHOD|FORMAT`.

namespace kvreplay::app {
namespace {

using nlohmann::json;

enum class Form { text, as_json, markdown };

void list_methods(Form form) {
  if (form == Form::markdown) return print(methods_markdown_table(registry()));
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "tier", "phases", "budget", "title"}};
  for (const Method& m : known_methods()) {
    all.push_back(json::parse(method_json(m)));
    rows.push_back({m.info.name, std::to_string(m.info.tier), phases_text(m.info), m.info.takes_budget ? "yes" : "no",
                    m.info.title});
  }
  print(form == Form::as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

void list_metrics(Form form) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "unit", "meaning"}};
  for (const Column& c : columns()) {
    if (!c.measure) continue;
    all.push_back(json::parse(column_facts(c).add("name", std::string(c.name)).text()));
    rows.push_back({c.name, c.unit, c.help});
  }
  print(form == Form::as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

void list_devices(Form form) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {{"name", "description"}};
  for (const DeviceInfo& d : all_devices()) {
    all.push_back({{"name", d.name}, {"description", d.description}});
    rows.push_back({d.name, d.description});
  }
  print(form == Form::as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

void list_formats(Form form) {
  if (form == Form::markdown) return print(formats_markdown_page());
  json all = json::array();
  TextRows rows = {{"name", "tier", "bytes, d = 64", "title"}};
  for (const RowFormatEntry& f : row_formats()) {
    all.push_back(json::parse(format_json(f)));
    rows.push_back({f.info.name, std::to_string(f.info.tier), row_bytes_text(f, 64), f.info.title});
  }
  print(form == Form::as_json ? all.dump(2) + "\n" : left_aligned(rows));
}

struct ListChoices {
  std::string what;
  bool json = false, markdown = false;
  Form form() const { return json ? Form::as_json : markdown ? Form::markdown : Form::text; }
};

// Throws if the name is no method, but nearly a row format.
void refuse_near_format(const std::string& name) {
  std::vector<std::string> methods, formats;
  for (const Method& m : known_methods()) methods.emplace_back(m.info.name);
  for (const RowFormatEntry& f : row_formats()) formats.emplace_back(f.info.name);
  const std::string guess = did_you_mean(name, formats);
  if (find_method(known_methods(), name) == nullptr && did_you_mean(name, methods).empty() && !guess.empty())
    throw ConfigError(fmt::format("unknown format \"{}\"{}: see kvreplay list formats", name, guess));
}

void describe(const ListChoices& choices) {
  if (choices.what == "all" && choices.markdown) return print(methods_markdown_page(registry()));
  if (const RowFormatEntry* format = find_row_format(choices.what)) {
    if (choices.json) return print(format_json(*format) + "\n");
    return print(choices.markdown ? format_markdown(*format) : format_text(*format));
  }
  refuse_near_format(choices.what);
  const Method& method = method_named(known_methods(), choices.what);
  if (choices.json) print(method_json(method) + "\n");
  else print(choices.markdown ? method_markdown(method) : method_text(method));
}

}  // namespace

void add_list(Command& app) {
  const auto choices = std::make_shared<ListChoices>();
  Command list = app.command("list", "list methods, formats, metrics or devices");
  list.option("what", choices->what, "methods, formats, metrics or devices")
      .one_of({"methods", "formats", "metrics", "devices"});
  Command one = app.command("describe", "a method or a row format: parameters, defaults, ranges, source, deviations");
  one.option("method", choices->what, "as in kvreplay list methods or formats; `all` with --markdown").required();
  for (Command* command : {&list, &one}) {
    const Option as_json = command->flag("--json", choices->json, "as JSON");
    command->flag("--markdown", choices->markdown, "as Markdown, for the documentation").excludes(as_json);
  }
  list.runs([choices](Context&) {
    if (choices->what.empty())
      throw ConfigError(
          "list needs a word for what to list: methods, formats, metrics or devices. Try kvreplay list methods");
    if (choices->what == "methods") list_methods(choices->form());
    if (choices->what == "formats") list_formats(choices->form());
    if (choices->what == "metrics") list_metrics(choices->form());
    if (choices->what == "devices") list_devices(choices->form());
    return 0;
  });
  one.runs([choices](Context&) {
    describe(*choices);
    return 0;
  });
}

}  // namespace kvreplay::app
