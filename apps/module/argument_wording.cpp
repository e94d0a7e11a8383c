#include "apps/module/argument_wording.hpp"

#include <fmt/core.h>

#include <map>

#include "base/text.hpp"

namespace kvreplay::python {
namespace {

constexpr const char* kArrays = "arrays";  // path of a trace that was never a file (apps/kvreplay/sources.py)

// A word as Python writes it: numbers as they are, everything else as text.
std::string literal_of(const std::string& word) {
  return parse_number<double>(word) ? word : fmt::format("\"{}\"", word);
}

class ArgumentWording final : public Wording {
 public:
  std::string key(const std::string& place) const override {
    static const std::map<std::string, std::string> arguments = {
        {"budget", "budgets"},
        {"budget.tokens", "budgets"},
        {"share_of_cache", "budgets"},
        {"fraction_kept", R"(budgets["fraction_kept"])"},
        {"budget.fraction_kept", R"(budgets["fraction_kept"])"},
        {"budget.bytes", R"(budgets["bytes"])"},
        {"budget.of", R"(budgets["of"])"},
        {"seeds.first", "seeds"},
        {"seeds.count", "seeds"}};
    const auto found = arguments.find(place);
    if (found != arguments.end()) return found->second;
    for (const char* section : {"select.", "replay.", "run.", "output."})
      if (place.starts_with(section)) return place.substr(std::string(section).size());
    return place;
  }
  std::string setting(const std::string& place, const std::string& value) const override {
    const std::string budget = "budget.";
    if (!place.starts_with(budget) || place == budget + "tokens") return key(place) + "=" + value;
    return fmt::format(R"(budgets={{"{}": {}}})", place.substr(budget.size()), value);
  }
  std::string mention(const std::string& place, const std::string& value) const override {
    return setting(place, value);
  }
  std::string option(const std::string& name, const std::string& word) const override {
    return fmt::format("\"{}\": {}", name, literal_of(word));
  }
  std::string entries(const std::vector<NamedMethod>& methods, const std::string& name,
                      const std::string& word) const override {
    if (methods.size() > kMostEntries) return option(name, word) + " in the dict of each";
    return Wording::entries(methods, name, word);
  }
  std::string literal(const std::string& value) const override { return value; }
  std::string list(const std::string& what) const override {
    return what == "metrics" ? "kvreplay.columns()" : fmt::format("kvreplay.{}()", what);
  }
  std::string description(const std::string& method) const override {
    return fmt::format("kvreplay.describe(\"{}\")", method);
  }
  std::string belongs(const std::string& section, const std::string& key) const override {
    return "it is the argument " + this->key(section + "." + key);
  }
  std::string budgets() const override { return "in the argument budgets"; }
  bool percent() const override { return true; }
  std::string share(double share) const override { return "\"" + Wording::share(share) + "\""; }
  std::string folder() const override { return "the working directory"; }
  std::string map() const override { return "a dict"; }
  std::string truths() const override { return "True or False"; }
  std::string source(const std::string& path) const override { return path == kArrays ? "the arrays" : path; }
  std::string trace(const std::string& path, const std::string& verb) const override {
    return path == kArrays ? source(path) + " " + verb : Wording::trace(path, verb);
  }
  std::string every_query(const std::string& path) const override {
    return path == kArrays ? "give q of every token" : "record it with query_stride=1";
  }
  std::string rope(const std::string& path) const override {
    return path == kArrays ? R"(give rope={"theta": 10000.0} or the like)" : "record it again with kvreplay.record";
  }
};

}  // namespace

const Wording& argument_wording() {
  static const ArgumentWording words;
  return words;
}

}  // namespace kvreplay::python
