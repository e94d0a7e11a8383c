#include "base/refusal.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.hpp"

namespace kvreplay {

std::string third_person(const std::string& verb) { return verb == "have" ? "has" : verb + "s"; }

std::string without_quotes(std::string json) {
  std::erase(json, '"');
  return json;
}

std::string Wording::key(const std::string& place) const { return place; }

std::string Wording::setting(const std::string& place, const std::string& value) const {
  const size_t point = place.find('.');
  if (point == std::string::npos) return mention(place, value);
  return fmt::format("{}: {{{}}}", place.substr(0, point), mention(place.substr(point + 1), value));
}

std::string Wording::mention(const std::string& place, const std::string& value) const {
  return fmt::format("{}: {}", place, literal(value));
}

std::string Wording::option(const std::string& name, const std::string& word) const { return name + ": " + word; }

std::string Wording::entries(const std::vector<NamedMethod>& methods, const std::string& name,
                             const std::string& word) const {
  if (methods.size() > kMostEntries) return option(name, word) + " in the entry of each";
  std::vector<std::string> all;
  for (const NamedMethod& m : methods)
    all.push_back(fmt::format("{{{}, {}}}", option("name", m.name), option(name, word)));
  return join(all, " and ");
}

std::string Wording::literal(const std::string& json) const { return without_quotes(json); }
std::string Wording::list(const std::string& what) const { return "kvreplay list " + what; }
std::string Wording::description(const std::string& method) const { return "kvreplay describe " + method; }
std::string Wording::belongs(const std::string& section, const std::string&) const {
  return "it belongs under " + section;
}
std::string Wording::budgets() const { return "under budget at the top level"; }
bool Wording::percent() const { return false; }
std::string Wording::share(double share) const {
  return percent() ? number_text(share * 100) + "%" : number_text(share);
}
std::string Wording::folder() const { return "this file"; }
std::string Wording::map() const { return "a map"; }
std::string Wording::truths() const { return "true or false"; }
std::string Wording::source(const std::string& path) const { return path; }
std::string Wording::trace(const std::string& path, const std::string& verb) const {
  return path + " " + third_person(verb);
}
std::string Wording::every_query(const std::string&) const {
  return "record them with `kvreplay record --query-stride 1`";
}
std::string Wording::rope(const std::string&) const { return "record it again with `kvreplay record`"; }

const Wording& file_wording() {
  static const Wording words;
  return words;
}

namespace {

constexpr size_t kMostWords = 12, kFewWords = 4;  // longest list in a message; words shown of a longer one
constexpr int32_t kShortestRange = 3;

template <class T>
void add_new(std::vector<T>& to, const std::vector<T>& items) {
  for (const T& item : items)
    if (std::find(to.begin(), to.end(), item) == to.end()) to.push_back(item);
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// "<shares|share>" -> "shares" or "share".
void choose_number(std::string& text, bool several) {
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    const size_t bar = text.find('|', at), end = text.find('>', at);
    if (bar > end || end == std::string::npos) return;
    const std::string word = several ? text.substr(bar + 1, end - bar - 1) : text.substr(at + 1, bar - at - 1);
    text.replace(at, end - at + 1, word);
  }
}

std::vector<std::string> subjects_of(const std::vector<NamedMethod>& methods) {
  std::vector<std::string> names;
  for (const NamedMethod& m : methods) add_new(names, {m.name});
  return names;
}

std::string places_text(const Places& places) {
  std::vector<std::string> parts;
  if (!places.layers.empty())
    parts.push_back((places.layers.size() > 1 ? "layers " : "layer ") + numbers_text(places.layers));
  if (!places.prompts.empty())
    parts.push_back((places.prompts.size() > 1 ? "prompts " : "prompt ") + words_text(places.prompts));
  return parts.empty() ? "" : " (" + join(parts, "; ") + ")";
}

// Position of a group's path in a text; npos if it is not there. /p0/000/1 is no part of /p0/000/12.
size_t place_of_group(const std::string& text, const std::string& group) {
  const size_t at = text.find(group);
  const size_t end = at + group.size();
  const bool goes_on = at != std::string::npos && end < text.size() && text[end] >= '0' && text[end] <= '9';
  return goes_on ? std::string::npos : at;
}

}  // namespace

Refusal refusal_of_group(const std::string& text, const std::vector<std::string>& groups) {
  Refusal refusal{.rule = text};
  for (const std::string& group : groups) {
    const size_t at = place_of_group(text, group);
    if (at == std::string::npos) continue;
    refusal.rule.replace(at, group.size(), "{values}");
    refusal.values = {group};
    break;
  }
  return refusal;
}

std::string numbers_text(const std::set<int32_t>& numbers) {
  std::vector<std::string> parts;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int32_t first = *at;
    int32_t last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    if (last - first + 1 >= kShortestRange) parts.push_back(fmt::format("{}-{}", first, last));
    else
      for (int32_t n = first; n <= last; ++n) parts.push_back(std::to_string(n));
  }
  return join(parts);
}

std::string words_text(const std::vector<std::string>& words, const char* last) {
  if (words.empty()) return "";
  const bool whole = words.size() <= kMostWords;
  const size_t shown = whole ? words.size() - 1 : kFewWords;
  const std::string end = whole ? words.back() : fmt::format("{} more", words.size() - shown);
  const std::string start = join({words.begin(), words.begin() + int64_t(shown)});
  return start.empty() ? end : fmt::format("{} {} {}", start, last, end);
}

std::string Refusal::identity() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", methods.empty(), verb, rule, remedy, option.first, option.second);
}

void Refusal::add(const Refusal& another) {
  add_new(methods, another.methods);
  if (known_values.empty()) known_values.insert(values.begin(), values.end());
  for (const std::string& value : another.values)
    if (known_values.insert(value).second) values.push_back(value);
  places.layers.insert(another.places.layers.begin(), another.places.layers.end());
  add_new(places.prompts, another.places.prompts);
  if (counts && another.counts)
    counts = {std::min(counts->first, another.counts->first), std::max(counts->second, another.counts->second)};
}

std::string Refusal::text(const Wording& words) const {
  const std::vector<std::string> names = subjects_of(methods);
  std::string sentence = rule;
  const bool inside = rule.find(kMethods) != std::string::npos;
  if (inside) choose_number(sentence, names.size() > 1), replace_all(sentence, kMethods, words_text(names));
  else if (!names.empty() && verb.empty()) sentence = words_text(names) + ": " + rule;
  else if (!names.empty())
    sentence = fmt::format("{} {} {}", words_text(names), names.size() > 1 ? verb : third_person(verb), rule);
  sentence += places_text(places);
  if (!remedy.empty()) sentence += ": " + remedy;
  if (!option.first.empty()) replace_all(sentence, "{entry}", words.entries(methods, option.first, option.second));
  if (!values.empty()) replace_all(sentence, "{value}", words_text(values, "or"));
  if (!values.empty()) replace_all(sentence, "{values}", words_text(values));
  if (!counts) return sentence;
  const auto [least, most] = *counts;
  replace_all(sentence, "{least}", std::to_string(least));
  replace_all(sentence, "{count}", least == most ? std::to_string(least) : fmt::format("{} to {}", least, most));
  return sentence;
}

}  // namespace kvreplay
