#include "parameters/parameter.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "parameters/describe.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;
using Kind = ParameterSpec::Kind;

template <class T>
T read(const std::byte* policy, size_t offset) {
  T value;
  std::memcpy(&value, policy + offset, sizeof value);
  return value;
}
template <class T>
void write(std::byte* policy, size_t offset, T value) {
  std::memcpy(policy + offset, &value, sizeof value);
}

json layers_json(const LayerSet& layers) {
  json list = json::array();
  for (int32_t layer = 0; layer < LayerSet::kMost; ++layer)
    if (layers.has(layer)) list.push_back(layer);
  return list;
}
json rows_json(int32_t rows) {
  if (rows == kAllRows) return "full";
  return rows == kDecodeRows ? json("decode_only") : json("last:" + std::to_string(rows));
}
int32_t rows_of(const std::string& text) {
  if (text == "full") return kAllRows;
  return text == "decode_only" ? kDecodeRows : int32_t(std::stol(text.substr(5)));
}
json integer_json(const ParameterSpec& spec, int32_t value) {
  if (value == kDerived) return nullptr;
  return value == kWord ? json(spec.choices.front()) : json(value);
}
json real_json(const ParameterSpec& spec, double value) {
  if (value == kUnset) return nullptr;
  if (value == kSecondRealWord && spec.choices.size() > 1) return spec.choices[1];
  return value == kRealWord ? json(spec.choices.front()) : json(value);
}
json integers_json(const IntegerList& list) { return std::vector<int32_t>(list.values, list.values + list.count); }
IntegerList integers_of(const json& value) {
  IntegerList list;
  for (const json& number : value) list.values[list.count++] = number.get<int32_t>();
  return list;
}

json value_of(const ParameterSpec& spec, const std::byte* policy);

json scorer_json(const ParameterSpec& spec, const std::byte* policy) {
  const size_t kind = size_t(read<int32_t>(policy, spec.offset));
  json value = json::object();
  for (const ParameterSpec& inner : spec.nested.at(kind)) value[inner.name] = value_of(inner, policy);
  value["name"] = spec.choices.at(kind);
  return value;
}

json value_of(const ParameterSpec& spec, const std::byte* policy) {
  switch (spec.kind) {
    case Kind::integer:
      return integer_json(spec, read<int32_t>(policy, spec.offset));
    case Kind::real:
      return real_json(spec, read<double>(policy, spec.offset));
    case Kind::boolean:
      return read<bool>(policy, spec.offset);
    case Kind::choice: {
      const size_t which = size_t(read<int32_t>(policy, spec.offset));
      return which < spec.choices.size() ? json(spec.choices[which]) : json();
    }
    case Kind::layers:
      return layers_json(read<LayerSet>(policy, spec.offset));
    case Kind::rows:
      return rows_json(read<int32_t>(policy, spec.offset));
    case Kind::integers:
      return integers_json(read<IntegerList>(policy, spec.offset));
    case Kind::scorer:
      return scorer_json(spec, policy);
    case Kind::file:
      return nullptr;
    case Kind::calibration:
      return "self";
  }
  return nullptr;
}

size_t place_of(const std::vector<std::string>& words, const std::string& word) {
  return size_t(std::find(words.begin(), words.end(), word) - words.begin());
}

double real_word(const ParameterSpec& spec, const json& word) {
  return place_of(spec.choices, word.get<std::string>()) == 0 ? kRealWord : kSecondRealWord;
}

void assign(const ParameterSpec& spec, const json& value, std::byte* policy);

void assign_scorer(const ParameterSpec& spec, const json& value, std::byte* policy) {
  const size_t kind = place_of(spec.choices, (value.is_string() ? value : value.at("name")).get<std::string>());
  write(policy, spec.offset, int32_t(kind));
  for (const ParameterSpec& inner : spec.nested.at(kind))
    if (value.is_object() && value.contains(inner.name)) assign(inner, value.at(inner.name), policy);
}

void assign(const ParameterSpec& spec, const json& value, std::byte* policy) {
  if (value.is_null()) return;
  switch (spec.kind) {
    case Kind::integer:
      return write(policy, spec.offset, value.is_string() ? kWord : value.get<int32_t>());
    case Kind::real:
      return write(policy, spec.offset, value.is_string() ? real_word(spec, value) : value.get<double>());
    case Kind::boolean:
      return write(policy, spec.offset, value.get<bool>());
    case Kind::choice:
      return write(policy, spec.offset, int32_t(place_of(spec.choices, value.get<std::string>())));
    case Kind::layers: {
      LayerSet layers;
      for (const json& layer : value) layers.add(layer.get<int32_t>());
      return write(policy, spec.offset, layers);
    }
    case Kind::rows:
      return write(policy, spec.offset, rows_of(value.get<std::string>()));
    case Kind::integers:
      return write(policy, spec.offset, integers_of(value));
    case Kind::scorer:
      return assign_scorer(spec, value, policy);
    case Kind::file:
    case Kind::calibration:
      return;
  }
}

}  // namespace

std::string parameter_json(const ParameterSpec& spec, const std::byte* policy) {
  return canonical(value_of(spec, policy));
}

std::string given_json(const ParameterSpec& spec, const std::byte* policy, const std::byte* defaults) {
  const json value = value_of(spec, policy), usual = value_of(spec, defaults);
  if (value == usual) return "";
  if (spec.kind != Kind::scorer) return canonical(value);
  json given = {{"name", value.at("name")}};
  for (const ParameterSpec& inner : spec.nested.at(size_t(read<int32_t>(policy, spec.offset))))
    if (value_of(inner, policy) != value_of(inner, defaults)) given[inner.name] = value.at(inner.name);
  return canonical(given.size() > 1 ? given : given.at("name"));
}

void assign_parameter(const ParameterSpec& spec, const std::string& text, std::byte* policy) {
  assign(spec, json::parse(text), policy);
}

void Describer::add(Kind kind, const Declared& d, Range range, std::vector<std::string> choices) {
  ParameterSpec spec;
  spec.name = d.name, spec.kind = kind, spec.low = range.low, spec.high = range.high;
  spec.choices = std::move(choices), spec.help = d.help, spec.offset = d.offset;
  spec.default_text = d.derived;
  specs_.push_back(std::move(spec));
}

void Describer::add_scorer(const Declared& d) { add(Kind::scorer, d, {0, 0}); }

void Describer::add_choice(const char* name, std::vector<ParameterSpec> nested) {
  specs_.back().choices.emplace_back(name);
  specs_.back().nested.push_back(std::move(nested));
}

std::vector<ParameterSpec> Describer::take() {
  for (ParameterSpec& spec : specs_) {
    const json value = spec.kind == Kind::scorer ? json(spec.choices.at(size_t(read<int32_t>(policy_, spec.offset))))
                                                 : value_of(spec, policy_);
    spec.default_json = canonical(value);
    if (!value.is_null()) spec.default_text = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return std::move(specs_);
}

}  // namespace kvreplay
