#include "apps/option_wording.hpp"

#include <fmt/core.h>

#include <map>

#include "apps/command_line.hpp"
#include "base/text.hpp"

namespace kvreplay::app {
namespace {

// "[64, 128]" -> "64,128".
std::string plain_list(const std::string& value) {
  std::string list = without_quotes(value);
  std::erase_if(list, [](char c) { return c == '[' || c == ']' || c == ' '; });
  return list;
}

constexpr const char* kShares = "budget.share_of_cache";

// "[0.1, 0.2]" -> "10%,20%".
std::string percent_list(const std::string& value) {
  std::vector<std::string> shares;
  for (const std::string& share : split_list(plain_list(value)))
    shares.push_back(number_text(100 * parse_number<double>(share).value_or(0)) + "%");
  return join(shares, ",");
}

// Empty if no option sets the key.
std::string option_for(const std::string& place) {
  static const std::map<std::string, std::string> options = {
      {"methods", "--method"},           {"budget", "--budget"},          {"budget.tokens", "--budget"},
      {"share_of_cache", "--budget"},    {kShares, "--budget"},           {"budget.of", "--of"},
      {"replay.prefill", "--prefill"},   {"replay.tokens", "--tokens"},   {"select.layers", "--layers"},
      {"select.kv_heads", "--kv-heads"}, {"select.prompts", "--prompts"}, {"seeds.first", "--seeds"},
      {"seeds.count", "--seeds"},        {"run.jobs", "--jobs"},          {"run.device", "--device"},
      {"run.precision", "--precision"},  {"output.dir", "--out"},         {"output.save", "--save"}};
  const auto found = options.find(place);
  return found == options.end() ? "" : found->second;
}

class OptionWording final : public Wording {
 public:
  std::string key(const std::string& place) const override {
    const std::string option = option_for(place);
    return option.empty() ? place : option;
  }
  std::string setting(const std::string& place, const std::string& value) const override {
    const std::string option = option_for(place);
    const bool plain = value.find('{') == std::string::npos;
    if (!option.empty() && plain) return option + " " + (place == kShares ? percent_list(value) : plain_list(value));
    return "--set " + shell_quoted(place + "=" + without_quotes(value));
  }
  std::string mention(const std::string& place, const std::string& value) const override {
    return option_for(place).empty() ? Wording::mention(place, value) : setting(place, value);
  }
  std::string entries(const std::vector<NamedMethod>& methods, const std::string& name,
                      const std::string& word) const override {
    if (methods.size() > kMostEntries) return fmt::format("--set methods.N.{}={} for each (N from 0)", name, word);
    std::vector<std::string> all;
    for (const NamedMethod& m : methods) all.push_back(fmt::format("--set methods.{}.{}={}", m.entry, name, word));
    return join(all, " ");
  }
  std::string belongs(const std::string& section, const std::string& key) const override {
    const std::string option = option_for(section + "." + key);
    return option.empty() ? Wording::belongs(section, key) : "it is the option " + option;
  }
  std::string budgets() const override { return "with --budget"; }
  bool percent() const override { return true; }
  std::string folder() const override { return "the working directory"; }
};

}  // namespace

const Wording& option_wording() {
  static const OptionWording words;
  return words;
}

}  // namespace kvreplay::app
