#include "config/serving.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "config/common_options.hpp"
#include "config/values.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kMostPage = 128;

// One option: how its value is read into `to`, and how it is copied.
struct ServingKey {
  const char* name;
  std::function<bool(Problems&, const Node&, Serving& to)> read;
  std::function<void(Serving& to, Serving from)> copy;
};

// member(serving): the option. read(problems, node, name): its value, or nothing after reporting it.
template <class Member, class Read>
ServingKey option(const char* name, Member member, Read read) {
  return {name,
          [=](Problems& problems, const Node& item, Serving& to) {
            const auto given = read(problems, item, name);
            if (given) member(to) = *given;
            return given.has_value();
          },
          [=](Serving& to, Serving from) { member(to) = member(from); }};
}

auto tokens_from(double low, double high = kManyTokens) {
  return [=](Problems& problems, const Node& item, const char* name) -> std::optional<int32_t> {
    const auto given = read_integer(problems, item, name, {low, high});
    return given ? std::optional(int32_t(*given)) : std::nullopt;
  };
}
template <class E>
auto one_of(std::initializer_list<E> values) {
  return [all = std::vector(values)](Problems& problems, const Node& item, const char* name) -> std::optional<E> {
    std::vector<std::string> words;
    for (const E value : all) words.emplace_back(word(value));
    const auto given = read_word(problems, item, name, words);
    if (!given) return std::nullopt;
    return all[size_t(std::find(words.begin(), words.end(), *given) - words.begin())];
  };
}

const std::vector<ServingKey>& keys() {
  using Evict = Pages::Evict;
  using Score = Pages::Score;
  using Heads = Pages::Heads;
  static const std::vector<ServingKey> all = {
      option(
          "cut_every", [](Serving & s) -> auto& { return s.cut_every; }, tokens_from(1)),
      option(
          "recut", [](Serving & s) -> auto& { return s.recut; },
          [](Problems& problems, const Node& item, const char* name) -> std::optional<bool> {
            const auto given = read_word(problems, item, name, {"never", "turns"});
            return given ? std::optional(*given == "turns") : std::nullopt;
          }),
      option(
          "cut_in_budget", [](Serving & s) -> auto& { return s.cut_in_budget; }, read_boolean),
      option(
          "keep_prompt", [](Serving & s) -> auto& { return s.keep_prompt; }, read_boolean),
      option(
          "prefill_chunk", [](Serving & s) -> auto& { return s.prefill_chunk; }, tokens_from(0)),
      option(
          "page", [](Serving & s) -> auto& { return s.pages.size; }, tokens_from(0, kMostPage)),
      option(
          "evict", [](Serving & s) -> auto& { return s.pages.evict; }, one_of({Evict::token, Evict::page})),
      option(
          "page_score", [](Serving & s) -> auto& { return s.pages.score; },
          one_of({Score::mean, Score::sum, Score::max})),
      option(
          "page_heads", [](Serving & s) -> auto& { return s.pages.heads; }, one_of({Heads::own, Heads::tied})),
      option(
          "compact", [](Serving & s) -> auto& { return s.pages.compact; }, read_boolean),
      option(
          "page_in_budget", [](Serving & s) -> auto& { return s.pages.in_budget; }, read_boolean),
  };
  return all;
}

const ServingKey& key_of(const std::string& name) {
  return *std::find_if(keys().begin(), keys().end(), [&](const ServingKey& key) { return name == key.name; });
}

// The first option in which two differ.
std::string first_difference(const Serving& a, const Serving& b) {
  for (const ServingKey& key : keys()) {
    Serving changed = b;
    key.copy(changed, a);
    if (!(changed == b)) return key.name;
  }
  return "";
}

// Why the method has no cut that the options could change; "" if it has one.
std::string why_no_cut(const MethodInstance& m) {
  const std::string name = Refusal::kMethods;
  if (m.method().info.selects) return "";
  if (m.method().info.reads_full_cache || m.values.traits().holds_all) return name + " <evicts|evict> nothing";
  if (m.values.traits().shared_over != SharedOver::none)
    return name + " <shares a budget|share budgets> over heads, which is divided once";
  if (!m.method().lists_in.empty()) return name + " <follows|follow> lists that were made elsewhere";
  if (writes_rows(m)) return name + " <stores|store> rows that are no tokens of the text";
  return name + " <cuts|cut> by a rule of <its|their> own, not by one score for each token";
}

// Options that change when and what a method cuts. The others only count pages.
std::string cutting_option(const Serving& s) {
  if (s.cut_every > 0) return "cut_every";
  if (s.recut) return "recut";
  if (s.keep_prompt) return "keep_prompt";
  if (s.prefill_chunk > 0) return "prefill_chunk";
  return s.pages.whole() ? "evict: page" : "";
}

// An option that has no meaning beside the others, and why.
std::string lonely_option(const Serving& s) {
  const Pages none;
  if (s.cut_in_budget && s.cut_every == 0) return "cut_in_budget belongs to cut_every: add it, or leave both out";
  if (!s.pages.any() && !(s.pages == none))
    return "evict, page_score, page_heads, compact and page_in_budget belong to pages: add page";
  if (!s.pages.whole() && (s.pages.score != none.score || s.pages.in_budget))
    return "page_score and page_in_budget belong to evict: page: add it, or leave them out";
  if (s.pages.compact && (s.pages.whole() || s.pages.tied()))
    return "compact moves single tokens of one head's table: leave out evict: page and page_heads: tied, or compact";
  if (s.recut && s.cut_every > 0) return "recut cuts behind inputs alone: leave out cut_every, or recut";
  if (s.keep_prompt && s.prefill_chunk > 0)
    return "keep_prompt keeps the prompt that prefill_chunk cuts: leave out one of them";
  return "";
}

std::string combined_problem(const MethodInstance& m, const std::string& option, const Wording& words) {
  const CommonOptions& o = m.options;
  const Serving& s = o.serving;
  if (o.order == Order::evict_then_attend)
    return option + " cuts after attention: leave out " + words.option("order", "evict_then_attend");
  if (o.gqa_level == GqaLevel::query)
    return option + " belongs to caches that an engine stores, one for each kv head: leave out " +
           words.option("gqa.level", "query");
  if (option == "page") return "";
  if (o.allocator != Allocator::uniform)
    return option + " changes a budget that the allocator divides once: leave out one of them";
  if (!o.wrapper.is_none()) return option + " cuts more than once, and wrapper changes one cut: leave out one of them";
  if (o.reweight != Reweight::none && (s.prefill_chunk > 0 || s.pages.whole()))
    return option + " leaves other tokens than one cut does, which reweight would weigh: leave out one of them";
  if (s.cuts_again() && o.phase == Phase::oneshot)
    return option + " cuts again and again: leave out " + words.option("phase", "oneshot");
  if (s.keep_prompt && o.phase == Phase::oneshot)
    return "keep_prompt leaves a one-shot method nothing to cut: " +
           std::string(m.method().info.streams ? "add " + words.option("phase", "stream") : "add cut_every");
  if ((s.keep_prompt || s.prefill_chunk > 0) && o.prompt == PromptMode::stream)
    return option + " says how the prompt arrives: leave out " + words.option("prompt", "stream");
  if (s.prefill_chunk > 0 && m.method().info.needs_whole_prompt)
    return std::string(Refusal::kMethods) + " <scores|score> the prompt as a whole: leave out prefill_chunk";
  return "";
}

}  // namespace

const std::vector<std::string>& serving_keys() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ServingKey& key : keys()) all.emplace_back(key.name);
    return all;
  }();
  return names;
}

bool is_serving_key(const std::string& key) {
  return std::find(serving_keys().begin(), serving_keys().end(), key) != serving_keys().end();
}

void set_phase(MethodInstance& m, bool has_phase, bool later) {
  if (later || (m.options.serving.cuts_again() && !has_phase)) m.options.phase = Phase::stream;
  if (!later && m.later != nullptr) m.options.phase = Phase::oneshot;
}

std::optional<Serving> read_serving(Problems& problems, const Node& item, const std::string& key) {
  Serving value;
  return key_of(key).read(problems, item, value) ? std::optional(value) : std::nullopt;
}

void set_serving(CommonOptions& options, const std::string& key, const Serving& value) {
  key_of(key).copy(options.serving, value);
}

std::string serving_problem(const MethodInstance& m, const Wording& words) {
  const Serving& s = m.options.serving;
  const Serving own = m.values.default_options().serving;
  if (s == Serving{} || s == own) return "";
  if (own.pages.any())
    return fmt::format("{} <evicts|evict> pages by <its|their> own rule: leave out {}", std::string(Refusal::kMethods),
                       first_difference(s, own));
  if (const std::string why = lonely_option(s); !why.empty()) return why;
  const std::string cutting = cutting_option(s), option = cutting.empty() ? "page" : cutting;
  const std::string why = why_no_cut(m);
  const bool holds_tokens = !m.method().info.reads_full_cache && m.method().lists_in.empty() && !writes_rows(m);
  if (!why.empty() && (!cutting.empty() || !holds_tokens)) return fmt::format("{}: leave out {}", why, option);
  return combined_problem(m, option, words);
}

std::string later_problem(const MethodInstance& m, const Wording& words) {
  const std::string name = Refusal::kMethods;
  if (m.later != nullptr) return "then takes one method: leave out the then inside it";
  if (const std::string why = why_no_cut(m); !why.empty()) return why + ": then takes a method that selects by scores";
  const CommonOptions& o = m.options;
  const CommonOptions usual = m.values.default_options();
  CommonOptions same = o;
  same.phase = usual.phase, same.serving.cut_every = 0, same.serving.cut_in_budget = false;
  if (options_json(same) != options_json(usual) || o.serving.pages.any() || o.serving.keep_prompt)
    return "then takes the parameters of {methods}, cut_every and budget; write other options beside the first method";
  if (usual.gqa_level != GqaLevel::kv)
    return name + " <holds|hold> other tokens in each kv head than the method before it: leave out then";
  return serving_problem(m, words);
}

std::string first_problem(const MethodInstance& m, const Wording& words) {
  if (m.later == nullptr) return "";
  const std::string name = Refusal::kMethods;
  const CommonOptions& o = m.options;
  const bool plain = !m.method().info.reads_full_cache && !writes_rows(m) && m.method().lists_in.empty();
  const bool keeps_all = plain && !m.method().hooks.has(Hook::evict) && !m.method().hooks.has(Hook::append);
  if (!m.method().info.oneshots && !keeps_all)
    return name + " <decides|decide> at every step and cannot cut a prompt once: leave out then";
  if (!m.values.traits().takes_budget && m.later->budget.none() && !m.later->budget.growth.any())
    return name + " <takes|take> no budget, so the method after it needs one: write budget inside then";
  if (!plain) return name + " <leaves|leave> no plain tokens behind the prompt for another method: leave out then";
  if (o.prompt == PromptMode::stream) return "then begins when the whole prompt is cut: leave out prompt: stream";
  const CommonOptions usual = m.values.default_options();
  if (o.positions == Positions::cache)
    return "then hands over tokens at their recorded positions: " +
           std::string(usual.positions == o.positions ? "add " + words.option("positions", "original")
                                                      : "leave out positions");
  if (usual.gqa_level != GqaLevel::kv)
    return name + " <decides|decide> for all kv heads of a layer, and the method after it for one: leave out then";
  if (o.gqa_level != GqaLevel::kv || o.order == Order::evict_then_attend)
    return "then hands over the tokens of one kv head after attention: leave out gqa.level and order";
  if (!o.merge.is_none() || !o.wrapper.is_none() || o.reweight != Reweight::none)
    return "then hands over plain tokens: leave out merge, wrapper and reweight";
  if (o.serving.cuts_again() || o.serving.keep_prompt)
    return "cut_every, recut and keep_prompt belong to the method that decides after the prompt: write them inside "
           "then";
  return o.serving.pages.whole() && o.serving.pages.tied()
             ? "evict: page with page_heads: tied needs one method: leave out then"
             : "";
}

std::string turns_problem(const MethodInstance& m, bool has_turns, bool has_branches, const Wording& words) {
  const CommonOptions& o = m.options;
  const std::string name = Refusal::kMethods;
  if (!has_turns)
    return o.serving.recut
               ? "recut cuts behind each input, and the replay has one: add " + words.mention("replay.turns", "true") +
                     " or " + words.mention("replay.branches", R"("all")") + ", or leave it out"
               : "";
  if (has_branches && m.values.sees_later_rows())
    return name + " <cuts|cut> the prompt by rows behind it, and each branch has others: leave it out";
  if (has_branches && o.allocator == Allocator::lu_kv && !o.lu_kv.calibration.is_offline())
    return "allocator lu_kv compares heads by rows behind the prompt, and each branch has others: give it a "
           "calibration "
           "by other prompts";
  const std::string arrives = ", and an input of several tokens arrives at once";
  if (!m.method().lists_in.empty())
    return name + " <follows|follow> lists that were made step by step" + arrives + ": leave it out";
  const auto& hooks = m.method().hooks;
  const bool decides = hooks.has(Hook::evict) || hooks.has(Hook::append);
  const bool evicts = decides && !m.method().info.reads_full_cache;
  if (o.phase == Phase::oneshot || !evicts || m.values.traits().holds_all) return "";
  const std::string remedy = m.method().info.oneshots ? ": add " + words.option("phase", "oneshot") : ": leave it out";
  if (const std::string why = why_no_cut(m); !why.empty()) return why + arrives + remedy;
  if (o.order == Order::evict_then_attend)
    return words.option("order", "evict_then_attend") + " evicts before attention" + arrives + ": leave it out";
  return o.allocator == Allocator::uniform ? "" : "an allocator divides a budget once" + arrives + remedy;
}

std::string growth_problem(const MethodInstance& m) {
  const std::string why = why_no_cut(m);
  if (!why.empty()) return why + ", so a budget cannot grow with the text";
  if (m.options.allocator != Allocator::uniform)
    return "an allocator divides a budget once, so it cannot grow with the text: leave out allocator";
  return m.options.wrapper.is_none() ? "" : "wrapper changes one cut, and a budget that grows has many: leave it out";
}

}  // namespace kvreplay
