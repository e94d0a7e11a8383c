#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/json_text.hpp"
#include "config/allocator.hpp"
#include "config/common_options.hpp"
#include "config/later_method.hpp"
#include "config/method_keys.hpp"
#include "config/row_format.hpp"
#include "config/sections.hpp"
#include "config/serving.hpp"

// Reads the list of methods: names, parameters, and the axes that every method can be combined with. A list where one
// value is expected is a sweep axis; an entry becomes one instance for every combination.

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxInstances = 10'000;

// Value of a parameter, as JSON, or of a common option.
struct AxisValue {
  std::string json;
  OptionValue option;
  bool operator==(const AxisValue&) const = default;
};

struct SweepAxis {
  std::string name;
  Mark mark;
  std::vector<AxisValue> values;
};

struct Entry {
  const Method* method = nullptr;
  Mark mark;
  size_t index = 0;  // in the list of methods
  std::vector<SweepAxis> sweep;
  fs::path uniforms;
  std::shared_ptr<const LaterMethod> later = {};
  bool sound = true;  // no key was refused
};

std::vector<std::string> names_of(const Registry& methods) {
  std::vector<std::string> names;
  for (const Method& m : methods) {
    names.emplace_back(m.info.name);
    if (*m.info.alias != '\0') names.emplace_back(m.info.alias);
  }
  return names;
}

class MethodsReader {
 public:
  // later: reads the method of an option `then`.
  MethodsReader(RunConfig& config, const Source& source, Problems& problems, bool later = false)
      : config_(config), source_(source), problems_(problems), later_(later) {}

  void read(const Node& node, size_t index) {
    const Method* method = method_of(node);
    if (method == nullptr) return;
    Entry entry{method, node.mark, index, {}, {}};
    const size_t before = problems_.errors();
    if (node.kind == Node::Kind::map)
      for (size_t i = 0; i < node.keys.size(); ++i) read_key(entry, node.keys[i], node.items[i]);
    check_twins(entry);
    entry.sound = problems_.errors() == before;
    if (has_its_files(entry, node)) expand(entry);
  }

 private:
  const Method* method_of(const Node& node) {
    const Node* name = name_of(node);
    if (name == nullptr) return report_nameless(node), nullptr;
    if (name->kind != Node::Kind::scalar)
      return must_be(problems_, *name, "a method",
                     fmt::format("a name, or {} {}", words().map(), words().literal(R"({"name": "h2o", ...})"))),
             nullptr;
    const Method* method = find_method(source_.methods, name->text);
    if (method == nullptr)
      problems_.error(name->mark,
                      fmt::format("unknown method {}{}: see {}", in_quotes(name->text),
                                  did_you_mean(name->text, names_of(source_.methods)), words().list("methods")));
    return method;
  }

  void report_nameless(const Node& node) {
    const bool name_as_key = node.keys.size() == 1 && find_method(source_.methods, node.keys[0].text) != nullptr;
    const std::string example = fmt::format(R"({{"name": "{}", ...}})", name_as_key ? node.keys[0].text : "h2o");
    problems_.error(node.mark,
                    name_as_key ? fmt::format("write {} with the parameters beside the name", words().literal(example))
                                : "the method's name is missing: write " + words().literal(example));
  }

  void read_key(Entry& entry, const Key& key, const Node& value) {
    if (key.text == "name") return;
    if (key.text == "uniforms") return read_uniforms(entry, value);
    if (key.text == "gqa") return read_gqa(entry, value);
    if (const ParameterSpec* spec = entry.method->parameter(key.text)) return read_parameters(entry, key, value, *spec);
    if (key.text == kEnds && has_ends(*entry.method)) return read_words(entry, key, value, kEnds);
    for (const char* axis : {kRowFormat, kWrapper, kMerge, kThink})
      if (key.text == axis) return read_words(entry, key, value, axis);
    if (is_serving_key(key.text)) return read_words(entry, key, value, key.text);
    if (key.text == kThen) {
      entry.later = read_later_method(key, value, problems_, [&](RunConfig& run, const Node& method) {
        MethodsReader(run, source_, problems_, true).read(method, entry.index);
      });
      return;
    }
    const auto axis = option_words().find(key.text);
    if (axis != option_words().end()) return read_words(entry, key, value, axis->first);
    problems_.error(key.mark, unknown_key(*entry.method, key.text, source_.methods, words()));
  }

  void read_uniforms(Entry& entry, const Node& value) {
    const auto text = read_text(problems_, value, "uniforms");
    if (!text) return;
    entry.uniforms = source_.at(*text);
    std::error_code ignored;
    if (!fs::is_regular_file(entry.uniforms, ignored))
      problems_.error(value.mark, fmt::format("no file {} with uniforms (the path is relative to {})",
                                              entry.uniforms.string(), words().folder()));
  }

  std::optional<std::string> read_calibrated(const Node& item, const ParameterSpec& spec) {
    const auto text = read_text(problems_, item, spec.name);
    if (!text) return std::nullopt;
    Calibration by;
    if (!parse_calibration(*text, by)) {
      must_be(problems_, item, spec.name, "self, others, prompt:ID or file:PATH");
      return std::nullopt;
    }
    if (by.source != Calibration::Source::file) return json_of(*text);
    by.name = source_.at(by.name).string();
    std::error_code ignored;
    if (fs::is_regular_file(by.name, ignored)) return json_of(word(by));
    problems_.error(item.mark, fmt::format("no file {} of statistics (the path is relative to {}): `kvreplay "
                                           "calibrate TRACE -o FILE` writes one",
                                           by.name, words().folder()));
    return std::nullopt;
  }
  // The name of a file of lists may contain a budget, so its existence is checked when budgets are known.
  std::optional<std::string> read_file(const Method& method, const Node& item, const ParameterSpec& spec) {
    const auto text = read_text(problems_, item, spec.name);
    if (!text) return std::nullopt;
    const fs::path file = source_.at(*text);
    std::error_code ignored;
    if (spec.name == method.lists_in || fs::is_regular_file(file, ignored)) return json_of(file.string());
    problems_.error(item.mark, fmt::format("no file {} (the path is relative to {}). {}: {}", file.string(),
                                           words().folder(), spec.name, spec.help));
    return std::nullopt;
  }
  // False, after reporting it, for a method without the file that it needs.
  bool has_its_files(const Entry& entry, const Node& node) {
    for (const ParameterSpec& spec : entry.method->parameters) {
      const auto same = [&](const SweepAxis& axis) { return axis.name == spec.name; };
      if (spec.name != entry.method->lists_in || std::any_of(entry.sweep.begin(), entry.sweep.end(), same)) continue;
      const Node* given = node.kind == Node::Kind::map ? node.find(spec.name) : nullptr;
      if (given == nullptr || given->kind == Node::Kind::null)  // otherwise its value has already been reported
        problems_.error(
            entry.mark,
            fmt::format("{} needs a file: write {} ({})", entry.method->info.name,
                        words().entries({{entry.method->info.name, entry.index}}, spec.name, "FILE.h5"), spec.help));
      return false;
    }
    return true;
  }

  void read_gqa(Entry& entry, const Node& value) {
    const Section section(&value, "gqa", {"level", "agg"}, problems_);
    for (const char* key : {"level", "agg"})
      if (const Node* words = section.find(key)) {
        const std::string axis = fmt::format("gqa.{}", key);
        read_words(entry, {axis, value.key_mark(key)}, *words, axis);
      }
  }

  void read_parameters(Entry& entry, const Key& key, const Node& value, const ParameterSpec& spec) {
    if (value.kind == Node::Kind::null) {
      if (!spec.is_derived()) must_be(problems_, value, key.text, "given, or left out for the default");
      return;
    }
    // A set of layers is a list itself; a list of lists sweeps over it.
    const bool is_one = spec.kind == ParameterSpec::Kind::layers &&
                        std::none_of(value.items.begin(), value.items.end(),
                                     [](const Node& item) { return item.kind == Node::Kind::list; });
    using Kind = ParameterSpec::Kind;
    const auto read = [&](const Node& item) -> std::optional<AxisValue> {
      const auto json = spec.kind == Kind::file          ? read_file(*entry.method, item, spec)
                        : spec.kind == Kind::calibration ? read_calibrated(item, spec)
                                                         : read_parameter(problems_, item, spec);
      return json ? std::optional(AxisValue{*json, {}}) : std::nullopt;
    };
    read_axis(entry, key, value, read, is_one);
  }

  // protect_ends sets both sinks and recent; cut_every is another word for buffer.
  void check_twins(const Entry& entry) {
    const auto given = [&](const char* name) {
      return std::any_of(entry.sweep.begin(), entry.sweep.end(), [&](const SweepAxis& a) { return a.name == name; });
    };
    for (const char* end : {"sinks", "recent"})
      if (given(kEnds) && given(end))
        problems_.error(entry.mark, fmt::format("{} sets sinks and recent of {}, and {} is given too: remove one",
                                                kEnds, entry.method->info.name, end));
    if (given("cut_every") && given("buffer"))
      problems_.error(entry.mark, fmt::format("cut_every is the buffer of {}, and both are given: remove one",
                                              entry.method->info.name));
  }

  void read_words(Entry& entry, const Key& key, const Node& value, const std::string& axis) {
    read_axis(entry, key, value, [&](const Node& item) -> std::optional<AxisValue> {
      const auto option = read_option(entry, item, axis);
      return option ? std::optional(AxisValue{"", *option}) : std::nullopt;
    });
  }

  std::optional<OptionValue> read_option(const Entry& entry, const Node& item, const std::string& axis) {
    if (axis == kRowFormat) {
      const auto format =
          read_row_format(problems_, item, [this](const std::string& file) { return source_.at(file); });
      return format ? std::optional(OptionValue{"", *format}) : std::nullopt;
    }
    if (axis == kWrapper) {
      const auto wrapper = read_wrapper(problems_, item);
      return wrapper ? std::optional(OptionValue{"", {}, *wrapper}) : std::nullopt;
    }
    if (axis == kMerge) {
      const auto merge = read_merge(problems_, item);
      return merge ? std::optional(OptionValue{.word = "", .merge = *merge}) : std::nullopt;
    }
    if (is_serving_key(axis)) {
      const auto serving = read_serving(problems_, item, axis);
      return serving ? std::optional(OptionValue{.word = "", .serving = *serving}) : std::nullopt;
    }
    if (axis == kThink) {
      const auto think = read_think(problems_, item);
      return think ? std::optional(OptionValue{.word = "", .think = *think}) : std::nullopt;
    }
    if (axis == kEnds) {
      const auto share = read_real(problems_, item, kEnds, {0, 0.5});
      return share ? std::optional(OptionValue{.word = "", .ends = *share}) : std::nullopt;
    }
    if (axis == "allocator") return read_allocator(problems_, item, source_);
    const auto text = read_word(problems_, item, axis, option_words().at(axis));
    if (!text) return std::nullopt;
    const MethodInfo& info = entry.method->info;
    const bool streams = info.streams || info.selects;  // with cut_every any method that selects streams
    const bool has = axis != "phase" || (*text == "stream" ? streams : info.oneshots);
    if (!has) return refuse_word(entry, item.mark, item.text, "the phase"), std::nullopt;
    const bool positioned = axis != "positions" || *text == "original" || info.any_positions;
    if (!positioned) return refuse_word(entry, item.mark, item.text, "positions"), std::nullopt;
    return OptionValue{*text};
  }

  void refuse_word(const Entry& entry, const Mark& mark, const std::string& text, const std::string& what) {
    const MethodInfo& info = entry.method->info;
    const char* only = what == "positions" ? "original" : info.streams ? "stream" : "oneshot";
    problems_.error(
        mark, Refusal{.methods = {{info.name, entry.index}},
                      .rule = fmt::format("{} of {{methods}} is {} and must be {}", what, in_quotes(text), only)});
  }

  // Whether the phase that an instance names is one that it has.
  bool accepts_phase(const Entry& entry, const MethodInstance& m, const std::string& phase, const Mark& mark) {
    const bool streams = phase == "stream";
    const char* wrong = later_ && !streams              ? "a method inside then streams: leave out phase"
                        : m.later != nullptr && streams ? "a method before then cuts the prompt once: leave out phase"
                                                        : nullptr;
    if (wrong != nullptr) problems_.error(mark, wrong);
    else if (later_ || !streams || m.method().info.streams || m.options.serving.cuts_again()) return true;
    else refuse_word(entry, mark, phase, "the phase");
    return false;
  }

  template <class Read>
  void read_axis(Entry& entry, const Key& key, const Node& value, Read read, bool is_one = false) {
    const auto same =
        std::find_if(entry.sweep.begin(), entry.sweep.end(), [&](const SweepAxis& a) { return a.name == key.text; });
    if (same != entry.sweep.end()) return problems_.error(key.mark, fmt::format("{} is given twice", key.text));
    SweepAxis axis{key.text, value.mark, {}};
    for (const Node* item : is_one ? std::vector<const Node*>{&value} : one_or_many(value)) {
      const auto read_value = read(*item);
      if (!read_value) continue;
      if (std::find(axis.values.begin(), axis.values.end(), *read_value) != axis.values.end())
        problems_.error(item->mark, fmt::format("{} is listed twice in {}",
                                                item->text.empty() ? "an entry" : item->text, key.text));
      else axis.values.push_back(*read_value);
    }
    if (!is_one && value.kind == Node::Kind::list && value.items.empty())
      problems_.error(value.mark, fmt::format("{} is an empty list: write the values to sweep over", key.text));
    if (!axis.values.empty()) entry.sweep.push_back(std::move(axis));
  }

  // Adds one instance for every combination; the last axis varies fastest.
  void expand(const Entry& entry) {
    size_t combinations = 1;
    for (const SweepAxis& axis : entry.sweep)
      combinations = std::min(combinations * axis.values.size(), 2 * kMaxInstances);
    if (config_.methods.size() + combinations > kMaxInstances)
      return problems_.error(entry.mark,
                             fmt::format("the lists of this entry make more than {} methods", kMaxInstances));
    for (size_t c = 0; c < combinations; ++c) add(entry, c);
  }

  void add(const Entry& entry, size_t combination) {
    MethodInstance instance{MethodValues(*entry.method), {}, entry.uniforms, entry.mark, entry.index, entry.later};
    const std::string place = fmt::format("methods[{}]", config_.methods.size());
    std::vector<std::pair<const std::string*, const OptionValue*>> options;
    for (size_t a = entry.sweep.size(); a-- > 0;) {
      const SweepAxis& axis = entry.sweep[a];
      const AxisValue& value = axis.values[combination % axis.values.size()];
      combination /= axis.values.size();
      if (const ParameterSpec* spec = entry.method->parameter(axis.name)) instance.values.set(*spec, value.json);
      else options.emplace_back(&axis.name, &value.option);
      config_.marks[place + "." + axis.name] = axis.mark;
    }
    instance.options = instance.values.default_options();
    for (const auto& [name, value] : options) set_option(instance.options, *name, *value);
    for (const auto& [name, value] : options)
      if (*name == kEnds) instance.values.protect_ends(value->ends);
    const auto phase = std::find_if(options.begin(), options.end(), [](const auto& o) { return *o.first == "phase"; });
    const bool has_phase = phase != options.end();
    if (has_phase && !accepts_phase(entry, instance, phase->second->word, config_.marks[place + ".phase"])) return;
    set_phase(instance, has_phase, later_);
    if (const std::string why = combination_problem(instance, words()); !why.empty())
      return problems_.error(entry.mark, Refusal{.methods = {instance.named()}, .rule = why});
    check_file_names(instance);
    if (entry.sound) {  // otherwise what was meant is not known
      const auto [first, is_new] = seen_.emplace(identity(instance), instance.mark);
      if (!is_new) return report_repetition(instance, first->second);
    }
    config_.marks[place] = instance.mark;
    config_.methods.push_back(std::move(instance));
  }

  // Results name a file without its folder, so two files must not have the same name.
  void check_file_names(const MethodInstance& m) {
    const Calibration& by = m.values.calibration();
    const std::string& file = by.source == Calibration::Source::file ? by.name : m.values.file();
    if (file.empty()) return;
    const auto [other, is_new] = files_.emplace(fs::path(file).filename().string(), file);
    if (!is_new && other->second != file)
      problems_.error(m.mark, fmt::format("{} and {} have one file name, so results could not distinguish "
                                          "them: rename one",
                                          other->second, file));
  }

  static std::string identity(const MethodInstance& m) {
    return m.method().info.name + m.values.file() + m.values.calibration().name + params_json(m.values, m.options) +
           m.uniforms.string() + later_json(m.later.get());
  }

  void report_repetition(const MethodInstance& instance, const Mark& first) {
    const std::string where = first.line > 0 ? fmt::format(" (first on line {})", first.line) : "";
    problems_.error(instance.mark, fmt::format("{} is listed twice with the same parameters{}: remove one",
                                               instance.method().info.name, where));
  }

  const Wording& words() const { return problems_.words(); }

  RunConfig& config_;
  const Source& source_;
  Problems& problems_;
  bool later_;
  std::map<std::string, Mark> seen_;
  std::map<std::string, std::string> files_;  // file name -> path
};

}  // namespace

void read_methods(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems) {
  if (node == nullptr || (node->kind == Node::Kind::list && node->items.empty()))
    return problems.error(missing,
                          fmt::format("{} is missing: add for example {}", problems.words().key("methods"),
                                      problems.words().setting("methods", R"(["exact", "streaming_llm", "h2o"])")));
  if (node->kind == Node::Kind::map)
    return must_be(problems, *node, "methods", "a list: one method a line, each after \"- \"");
  MethodsReader reader(config, source, problems);
  const std::vector<const Node*> entries = one_or_many(*node);
  for (size_t i = 0; i < entries.size(); ++i) reader.read(*entries[i], i);
}

}  // namespace kvreplay
