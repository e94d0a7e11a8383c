#include "config/values.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/core.h>

#include "base/json_text.hpp"

namespace kvreplay {

const Node* Node::find(const std::string& key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text == key) return &items[i];
  return nullptr;
}

const Mark& Node::key_mark(const std::string& key) const {
  for (const Key& k : keys)
    if (k.text == key) return k.mark;
  return mark;
}

namespace {

constexpr double kOpenZero = 1e-6;  // a real range that starts here or below excludes zero itself

std::string shown(const Node& node, const Wording& words) {
  switch (node.kind) {
    case Node::Kind::null:
      return "empty";
    case Node::Kind::list:
      return "a list";
    case Node::Kind::map:
      return words.map();
    case Node::Kind::scalar:
      break;
  }
  const bool number = !node.quoted && !node.text.empty() && node.text.size() < 60 &&
                      node.text.find_first_not_of("0123456789.-+eE") == std::string::npos;
  return number ? node.text : in_quotes(node.text);
}

// 010 is eight to some readers of YAML and ten to others.
bool leading_zero(const std::string& text) {
  const size_t start = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.size() > start + 1 && text[start] == '0' &&
         text.find_first_not_of("0123456789", start) == std::string::npos;
}

std::string without_leading_zeros(const std::string& text) {
  const size_t start = text.find_first_not_of("+0");
  return start == std::string::npos ? "0" : text.substr(start);
}

template <class T>
std::optional<T> number(const std::string& text) {
  const size_t start = !text.empty() && text[0] == '+' ? 1 : 0;
  T value{};
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.size() == start) return std::nullopt;
  return value;
}

// Checks for a plain scalar and reports the problems that every number can have.
bool plain_number(Problems& problems, const Node& node, const std::string& name, const std::string& what) {
  if (node.kind != Node::Kind::scalar) return must_be(problems, node, name, what), false;
  if (node.quoted) return must_be(problems, node, name, what + ": remove the quotes"), false;
  if (!leading_zero(node.text)) return true;
  must_be(problems, node, name,
          fmt::format("written without the leading zero, which some readers take for octal: {}",
                      without_leading_zeros(node.text)));
  return false;
}

std::string bound(double value, bool whole) {
  return whole ? fmt::format("{}", int64_t(value)) : fmt::format("{}", value);
}

const std::vector<std::pair<std::string, std::vector<std::string>>>& sections() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"select", {"prompts", "layers", "kv_heads"}},
      {"replay", {"tokens", "prefill", "prompt", "queries", "needles", "recall_k", "tier", "machine"}},
      {"budget", {"fraction_kept", "bytes", "share_of_cache"}},
      {"seeds", {"first", "count"}},
      {"run", {"device", "jobs", "precision", "audit"}},
      {"output", {"dir", "save"}}};
  return all;
}

std::string unknown_key(const std::string& section, const std::string& key, const std::vector<std::string>& known,
                        const Wording& words) {
  const std::string where = section.empty() ? "" : " in " + words.key(section);
  const std::string guess = did_you_mean(key, known);
  if (!guess.empty()) return fmt::format("unknown key {}{}{}", in_quotes(key), where, guess);
  for (const auto& [other, keys] : sections())
    if (other != section && std::find(keys.begin(), keys.end(), key) != keys.end())
      return fmt::format("unknown key {}{}: {}", in_quotes(key), where, words.belongs(other, key));
  return fmt::format("unknown key {}{}: the keys here are {}", in_quotes(key), where, join(known));
}

}  // namespace

bool is_key_of_section(const std::string& key) {
  return std::any_of(sections().begin(), sections().end(), [&](const auto& section) {
    return std::find(section.second.begin(), section.second.end(), key) != section.second.end();
  });
}

std::string in_quotes(const std::string& text) {
  constexpr size_t kLongest = 60;
  std::string shown = text;
  if (text.size() > kLongest) {
    size_t end = kLongest;  // never inside a character
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    shown = text.substr(0, end) + "...";
  }
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return '"' + shown + '"';
}

void must_be(Problems& problems, const Node& node, const std::string& name, const std::string& what) {
  const Wording& words = problems.words();
  problems.error(node.mark, fmt::format("{} is {} and must be {}", words.key(name), shown(node, words), what));
}

std::string range_text(double low, double high, bool whole) {
  const bool bounded = high < kManyTokens;
  const bool open_zero = !whole && low > 0 && low <= kOpenZero;
  if (open_zero) return bounded ? fmt::format("in (0, {}]", bound(high, whole)) : "above 0";
  if (!bounded) return low <= -kManyTokens ? "a number" : "at least " + bound(low, whole);
  if (whole) return low == high ? bound(low, true) : fmt::format("{} to {}", bound(low, true), bound(high, true));
  return fmt::format("in [{}, {}]", bound(low, false), bound(high, false));
}

std::optional<int64_t> read_integer(Problems& problems, const Node& node, const std::string& name, Range range) {
  if (!plain_number(problems, node, name, "a whole number")) return std::nullopt;
  const auto value = number<int64_t>(node.text);
  if (!value) return must_be(problems, node, name, "a whole number"), std::nullopt;
  if (double(*value) >= range.low && double(*value) <= range.high) return value;
  const bool too_large = double(*value) > range.high && range.high >= kManyTokens;
  must_be(problems, node, name,
          too_large ? "at most " + bound(range.high, true) : range_text(range.low, range.high, true));
  return std::nullopt;
}

std::optional<double> read_real(Problems& problems, const Node& node, const std::string& name, Range range) {
  if (!plain_number(problems, node, name, "a number")) return std::nullopt;
  const auto value = number<double>(node.text);
  if (!value || !std::isfinite(*value)) return must_be(problems, node, name, "a number"), std::nullopt;
  if (*value >= range.low && *value <= range.high) return value;
  must_be(problems, node, name, range_text(range.low, range.high, false));
  return std::nullopt;
}

std::optional<bool> read_boolean(Problems& problems, const Node& node, const std::string& name) {
  if (node.kind == Node::Kind::scalar && !node.quoted && node.text == "true") return true;
  if (node.kind == Node::Kind::scalar && !node.quoted && node.text == "false") return false;
  must_be(problems, node, name, problems.words().truths());
  return std::nullopt;
}

std::optional<std::string> read_text(Problems& problems, const Node& node, const std::string& name) {
  if (node.kind == Node::Kind::scalar && !node.text.empty()) return node.text;
  must_be(problems, node, name, "a text");
  return std::nullopt;
}

std::optional<std::string> read_word(Problems& problems, const Node& node, const std::string& name,
                                     const std::vector<std::string>& words) {
  if (node.kind == Node::Kind::scalar && std::find(words.begin(), words.end(), node.text) != words.end())
    return node.text;
  const std::string guess = node.kind == Node::Kind::scalar ? did_you_mean(node.text, words) : "";
  must_be(problems, node, name, (words.size() > 1 ? "one of " : "") + join(words) + guess);
  return std::nullopt;
}

namespace {

std::optional<std::string> read_layers(Problems& problems, const Node& node, const ParameterSpec& spec) {
  if (node.kind != Node::Kind::list)
    return must_be(problems, node, spec.name, "a list of layers: [0, 1]"), std::nullopt;
  std::vector<int64_t> layers;
  for (const Node& item : node.items)
    if (const auto layer = read_integer(problems, item, spec.name, {spec.low, spec.high})) layers.push_back(*layer);
  return json_of(layers);
}

std::optional<std::string> read_integers(Problems& problems, const Node& node, const ParameterSpec& spec) {
  const std::string wanted = fmt::format("a list of 1 to {} whole numbers", IntegerList::kMost);
  if (node.kind != Node::Kind::list || node.items.empty() || node.items.size() > size_t(IntegerList::kMost))
    return must_be(problems, node, spec.name, wanted), std::nullopt;
  std::vector<int64_t> numbers;
  for (const Node& item : node.items)
    if (const auto number = read_integer(problems, item, spec.name, {spec.low, spec.high})) numbers.push_back(*number);
  if (numbers.size() != node.items.size()) return std::nullopt;  // already reported
  return json_of(numbers);
}

std::optional<std::string> read_rows(Problems& problems, const Node& node, const ParameterSpec& spec) {
  const std::string& text = node.text;
  const bool digits = text.size() > 5 && text.size() < 14 &&
                      text.find_first_not_of("0123456789", 5) == std::string::npos && text[5] != '0';
  const bool last = text.starts_with("last:") && digits;
  if (node.kind == Node::Kind::scalar && (text == "full" || text == "decode_only" || last)) return json_of(text);
  return must_be(problems, node, spec.name, "full, decode_only or last:w, such as last:64"), std::nullopt;
}

// Reads a name, or a map of a name and parameters of that scorer.
std::optional<std::string> read_scorer(Problems& problems, const Node& node, const ParameterSpec& spec) {
  const Node* name = name_of(node);
  if (name == nullptr)
    return must_be(problems, node, spec.name,
                   fmt::format("a name, or {} with one: {}", problems.words().map(),
                               problems.words().literal(R"({"name": "snapkv", "window": 64})"))),
           std::nullopt;
  const auto word = read_word(problems, *name, spec.name, spec.choices);
  if (!word) return std::nullopt;
  if (node.kind != Node::Kind::map) return json_of(*word);
  const size_t which = size_t(std::find(spec.choices.begin(), spec.choices.end(), *word) - spec.choices.begin());
  std::vector<std::string> keys = {"name"};
  for (const ParameterSpec& inner : spec.nested.at(which)) keys.push_back(inner.name);
  const Section section(&node, spec.name, keys, problems);
  JsonObject value;
  value.add("name", *word);
  for (const ParameterSpec& inner : spec.nested.at(which))
    if (const Node* given = section.find(inner.name))
      if (const auto read = read_parameter(problems, *given, inner)) value.add_json(inner.name, *read);
  return value.text();
}

}  // namespace

std::optional<std::string> read_parameter(Problems& problems, const Node& node, const ParameterSpec& spec) {
  using Kind = ParameterSpec::Kind;
  const bool word = node.kind == Node::Kind::scalar && (spec.kind == Kind::integer || spec.kind == Kind::real) &&
                    std::find(spec.choices.begin(), spec.choices.end(), node.text) != spec.choices.end();
  if (word) return json_of(node.text);
  const bool letters = node.kind == Node::Kind::scalar && !node.text.empty() && std::isalpha(node.text.front()) != 0;
  if (letters && (spec.kind == Kind::integer || spec.kind == Kind::real) && !spec.choices.empty()) {
    must_be(problems, node, spec.name, fmt::format("a number, or {}", join(spec.choices, " or ")));
    return std::nullopt;
  }
  const auto json = [](const auto& value) {
    return value ? std::optional<std::string>(json_of(*value)) : std::nullopt;
  };
  switch (spec.kind) {
    case Kind::integer:
      return json(read_integer(problems, node, spec.name, {spec.low, spec.high}));
    case Kind::real:
      return json(read_real(problems, node, spec.name, {spec.low, spec.high}));
    case Kind::boolean:
      return json(read_boolean(problems, node, spec.name));
    case Kind::choice:
      return json(read_word(problems, node, spec.name, spec.choices));
    case Kind::layers:
      return read_layers(problems, node, spec);
    case Kind::rows:
      return read_rows(problems, node, spec);
    case Kind::integers:
      return read_integers(problems, node, spec);
    case Kind::scorer:
      return read_scorer(problems, node, spec);
    case Kind::file:
    case Kind::calibration:
      return json(read_text(problems, node, spec.name));
  }
  return std::nullopt;
}

const Node* name_of(const Node& value) { return value.kind == Node::Kind::map ? value.find("name") : &value; }

std::vector<const Node*> one_or_many(const Node& node) {
  if (node.kind != Node::Kind::list) return {&node};
  std::vector<const Node*> items;
  for (const Node& item : node.items) items.push_back(&item);
  return items;
}

Section::Section(const Node* node, std::string name, std::vector<std::string> keys, Problems& problems) : node_(node) {
  if (node_ == nullptr || node_->kind == Node::Kind::null) return;
  if (node_->kind != Node::Kind::map) {
    must_be(problems, *node_, name.empty() ? "the configuration" : name,
            fmt::format("{} with the keys {}", problems.words().map(), join(keys)));
    return;
  }
  for (const Key& key : node_->keys)
    if (std::find(keys.begin(), keys.end(), key.text) == keys.end())
      problems.error(key.mark, unknown_key(name, key.text, keys, problems.words()));
}

const Node* Section::find(const std::string& key) const {
  if (node_ == nullptr || node_->kind != Node::Kind::map) return nullptr;
  const Node* value = node_->find(key);
  return value == nullptr || value->kind == Node::Kind::null ? nullptr : value;
}

}  // namespace kvreplay
