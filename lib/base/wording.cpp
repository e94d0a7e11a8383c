#include "base/wording.hpp"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace kvreplay
