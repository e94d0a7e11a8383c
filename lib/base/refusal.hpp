#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/wording.hpp"

namespace kvreplay {

// Where a mistake was found. Empty parts are not reported.
struct Places {
  std::set<int32_t> layers;
  std::vector<std::string> prompts;  // each once, in the order in which they were found
};

// A mistake as data. Mistakes with one rule and one remedy are one mistake with several methods, values and places.
// A sentence comes of it: "h2o and snapkv need every query, but t.h5 holds 50 of 200 (layers 0-29): record it again".
struct Refusal {
  std::vector<NamedMethod> methods = {};  // subject; empty: the rule is the whole sentence
  std::string verb = {};                  // what the methods do: "need"; empty: the sentence is "h2o: rule"
  // {value}: "a or b"; {values}: "a and b"; {count}, {least}: of `counts`; {methods}: the methods, which are then no
  // subject; <shares|share>: the first word for one method, the second for several.
  std::string rule = {};
  std::string remedy = {};                                 // {entry}: the methods with `option`; {least} as above
  std::vector<std::string> values = {};                    // each once
  std::optional<std::pair<int64_t, int64_t>> counts = {};  // least and most
  std::pair<std::string, std::string> option = {};         // name and word
  Places places = {};
  std::unordered_set<std::string> known_values = {};  // those of `values`, once there are several

  bool empty() const { return rule.empty(); }
  std::string identity() const;      // equal for mistakes that are one
  void add(const Refusal& another);  // another mistake with this identity
  std::string text(const Wording& words) const;
};

// A mistake in a file with a group for each head. The text names one of the groups, or is about the whole file.
Refusal refusal_of_group(const std::string& text, const std::vector<std::string>& groups);

// "0, 7, 15", "0-29".
std::string numbers_text(const std::set<int32_t>& numbers);
// "a", "a and b", "a, b and c"; many: "a, b, c and 9 more".
std::string words_text(const std::vector<std::string>& words, const char* last = "and");

}  // namespace kvreplay
