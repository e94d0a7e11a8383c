#include "config/method_keys.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "config/common_options.hpp"
#include "config/later_method.hpp"
#include "config/row_format.hpp"
#include "config/serving.hpp"

namespace kvreplay {
namespace {

const std::string kGqa = "gqa";

bool is_option(const std::string& key) {
  const bool is_axis = key == kRowFormat || key == kWrapper || key == kMerge || key == kThink;
  return is_axis || option_words().count(key) > 0 || is_serving_key(key);
}

std::vector<std::string> keys_of(const Method& method) {
  std::vector<std::string> keys;
  for (const ParameterSpec& spec : method.parameters) keys.push_back(spec.name);
  for (const auto& [name, words] : option_words()) keys.push_back(name);
  keys.insert(keys.end(), {kRowFormat, kWrapper, kMerge, kThink});
  if (has_ends(method)) keys.emplace_back(kEnds);
  keys.insert(keys.end(), serving_keys().begin(), serving_keys().end());
  keys.insert(keys.end(), {"name", "uniforms", "gqa", kThen});
  return keys;
}

// The methods that have the parameter: "snapkv and pyramidkv".
std::string owners(const Registry& methods, const std::string& parameter) {
  std::vector<std::string> names;
  for (const Method& m : methods)
    if (m.parameter(parameter) != nullptr) names.emplace_back(m.info.name);
  return join(names, " and ");
}

bool takes(const Method& method, const std::string& key) {
  return is_option(key) || method.parameter(key) != nullptr || (key == kEnds && has_ends(method));
}

// A key with its value; `gqa: {level: layer}` is gqa.level.
struct Given {
  std::string key, value;  // value: "" if it is no single word
};

Given given_at(const std::string& key, const Node& value) {
  if (key == kGqa && value.kind == Node::Kind::map && !value.keys.empty())
    return given_at(kGqa + "." + value.keys.front().text, value.items.front());
  return {key == kGqa ? kGqa + ".level" : key, value.kind == Node::Kind::scalar ? value.text : ""};
}

// Values that the key may have, the given one first.
std::vector<std::string> values_for(const Given& given, const Method& method) {
  std::vector<std::string> values = {given.value};
  if (given.key == kRowFormat) values.emplace_back("int4");
  if (given.key == kMerge) values.emplace_back("pivot");
  if (given.key == kThink) values.emplace_back("{ratio: 0.5}");
  if (given.key == kEnds) values.emplace_back("0.1");
  if (given.key == kWrapper) values.emplace_back("caote");
  if (const auto words = option_words().find(given.key); words != option_words().end())
    values.insert(values.end(), words->second.rbegin(), words->second.rend());
  if (const ParameterSpec* spec = method.parameter(given.key)) {
    values.insert(values.end(), spec->choices.begin(), spec->choices.end());
    if (!spec->is_derived()) values.push_back(without_quotes(spec->default_json));
    values.push_back(fmt::format("{}", std::max(spec->low, 1.0)));
  }
  std::erase(values, "");
  return values;
}

// Whether an entry of the list of methods would be accepted.
bool is_accepted(const std::string& entry, const Source& source) {
  Problems problems;
  const Node list = parse_yaml("[" + entry + "]", false, problems);
  RunConfig alone;
  if (!problems.any_error()) read_methods(alone, &list, {}, source, problems);
  return !problems.any_error();
}

// The first value that the method accepts; "" if it accepts none.
std::string value_of(const Given& given, const Method& method, const Source& source) {
  for (const std::string& value : values_for(given, method))
    if (is_accepted(fmt::format("{{name: {}, {}: {}}}", method.info.name, given.key, value), source)) return value;
  return "";
}

// The key and a value where they belong; "" if there is no example.
std::string example(const RunConfig& config, const Given& given, const Source& source, const Wording& words) {
  for (const MethodInstance& m : config.methods)
    if (takes(m.method(), given.key))
      if (const std::string value = value_of(given, m.method(), source); !value.empty())
        return words.entries({m.named()}, given.key, value);
  for (const Method& method : source.methods)
    if (takes(method, given.key))
      if (const std::string value = value_of(given, method, source); !value.empty())
        return words.setting("methods",
                             fmt::format(R"([{{"name": "{}", "{}": {}}}])", method.info.name, given.key, value));
  return "";
}

}  // namespace

std::string unknown_key(const Method& method, const std::string& key, const Registry& methods, const Wording& words) {
  const std::string name = method.info.name;
  if (key == "budget" || key == "tokens" || key == "fraction_kept" || key == "bytes" || key == "share_of_cache") {
    if (!method.info.takes_budget)
      return fmt::format("{} has no budget of its own: its size is an output. Remove \"{}\"", name, key);
    return fmt::format("{} has no budget of its own: budgets are written once, {}, and apply to every method", name,
                       words.budgets());
  }
  if (key == kEnds && method.info.selects)
    return fmt::format("{} has no sinks and recent tokens that {} could set: leave it out", name, key);
  const std::string whose = owners(methods, key);
  if (!whose.empty()) return fmt::format("{} is a parameter of {}, not of {}", in_quotes(key), whose, name);
  const std::string guess = did_you_mean(key, keys_of(method));
  return fmt::format("unknown parameter {} of {}{}: see {}", in_quotes(key), name, guess, words.description(name));
}

std::vector<std::string> method_keys_at_root(const Node& root, const std::vector<std::string>& known,
                                             const Registry& methods) {
  std::vector<std::string> keys;
  for (const Key& key : root.keys) {
    if (std::find(known.begin(), known.end(), key.text) != known.end() || is_key_of_section(key.text)) continue;
    const auto taken = [&](const Method& method) { return takes(method, key.text); };
    if (key.text == kGqa || std::any_of(methods.begin(), methods.end(), taken)) keys.push_back(key.text);
  }
  return keys;
}

Node without(Node root, const std::vector<std::string>& keys) {
  for (size_t i = root.keys.size(); i-- > 0;)
    if (std::find(keys.begin(), keys.end(), root.keys[i].text) != keys.end())
      root.keys.erase(root.keys.begin() + int64_t(i)), root.items.erase(root.items.begin() + int64_t(i));
  return root;
}

void tell_method_keys(const RunConfig& config, const Node& root, const std::vector<std::string>& keys,
                      const Source& source, Problems& problems) {
  for (const std::string& key : keys) {
    const Given given = given_at(key, *root.find(key));
    const std::string entry = example(config, given, source, problems.words());
    problems.error(root.key_mark(key),
                   fmt::format("{} belongs to a method{}{}", given.key, entry.empty() ? "" : ": ", entry));
  }
}

}  // namespace kvreplay
