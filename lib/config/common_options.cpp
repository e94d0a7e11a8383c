#include "config/common_options.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "catalog/cell.hpp"
#include "config/serving.hpp"
#include "config/values.hpp"

namespace kvreplay {
namespace {

template <class E>
std::vector<std::string> words_of(std::initializer_list<E> values) {
  std::vector<std::string> words;
  for (const E value : values) words.emplace_back(word(value));
  return words;
}

template <class E>
void take_word(E& axis, const std::string& wanted, std::initializer_list<E> values) {
  for (const E value : values)
    if (wanted == word(value)) axis = value;
}

// Whether the method adds up attention by a score rule. The budget is arbitrary; it must not matter.
bool adds_attention(const MethodInstance& m) {
  MethodContext context;
  context.tokens = context.prompt_tokens = 1 << 20, context.budget = {1 << 20, 1 << 20};
  context.shape = {1, 1, 1}, context.phase = Phase::stream;
  try {
    const std::optional<ScoreRule> rule = BoundMethod(m.values, context).score_rule();
    return rule && rule->vote == ScoreRule::Vote::attention;
  } catch (const ParameterError&) {
    return false;  // reported where budgets are known
  }
}

// Why the wrapper does not fit the method; "" if it fits.
std::string wrapper_problem(const MethodInstance& m, const Wording& words) {
  const CommonOptions& options = m.options;
  const std::string name = Refusal::kMethods;
  if (options.wrapper.is_none()) return "";
  if (m.method().host.voters == nullptr)
    return fmt::format(
        "wrapper needs attention scores, and {} <scores|score> by something else (ranks, norms, cosines or the scores "
        "of "
        "another method): leave it out",
        name);
  if (m.values.traits().shared_over != SharedOver::none)
    return fmt::format(
        "wrapper divides the budget of one head, and {} <shares|share> it by a rule of <its|their> own: take snapkv "
        "with "
        "an allocator",
        name);
  const bool streams = options.phase == Phase::stream;
  if (streams && options.wrapper.kind == Wrapper::Kind::critical)
    return fmt::format(
        "wrapper critical divides the budget of one cut of the prompt, and {} <streams|stream> here: add {}", name,
        words.option("phase", "oneshot"));
  if (streams && !adds_attention(m))
    return fmt::format(
        "wrapper caote follows methods that add up attention and drop the lowest, step by step, and {} <does|do> "
        "something "
        "else: add {}",
        name, words.option("phase", "oneshot"));
  if (options.gqa_level == GqaLevel::layer)
    return "wrapper looks at the values of one kv head: leave out " + words.option("gqa.level", "layer");
  return "";
}

// Why the method cannot share its budget as asked; "" if it can.
std::string invalid_share(const MethodInstance& m, const Wording& words) {
  const CommonOptions& options = m.options;
  const std::string name = Refusal::kMethods, rule = word(options.allocator);
  const bool given = options.allocator != Allocator::uniform, own = m.values.traits().shared_over != SharedOver::none;
  const bool over_layers = own ? m.values.traits().shared_over == SharedOver::head
                               : options.allocator == Allocator::pyramid || options.allocator == Allocator::windows;
  const bool over_heads = (own || given) && !over_layers;
  const Calibration& known = m.values.calibration();
  if (m.method().hooks.has(Hook::share) && known.is_offline()) {
    if (!m.values.traits().learns_heads)
      return fmt::format("{} <looks|look> at this prompt alone with these parameters: leave out calibration", name);
    if (known.source == Calibration::Source::file)
      return fmt::format("{} <is|are> calibrated on prompts: write {}, others or prompt:ID", name,
                         words.option("calibration", "self"));
  }
  if (own && !m.values.shares_budget() && (given || options.gqa_level != GqaLevel::kv))
    return fmt::format(
        "{} <compares|compare> the scores of kv heads, each with a cache and a budget of its own: "
        "leave out {}",
        name, given ? "allocator" : "gqa.level");
  if (given && own)
    return fmt::format("{} <shares its|share their> budget by a rule of <its|their> own: leave out allocator", name);
  if (given && !m.values.traits().takes_budget)
    return fmt::format("{} <takes|take> no budget that an allocator could share: leave out allocator", name);
  if (given && m.method().info.reads_full_cache)
    return fmt::format("{} <stores|store> every token, so there is no memory to share: leave out allocator", name);
  const bool by_scores = compares_heads(options.allocator) && options.allocator != Allocator::cake;
  if (by_scores && !m.method().scores_prompt)
    return fmt::format(
        "allocator {} looks at scores of prompt tokens, and {} <gives|give> none: use pyramid, windows, cake or "
        "file:PATH",
        rule, name);
  if (options.allocator == Allocator::zigzag && m.method().host.voters == nullptr)
    return fmt::format(
        "allocator zigzag counts the tokens that hold most of the attention, and {} <scores|score> by something else "
        "(ranks, norms, cosines or the scores of another method): use lu_kv, pyramid or file:PATH",
        name);
  if (options.allocator == Allocator::lu_kv && options.lu_kv.calibration.is_offline() &&
      m.values.calibration().uses_other_prompts())
    return fmt::format(
        "allocator lu_kv scores other prompts, where {} would be calibrated on the replayed one: calibrate {} by self "
        "or file:PATH",
        name, name);
  if (over_heads && options.gqa_level == GqaLevel::layer)
    return fmt::format(
        "with {} all kv heads of {} hold the same tokens, and {} each its own number: leave out one of them",
        words.option("gqa.level", "layer"), name, own ? name + " <gives|give>" : "allocator " + rule + " gives");
  if (over_heads && options.allocator != Allocator::file && options.gqa_level == GqaLevel::query)
    return fmt::format("{} kv heads, and with {} each of them has a cache per query head: leave out one of them",
                       own ? name + " <compares|compare>" : "allocator " + rule + " compares",
                       words.option("gqa.level", "query"));
  return "";
}

}  // namespace

const std::map<std::string, std::vector<std::string>>& option_words() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"phase", words_of({Phase::stream, Phase::oneshot})},
      {"positions", words_of({Positions::original, Positions::cache})},
      {"order", words_of({Order::attend_then_evict, Order::evict_then_attend})},
      {"prompt", words_of({PromptMode::cut, PromptMode::stream})},
      {"gqa.level", words_of({GqaLevel::kv, GqaLevel::query, GqaLevel::layer})},
      {"gqa.agg", words_of({Aggregate::sum, Aggregate::mean, Aggregate::max, Aggregate::first})},
      {"reweight", words_of({Reweight::none, Reweight::uniform})},
      {"allocator",
       words_of({Allocator::uniform, Allocator::pyramid, Allocator::windows, Allocator::ada, Allocator::cake,
                 Allocator::lu_kv, Allocator::duo, Allocator::headkv, Allocator::zigzag})}};
  return all;
}

void set_option(CommonOptions& options, const std::string& name, const OptionValue& value) {
  const std::string& word = value.word;
  if (is_serving_key(name)) return set_serving(options, name, value.serving);
  if (name == kRowFormat) options.row_format = value.row_format;
  if (name == kWrapper) options.wrapper = value.wrapper;
  if (name == kMerge) options.merge = value.merge;
  if (name == kThink) options.think = value.think;
  if (name == "phase") take_word(options.phase, word, {Phase::stream, Phase::oneshot});
  if (name == "positions") take_word(options.positions, word, {Positions::original, Positions::cache});
  if (name == "order") take_word(options.order, word, {Order::attend_then_evict, Order::evict_then_attend});
  if (name == "prompt") take_word(options.prompt, word, {PromptMode::cut, PromptMode::stream});
  if (name == "gqa.level") take_word(options.gqa_level, word, {GqaLevel::kv, GqaLevel::query, GqaLevel::layer});
  if (name == "gqa.agg")
    take_word(options.gqa_aggregate, word, {Aggregate::sum, Aggregate::mean, Aggregate::max, Aggregate::first});
  if (name == "reweight") take_word(options.reweight, word, {Reweight::none, Reweight::uniform});
  if (name == "allocator" && word.starts_with(kFilePrefix)) {
    options.allocator = Allocator::file;
    options.allocator_file = word.substr(std::string(kFilePrefix).size());
  } else if (name == "allocator") {
    take_word(options.allocator, word,
              {Allocator::uniform, Allocator::pyramid, Allocator::windows, Allocator::ada, Allocator::cake,
               Allocator::lu_kv, Allocator::duo, Allocator::headkv, Allocator::zigzag});
    options.window_share = value.window_share, options.lu_kv = value.lu_kv, options.headkv = value.headkv,
    options.zigzag = value.zigzag, options.looking = value.looking;
    options.allocator_file = value.heads_file;
  }
}

std::string combination_problem(const MethodInstance& m, const Wording& words) {
  const CommonOptions& options = m.options;
  const std::string name = Refusal::kMethods;
  if (options.gqa_level == GqaLevel::layer &&
      !((m.method().looks_at_queries || m.method().info.joins_heads) && m.method().info.layer_level))
    return fmt::format("{} <decides|decide> by keys and values, which a layer's kv heads do not share: leave out {}",
                       name, words.option("gqa.level", "layer"));
  if (const auto only = m.method().info.only_level; only && options.gqa_level != *only)
    return fmt::format("{} <decides|decide> for a {} together: leave out {}", name,
                       *only == GqaLevel::query ? "query head, and not for a group" : "group of query heads",
                       words.option("gqa.level", word(options.gqa_level)));
  if (options.reweight != Reweight::none && (!m.method().scores_prompt || options.phase != Phase::oneshot))
    return fmt::format("reweight weights the prompt tokens that a one-shot selection kept, and {} {}: leave it out{}",
                       name, m.method().scores_prompt ? "<streams|stream> here" : "<does|do> not select by scores",
                       m.method().scores_prompt ? ", or add " + words.option("phase", "oneshot") : "");
  if (const std::string why = wrapper_problem(m, words); !why.empty()) return why;
  if (const std::string why = merge_problem(m, words); !why.empty()) return why;
  if (const std::string why = think_problem(m, words); !why.empty()) return why;
  if (const std::string why = first_problem(m, words); !why.empty()) return why;
  if (const std::string why = serving_problem(m, words); !why.empty()) return why;
  if (codes_again(options.row_format) && (makes_rows(m) || !options.merge.is_none() || !options.think.is_none()))
    return fmt::format(
        "row_format by age counts the age of tokens, and {} <makes|make> rows of <its|their> own here: "
        "give one format",
        name);
  if (!options.row_format.is_source() && m.method().info.own_row_format)
    return fmt::format("{} <stores its|store their> rows in a format of <its|their> own: leave out row_format", name);
  return invalid_share(m, words);
}

namespace {

// The word that names the value of an axis, alone or in a map. Null after reporting what the axis takes.
const Node* name_in(Problems& problems, const Node& item, const char* axis, const char* words, const char* of_map,
                    const char* example) {
  const Node* name = name_of(item);
  if (name != nullptr && name->kind == Node::Kind::scalar) return name;
  must_be(problems, item, axis,
          fmt::format("{} {}{}: {}", words, problems.words().map(), of_map, problems.words().literal(example)));
  return nullptr;
}

const std::vector<std::string> kNames = {"none", "critical", "caote"};

Wrapper named(const std::string& name) {
  Wrapper wrapper;
  if (name == "critical") wrapper.kind = Wrapper::Kind::critical;
  if (name == "caote") wrapper.kind = Wrapper::Kind::caote;
  return wrapper;
}

void read_critical(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* alpha = section.find("alpha"))
    if (const auto given = read_real(problems, *alpha, "alpha", {0, 1})) wrapper.alpha = *given;
  if (const Node* eps = section.find("eps"))
    if (const auto given = read_real(problems, *eps, "eps", {0, 1e300})) wrapper.eps = *given;
}

void read_caote(const Section& section, Problems& problems, Wrapper& wrapper) {
  if (const Node* level = section.find("level"))
    if (const auto given = read_word(problems, *level, "level", {"query", "kv"}))
      wrapper.level = *given == "kv" ? Wrapper::Level::kv : Wrapper::Level::query;
  if (const Node* fast = section.find("fast"))
    if (const auto given = read_boolean(problems, *fast, "fast")) wrapper.fast = *given;
}

}  // namespace

std::optional<Wrapper> read_wrapper(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = name_in(problems, item, "wrapper", "none, critical or caote, or", " with a name",
                             R"({"name": "critical", "alpha": 0.5})");
  if (name == nullptr) return std::nullopt;
  const auto word = read_word(problems, *name, "wrapper", kNames);
  if (!word) return std::nullopt;
  Wrapper wrapper = named(*word);
  if (item.kind == Node::Kind::map) {
    std::vector<std::string> keys = {"name"};
    if (wrapper.kind == Wrapper::Kind::critical) keys.insert(keys.end(), {"alpha", "eps"});
    if (wrapper.kind == Wrapper::Kind::caote) keys.insert(keys.end(), {"level", "fast"});
    const Section section(&item, "wrapper", keys, problems);
    if (wrapper.kind == Wrapper::Kind::critical) read_critical(section, problems, wrapper);
    if (wrapper.kind == Wrapper::Kind::caote) read_caote(section, problems, wrapper);
  }
  return problems.errors() == before ? std::optional(wrapper) : std::nullopt;
}

namespace {

const std::vector<Merge::Rule> kRules = {Merge::Rule::none,       Merge::Rule::cam,        Merge::Rule::d2o,
                                         Merge::Rule::pivot,      Merge::Rule::weighted_v, Merge::Rule::gaussian,
                                         Merge::Rule::value_blend};

std::vector<std::string> keys_of(const Merge& merge) {
  std::vector<std::string> keys = {"name"};
  if (!merge.is_none()) keys.emplace_back("mass");
  if (merge.rule == Merge::Rule::cam) keys.insert(keys.end(), {"next", "attention"});
  if (merge.rule == Merge::Rule::d2o) keys.emplace_back("release");
  if (merge.rule == Merge::Rule::gaussian) keys.emplace_back("threshold");
  if (merge.rule == Merge::Rule::value_blend) keys.insert(keys.end(), {"threshold", "fraction"});
  return keys;
}

void read_parameters(const Section& section, Problems& problems, Merge& merge) {
  if (const Node* mass = section.find("mass"))
    if (const auto word = read_word(problems, *mass, "mass", {"none", "keep"}))
      merge.mass = *word == "keep" ? Merge::Mass::keep : Merge::Mass::none;
  if (const Node* next = section.find("next"))
    if (const auto tokens = read_integer(problems, *next, "next", {1, kManyTokens})) merge.next = int32_t(*tokens);
  if (const Node* attention = section.find("attention"))
    if (const auto word = read_word(problems, *attention, "attention", {"accumulated", "step"}))
      merge.attention = *word == "step" ? Merge::Attention::step : Merge::Attention::accumulated;
  if (const Node* release = section.find("release"))
    if (const auto yes = read_boolean(problems, *release, "release")) merge.release = *yes;
  if (const Node* threshold = section.find("threshold"))
    if (const auto cosine = read_real(problems, *threshold, "threshold", {-1, 1})) merge.threshold = *cosine;
  if (const Node* fraction = section.find("fraction"))
    if (const auto share = read_real(problems, *fraction, "fraction", {0, 1})) merge.fraction = *share;
}

// The method's layout for a long prompt; that of plain tokens if its parameters are wrong, which is reported where
// budgets are known.
Layout layout_of(const MethodInstance& m) {
  MethodContext context;
  context.tokens = 1 << 14, context.prompt_tokens = 1 << 13, context.budget = {1 << 12, 1 << 12};
  context.shape = {1024, 1024, 1}, context.phase = m.options.phase;
  try {
    return BoundMethod(m.values, context).layout();
  } catch (const ParameterError&) {
    return {};
  }
}

// Whether a cut of a long prompt stores only tokens as recorded, each once and with equal weight.
bool holds_plain_tokens(const MethodInstance& m) {
  const Layout layout = layout_of(m);
  return layout.own_rows == 0 && layout.extra_rows == 0 && !layout.split && !layout.weights;
}

}  // namespace

bool makes_rows(const MethodInstance& m) {
  const Layout layout = layout_of(m);
  return layout.own_rows > 0 || layout.extra_rows > 0 || layout.split;
}
bool writes_rows(const MethodInstance& m) {
  return !m.options.merge.is_none() || !m.options.think.is_none() || layout_of(m).own_rows > 0;
}

std::optional<Merge> read_merge(Problems& problems, const Node& item) {
  const size_t before = problems.errors();
  const Node* name = name_in(problems, item, "merge", "none, cam, d2o, pivot, weighted_v, gaussian or value_blend, or",
                             "", R"({"name": "cam", "next": 32})");
  if (name == nullptr) return std::nullopt;
  std::vector<std::string> words;
  for (const Merge::Rule rule : kRules) words.emplace_back(word(rule));
  const auto given = read_word(problems, *name, "merge", words);
  if (!given) return std::nullopt;
  Merge merge;
  merge.rule = kRules[size_t(std::find(words.begin(), words.end(), *given) - words.begin())];
  if (merge.rule == Merge::Rule::value_blend) merge.threshold = 0;
  if (item.kind == Node::Kind::map) read_parameters(Section(&item, "merge", keys_of(merge), problems), problems, merge);
  return problems.errors() == before ? std::optional(merge) : std::nullopt;
}

std::string merge_problem(const MethodInstance& m, const Wording& words) {
  const Merge& merge = m.options.merge;
  const std::string name = Refusal::kMethods;
  if (merge.is_none()) return "";
  if (!m.method().hooks.has(Hook::evict) || m.values.traits().holds_all || m.values.traits().chooses)
    return fmt::format("merge uses the tokens that a method evicts, and {} <keeps|keep> every token: leave it out",
                       name);
  if (m.method().info.own_row_format || !holds_plain_tokens(m))
    return fmt::format(
        "merge adds evicted tokens to kept ones, and {} <makes|make> rows or weights of <its|their> own: leave it out",
        name);
  if (m.options.gqa_level == GqaLevel::layer)
    return "merge looks at keys and values of one kv head: leave out " + words.option("gqa.level", "layer");
  if (m.method().hooks.has(Hook::cut_together) && m.values.traits().shared_over != SharedOver::none)
    return fmt::format("heads of {} cut together by keys as they were recorded, and merge changes them: leave it out",
                       name);
  if (merge.rule == Merge::Rule::gaussian && m.options.phase == Phase::stream)
    return fmt::format(
        "merge gaussian makes rows of one cut of the prompt, and {} <streams|stream> here: add {}, or take pivot", name,
        words.option("phase", "oneshot"));
  if (merge.changes_keys() && m.options.positions == Positions::cache)
    return fmt::format(
        "merge {} makes keys that combine several positions and cannot be moved to another one: add {}, or take cam, "
        "weighted_v or value_blend, which leave keys alone",
        word(merge.rule), words.option("positions", "original"));
  if (m.options.reweight != Reweight::none)
    return "merge and reweight both make kept tokens stand for the others: leave out one of them";
  return "";
}

}  // namespace kvreplay
