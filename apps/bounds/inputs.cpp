#include "apps/bounds/inputs.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/bounds/measured.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"

namespace kvreplay::app {
namespace {

constexpr size_t kMostCases = 100000;
constexpr const char* kVariants[] = {"reference", "paper"};

// An option, its range and its default, on one line.
struct Input {
  const char* name;
  double low, high;
  bool whole;
  const char* usual;  // default: a number, or the input that it follows from
  const char* help;
  bool measured = false;  // a trace can supply it
};
constexpr double kCount = 1 << 30, kHuge = 1e100, kTiny = 1e-100, kMost = 1e150;
constexpr Input kInputs[] = {
    {"n", 2, kMost, true, "4096", "tokens", true},
    {"d", 1, kCount, true, "64", "numbers of a key", true},
    {"v_dim", 1, kCount, true, "d", "numbers of a value", true},
    {"r", 0, kHuge, false, "1", "largest norm; subgen: of scale*q, balancekv: of k and q, walk: of the vectors", true},
    {"delta", 0, kHuge, false, "1", "subgen: radius of a cluster"},
    {"epsilon", kTiny, 1, false, "0.1", "error that the theorem must guarantee"},
    {"clusters", 1, kMost, true, "16", "subgen: m, clusters of the keys", true},
    {"failure", 1e-300, 1, false, "1/n^2", "probability that the theorem may fail"},
    {"query_norm", 0, kHuge, false, "r", "balancekv: largest norm of a query", true},
    {"key_norm", 0, kHuge, false, "r", "balancekv: largest norm of a key", true},
    {"value_norm", 0, kHuge, false, "1", "balancekv: largest norm of a value", true},
    {"variant", 0, 1, true, "reference,paper", "buzz: triggers a pass above the threshold, or at it"},
    {"sinks", 0, kCount, true, "4", "buzz: k, first tokens that always stay"},
    {"window", 1, kCount, true, "160", "buzz: w, recent tokens"},
    {"stride", 1, 1 << 15, true, "5", "buzz: s, length of a segment"},
    {"threshold", 1, kCount, true, "400", "buzz: T, size of the middle that triggers a pass"},
    {"prompt_tokens", 1, kCount, true, "900", "buzz: P, tokens of the prompt", true},
    {"budget", 1, kCount, true, "256", "h2o, streaming_llm: tokens that stay"},
    {"n_layers", 1, kCount, true, "1", "layers of the model, for bytes", true},
    {"n_kv_heads", 1, kCount, true, "1", "kv heads of a layer, for bytes", true},
    {"bytes", 1, 16, true, "2", "bytes of a stored number; with --trace: as recorded, float16 and bfloat16 2"},
    {"g", 0, 60, true, "0", "kernel_halving: oversampling"},
};
struct Constant {
  const char* name;
  const char* help;
};
constexpr Constant kConstants[] = {{"c_t", "subgen's t"},
                                   {"c_s", "subgen's s"},
                                   {"c_batch", "balancekv's t"},
                                   {"c_discrepancy", "SoftmaxBalance"},
                                   {"c_walk", "the walk's discrepancy"},
                                   {"c_halving", "kernel halving's error"}};

std::string option_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}
const Input* input_named(const std::string& name) {
  const auto at = std::find_if(std::begin(kInputs), std::end(kInputs), [&](auto& x) { return name == x.name; });
  return at == std::end(kInputs) ? nullptr : at;
}
template <class Items>
std::vector<std::string> names_of(const Items& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.emplace_back(item.name);
  return names;
}

double variant_of(const std::string& text) {
  const auto at = std::find(std::begin(kVariants), std::end(kVariants), text);
  if (at == std::end(kVariants))
    throw ConfigError(fmt::format("--variant {}: must be reference, paper or both with a comma{}", text,
                                  did_you_mean(text, {std::begin(kVariants), std::end(kVariants)})));
  return double(at - std::begin(kVariants));
}

double value_of(const Input& input, const std::string& text) {
  if (std::string_view(input.name) == "variant") return variant_of(text);
  const auto x = parse_number<double>(text);
  const bool whole = x && (!input.whole || *x == std::floor(*x));
  if (x && whole && *x >= input.low && *x <= input.high) return *x;
  throw ConfigError(fmt::format("{} {}: must be {} from {} to {}, or several with commas ({})", option_of(input.name),
                                text, input.whole ? "a whole number" : "a number", number_text(input.low),
                                number_text(input.high), input.help));
}

std::vector<double> values_of(const Input& input, const std::string& list) {
  std::vector<double> values;
  for (const std::string& text : split_list(list)) values.push_back(value_of(input, text));
  return values;
}

// Values of a default, which may follow from inputs before it.
std::vector<double> usual_values(const Input& input, const BoundInputs& before) {
  const std::string usual = input.usual;
  if (const auto same = before.find(usual); same != before.end()) return {same->second};
  if (usual == "1/n^2") return {1 / before.at("n") / before.at("n")};
  return values_of(input, usual);
}

BoundInputs constants_of(const BoundChoices& choices) {
  BoundInputs constants;
  const std::vector<std::string> known = names_of(kConstants);
  for (const std::string& name : known) constants[name] = 1;
  for (const std::string& text : choices.constants) {
    const size_t at = text.find('=');
    const std::string name = text.substr(0, at);
    if (!constants.contains(name))
      throw ConfigError(fmt::format("--constant {}: there is no constant {}{}. There are {}", text, name,
                                    did_you_mean(name, known), join(known)));
    const auto x = at == std::string::npos ? std::nullopt : parse_number<double>(text.substr(at + 1));
    if (!x || !(*x >= kTiny && *x <= kHuge))
      throw ConfigError(fmt::format("--constant {}: give NAME=VALUE with a value from {} to {}, such as {}=2", text,
                                    number_text(kTiny), number_text(kHuge), name));
    constants[name] = *x;
  }
  return constants;
}

// Every combination of a paper's inputs that are not known yet; the last input varies fastest.
std::vector<BoundInputs> combinations(const BoundPaper& paper, const BoundChoices& choices,
                                      const BoundInputs& constants, const BoundInputs& known) {
  std::vector<BoundInputs> all = {known};
  for (const std::string& name : paper.inputs) {
    std::vector<BoundInputs> longer;
    for (const BoundInputs& before : all) {
      std::vector<double> values;
      if (const auto given = choices.lists.find(name); before.contains(name)) values = {before.at(name)};
      else if (constants.contains(name)) values = {constants.at(name)};
      else if (given != choices.lists.end()) values = values_of(*input_named(name), given->second);
      else values = usual_values(*input_named(name), before);
      for (const double value : values) longer.emplace_back(before)[name] = value;
    }
    if (longer.size() > kMostCases)
      throw ConfigError(fmt::format("{}: the lists make more than {} combinations for {}; give fewer values",
                                    option_of(name), kMostCases, paper.name));
    all = std::move(longer);
  }
  return all;
}

bool uses(const std::vector<const BoundPaper*>& papers, const std::string& input) {
  return std::any_of(papers.begin(), papers.end(), [&](const BoundPaper* p) {
    return std::find(p->inputs.begin(), p->inputs.end(), input) != p->inputs.end();
  });
}

std::string papers_with(const std::string& input) {
  std::vector<std::string> names;
  for (const BoundPaper& p : bound_papers())
    if (uses({&p}, input)) names.emplace_back(p.name);
  return join(names);
}

void check_used(const std::string& option, const std::string& input, const std::vector<const BoundPaper*>& papers) {
  if (uses(papers, input)) return;
  throw ConfigError(
      fmt::format("{}: no paper that you chose has it; leave it out, or add {}", option, papers_with(input)));
}

void check_options(const BoundChoices& choices, const std::vector<const BoundPaper*>& papers) {
  for (const auto& [name, list] : choices.lists) {
    check_used(fmt::format("{} {}", option_of(name), list), name, papers);
    if (!choices.trace.empty() && input_named(name)->measured)
      throw ConfigError(
          fmt::format("{} {}: is measured with --trace; leave one of the two out", option_of(name), list));
    values_of(*input_named(name), list);
  }
  for (const std::string& constant : choices.constants)
    check_used("--constant " + constant, constant.substr(0, constant.find('=')), papers);
  const std::pair<const char*, const std::string&> of_traces[] = {{"--prompt", choices.prompt},
                                                                  {"--layers", choices.layers},
                                                                  {"--kv-heads", choices.kv_heads},
                                                                  {"--tokens", choices.tokens},
                                                                  {"--delta-rel", choices.delta_rel}};
  for (const auto& [option, text] : of_traces)
    if (!text.empty() && choices.trace.empty())
      throw ConfigError(fmt::format("{} {}: selects from a trace; add --trace FILE, or leave it out", option, text));
  if (!choices.delta_rel.empty()) check_used("--delta-rel " + choices.delta_rel, "delta", papers);
  if (!choices.delta_rel.empty() && choices.lists.contains("delta"))
    throw ConfigError(fmt::format("--delta-rel {}: excludes --delta {}; leave one of the two out", choices.delta_rel,
                                  choices.lists.at("delta")));
}

constexpr Input kDeltaRel = {"delta_rel", 0, kHuge, false, "0.5", "radius over the median key distance"};

// Reads "0,7,15" of --layers and --kv-heads.
std::vector<int32_t> integers(const Input& input, const std::string& list) {
  std::vector<int32_t> out;
  for (const double x : list.empty() ? std::vector<double>() : values_of(input, list)) out.push_back(int32_t(x));
  return out;
}

TraceRequest request_of(const BoundChoices& choices, const std::vector<const BoundPaper*>& papers) {
  TraceRequest request{choices.trace, choices.prompt, {}, {}, {}, {}, {}, {}};
  request.layers = integers({"layers", 0, kCount, true, "", "layers of the trace"}, choices.layers);
  request.kv_heads = integers({"kv_heads", 0, kCount, true, "", "kv heads of a layer"}, choices.kv_heads);
  const auto tokens = integers({"tokens", 2, kCount, true, "", "first tokens of the trace"}, choices.tokens);
  if (tokens.size() > 1) throw ConfigError(fmt::format("--tokens {}: takes one number", choices.tokens));
  if (!tokens.empty()) request.tokens = tokens.front();
  request.heads = std::any_of(papers.begin(), papers.end(), [](auto* p) { return p->per_head; });
  if (!uses(papers, "delta")) return request;
  if (const auto given = choices.lists.find("delta"); given != choices.lists.end())
    request.deltas = values_of(*input_named("delta"), given->second);
  else request.deltas_rel = values_of(kDeltaRel, choices.delta_rel.empty() ? kDeltaRel.usual : choices.delta_rel);
  return request;
}

double norm_of(BoundNorm norm, const MeasuredHead& head) {
  if (norm == BoundNorm::scaled_query) return head.scale * head.inputs.at("query_norm");
  const double key = head.inputs.at("key_norm");
  return norm == BoundNorm::key ? key : std::max(key, head.inputs.at("query_norm"));
}

// The inputs of a paper that a head supplies: one set, or one for each radius.
std::vector<BoundInputs> known_of(const BoundPaper& paper, const MeasuredHead& head) {
  BoundInputs known;
  for (const std::string& name : paper.inputs)
    if (const auto at = head.inputs.find(name); at != head.inputs.end()) known[name] = at->second;
  known["r"] = norm_of(paper.r, head);
  if (!uses({&paper}, "clusters")) return {known};
  std::vector<BoundInputs> all;
  for (const MeasuredHead::Clusters& c : head.clusters) {
    BoundInputs& one = all.emplace_back(known);
    one["delta"] = c.delta, one["clusters"] = double(c.clusters);
    if (c.delta_rel) one["delta_rel"] = *c.delta_rel, one["median_key_distance"] = head.median_key_distance;
  }
  return all;
}

std::vector<BoundCase> measured_cases(const BoundPaper& paper, const BoundChoices& choices,
                                      const BoundInputs& constants, const MeasuredTrace& trace) {
  std::vector<BoundCase> cases;
  if (!paper.per_head) {
    BoundInputs known;
    for (const std::string& name : paper.inputs)
      if (const auto at = trace.inputs.find(name); at != trace.inputs.end()) known[name] = at->second;
    if (choices.lists.contains("bytes")) known.erase("bytes");
    for (auto& inputs : combinations(paper, choices, constants, known)) cases.push_back({{}, {}, inputs});
    return cases;
  }
  for (const MeasuredHead& head : trace.heads)
    for (const BoundInputs& known : known_of(paper, head))
      for (auto& inputs : combinations(paper, choices, constants, known))
        cases.push_back({head.layer, head.kv_head, inputs});
  return cases;
}

}  // namespace

std::vector<std::string> bound_input_names() {
  std::vector<std::string> names = names_of(kInputs);
  const auto after = std::find(names.begin(), names.end(), "delta") + 1;
  names.insert(after, {"delta_rel", "median_key_distance"});
  for (const Constant& c : kConstants) names.emplace_back(c.name);
  return names;
}

std::string bound_input_text(const std::string& name, double value) {
  return name == "variant" ? kVariants[size_t(value)] : number_text(value);
}

void add_bound_options(Command& command, BoundChoices& choices) {
  command.option("papers", choices.papers, fmt::format("{} (default: all)", join(names_of(bound_papers()))))
      .type("PAPER");
  for (const Input& input : kInputs)
    choices.inputs.emplace(input.name, command
                                           .option(option_of(input.name), choices.lists[input.name],
                                                   fmt::format("{} (default: {})", input.help, input.usual))
                                           .type("LIST")
                                           .group("Inputs, one number or several: 0.1,0.2"));
  std::vector<std::string> constants;
  for (const Constant& c : kConstants) constants.push_back(fmt::format("{} ({})", c.name, c.help));
  command
      .option("--constant", choices.constants,
              fmt::format("a constant that a theorem leaves open, default 1: {}", join(constants)))
      .type("NAME=VALUE")
      .one_value();
  const auto add = [&](const char* name, std::string& value, const char* help, const char* type) {
    command.option(name, value, help).type(type).group("Measured instead");
  };
  add("--trace", choices.trace, "n, d, norms, distances and clusters of each kv head of a trace", "TRACE");
  add("--prompt", choices.prompt, "prompt by id (default: the first)", "ID");
  add("--layers", choices.layers, "layers: 0,7 (default: all)", "LIST");
  add("--kv-heads", choices.kv_heads, "kv heads: 0,2 (default: all)", "LIST");
  add("--tokens", choices.tokens, "use the first N tokens (default: all)", "N");
  add("--delta-rel", choices.delta_rel, "subgen: delta over the median distance of two keys (default: 0.5)", "LIST");
  const Option csv = command.flag("--csv", choices.csv, "as CSV");
  command.flag("--json", choices.json, "as JSON").excludes(csv);
}

std::vector<const BoundPaper*> chosen_papers(const BoundChoices& choices) {
  const std::vector<std::string> known = names_of(bound_papers());
  for (const std::string& name : choices.papers)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw ConfigError(fmt::format("{}: no such paper{}. There are {}", name, did_you_mean(name, known), join(known)));
  std::vector<const BoundPaper*> papers;
  for (const BoundPaper& p : bound_papers())
    if (choices.papers.empty() ||
        std::find(choices.papers.begin(), choices.papers.end(), p.name) != choices.papers.end())
      papers.push_back(&p);
  return papers;
}

std::vector<std::vector<BoundCase>> bound_cases(const BoundChoices& choices,
                                                const std::vector<const BoundPaper*>& papers) {
  const BoundInputs constants = constants_of(choices);
  check_options(choices, papers);
  std::vector<std::vector<BoundCase>> cases;
  if (!choices.trace.empty()) {
    const MeasuredTrace trace = measured_trace(request_of(choices, papers));
    for (const BoundPaper* p : papers) cases.push_back(measured_cases(*p, choices, constants, trace));
    return cases;
  }
  for (const BoundPaper* p : papers) {
    std::vector<BoundCase>& of_paper = cases.emplace_back();
    for (auto& inputs : combinations(*p, choices, constants, {})) of_paper.push_back({{}, {}, inputs});
  }
  return cases;
}

}  // namespace kvreplay::app
