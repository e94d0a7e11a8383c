#include "apps/method_text.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "apps/text_table.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "config/run_config.hpp"
#include "results/note.hpp"

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

// The facts that hold for an instance with the default parameters (core/method_info.hpp).
std::vector<std::string> trait_words(const Method& method) {
  const MethodValues values(method);
  const Traits& t = values.traits();
  const std::pair<bool, const char*> all[] = {
      {t.random, "random, so replayed with several seeds"},
      {t.streams_prompt, "reads its prompt token by token"},
      {t.observes, "needs the attention probabilities of its rows"},
      {t.chooses, "reads only some rows of its cache"},
      {t.changes_logits, "changes logits"},
      {t.holds_all, "stores every token"},
      {t.implied_layout, "stores no positions"},
      {t.heads_differ, "each query head attends to tokens of its own"},
      {t.shared_over == SharedOver::head, "a layer's number decides its budget"},
      {t.shared_over == SharedOver::layer, "heads of a layer share its budget"},
      {t.shared_over == SharedOver::model, "all layers share its budget"},
      {t.learns_heads, "learns the shares of its heads from calibration prompts"},
      {method.info.selects, "selects by scores: the options of serving apply"},
  };
  std::vector<std::string> words;
  for (const auto& [holds, word] : all)
    if (holds) words.emplace_back(word);
  return words;
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
                     {"traits", join(trait_words(method), "; ")},
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
    "wrapper, merge, think, allocator and uniforms, where they have a meaning for it. A method with sinks and recent "
    "also takes protect_ends. Options of serving (docs/serving.md): cut_every, recut, keep_prompt, prefill_chunk, "
    "page, then.";

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
  const json all = {{"name", info.name},           {"title", info.title},      {"source", info.source},
                    {"tier", info.tier},           {"memory", info.memory},    {"deviation", info.deviation},
                    {"phases", phases_text(info)}, {"alias", info.alias},      {"takes_budget", info.takes_budget},
                    {"warning", info.warning},     {"parameters", parameters}, {"traits", trait_words(method)}};
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

namespace {

std::string values_text(const ParameterSpec& spec) {
  using Kind = ParameterSpec::Kind;
  switch (spec.kind) {
    case Kind::choice:
    case Kind::rows:
    case Kind::calibration:
      return join(spec.choices, " | ");
    case Kind::scorer:
      return join(spec.choices, " | ") + ", or {name: one of them, its parameters}";
    case Kind::boolean:
      return "true | false";
    case Kind::file:
      return "a path, relative to the configuration";
    case Kind::layers:
      return "a list of layers";
    case Kind::integers:
      return fmt::format("a list of whole numbers in {}", range_text(spec.low, spec.high, true));
    case Kind::integer:
    case Kind::real: {
      const std::string range = range_text(spec.low, spec.high, spec.kind == Kind::integer);
      return spec.choices.empty() ? range : range + " | " + join(spec.choices, " | ");
    }
  }
  return "";
}

// Escapes pipes, which would end a cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string spec_json(const ParameterSpec& spec) {
  const nlohmann::json all = {{"name", spec.name},
                              {"default", nlohmann::json::parse(spec.default_json)},
                              {"default_text", spec.default_text},
                              {"low", spec.low},
                              {"high", spec.high},
                              {"choices", spec.choices},
                              {"help", spec.help}};
  return all.dump();
}

TextRows parameter_rows(const std::vector<ParameterSpec>& parameters) {
  TextRows rows = {{"parameter", "default", "values", "meaning"}};
  for (const ParameterSpec& spec : parameters)
    rows.push_back({spec.name, spec.default_text, values_text(spec), spec.help});
  return rows;
}

std::string markdown_table(const TextRows& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += "|";
    for (const std::string& c : rows[r]) text += fmt::format(" {} |", cell(c));
    text += "\n";
    if (r > 0) continue;
    text += "|";
    for (size_t c = 0; c < rows[r].size(); ++c) text += "---|";
    text += "\n";
  }
  return text;
}

namespace {

using nlohmann::json;
using Lines = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kEveryFormatTakes =
    "Every format also takes rotate, rotate_block and keys, where they have a meaning for it, and every row_format "
    "full_precision, skip_layers and own_row: docs/configuration.md, \"Row formats\".";

RowFormat both(const RowFormatEntry& format) { return row_format(format.info.name); }

std::string rotation_text(const RowFormatEntry& format) {
  if (format.own_rotation) return "its own";
  return format.info.default_rotate == RowRotation::hadamard_signed ? "hadamard_signed by default" : "";
}

// Bytes of a token of DeepSeek V2 and V3.
double latent_bytes(const RowFormat& format) { return row_bytes(format, 512 + 64, 0, 2); }

std::string bytes_text(const RowFormatEntry& format) {
  const RowFormat f = both(format);
  if (format.which == 0) return "";
  if (format.info.of_latents) return fmt::format("{} for a latent of 512 numbers and 64 rotated ones", latent_bytes(f));
  const int64_t fixed = static_bytes(f, 64, 64);
  return fmt::format("{} for a key and a value of 64 numbers, {} of 128{}", row_bytes_text(format, 64),
                     row_bytes_text(format, 128),
                     fixed > 0 ? fmt::format(", and {} once for a kv head of 64", fixed) : "");
}

std::string widths_text(const FormatInfo& info) {
  if (info.power_of_two) return "powers of two";
  if (info.multiple_of == 1) return "";
  return fmt::format("multiples of {}{}", info.multiple_of, info.parts_differ ? " for values" : "");
}

Lines facts(const RowFormatEntry& format) {
  const RowFormat f = both(format);
  const Lines all = {{"source", format.info.source},
                     {"tier", std::to_string(format.info.tier)},
                     {"bytes", bytes_text(format)},
                     {"rotation", rotation_text(format)},
                     {"keys", format.info.keys_pre_rope ? "pre_rope by default" : ""},
                     {"rows", format.info.of_latents ? "of latent attention only" : ""},
                     {"widths", widths_text(format.info)},
                     {"constants", is_calibrated(f) ? "from the prompt, once for each kv head" : ""},
                     {"coded", format.info.by_block ? "several rows together" : ""},
                     {"deviation", format.info.deviation}};
  Lines said;
  for (const auto& line : all)
    if (!line.second.empty()) said.push_back(line);
  return said;
}

}  // namespace

std::string row_bytes_text(const RowFormatEntry& format, int32_t width) {
  if (format.which == 0) return "as the trace";
  if (format.info.of_latents) return "–";
  const double bytes = row_bytes(both(format), width, width, 2);
  return bytes == double(int64_t(bytes)) ? std::to_string(int64_t(bytes)) : fmt::format("{:.1f}", bytes);
}

std::string format_json(const RowFormatEntry& format) {
  json parameters = json::array();
  for (const ParameterSpec& spec : format.parameters) parameters.push_back(json::parse(spec_json(spec)));
  const RowFormat f = both(format);
  const FormatInfo& info = format.info;
  json all = {{"name", info.name},
              {"title", info.title},
              {"source", info.source},
              {"tier", info.tier},
              {"deviation", info.deviation},
              {"multiple_of", info.multiple_of},
              {"coded_in_blocks", info.by_block},
              {"calibrated", is_calibrated(f)},
              {"of_latents", info.of_latents},
              {"own_rotation", format.own_rotation},
              {"parameters", parameters}};
  if (info.of_latents) all["bytes_latent"] = latent_bytes(f);
  else if (format.which > 0) all["bytes_64"] = row_bytes(f, 64, 64, 2), all["bytes_128"] = row_bytes(f, 128, 128, 2);
  return all.dump(2);
}

std::string format_text(const RowFormatEntry& format) {
  std::string text = fmt::format("{}: {}\n\n", format.info.name, format.info.title);
  for (const auto& [name, value] : facts(format)) text += fmt::format("{:<11}{}\n", name, value);
  text += format.parameters.empty() ? "\nno parameters\n" : "\n" + left_aligned(parameter_rows(format.parameters));
  return text + "\n" + kEveryFormatTakes + "\n";
}

std::string format_markdown(const RowFormatEntry& format) {
  std::string text = fmt::format("## {}\n\n{}.\n\n", format.info.name, format.info.title);
  for (const auto& [name, value] : facts(format)) text += fmt::format("- **{}**: {}\n", name, value);
  if (!format.parameters.empty()) text += "\n" + markdown_table(parameter_rows(format.parameters));
  return text;
}

std::string formats_markdown_page() {
  std::string text =
      "# Row formats\n\nHow the rows of any cache are stored, from the lines of each format's own file (`kvreplay list "
      "formats --markdown`). Bytes are those of a coded row, key and value together, with scales and offsets; what is "
      "stored once for a kv head is not in them. " +
      std::string(kEveryFormatTakes) + "\n\n";
  TextRows rows = {{"name", "what it stores", "bytes, d = 64", "d = 128", "tier"}};
  for (const RowFormatEntry& f : row_formats())
    rows.push_back({fmt::format("[`{}`](#{})", f.info.name, f.info.name), f.info.title, row_bytes_text(f, 64),
                    row_bytes_text(f, 128), std::to_string(f.info.tier)});
  text += markdown_table(rows);
  for (const RowFormatEntry& f : row_formats()) text += "\n" + format_markdown(f);
  return text;
}

std::string instance_text(const MethodInstance& instance) {
  const std::string later = later_json(instance.later.get());
  return NamedInstance{instance.method_name(), given_json(instance.values, instance.options, {}, later)}.label();
}

}  // namespace kvreplay::app
