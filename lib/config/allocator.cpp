#include "config/allocator.hpp"

#include <fmt/core.h>

#include <functional>
#include <string_view>

#include "config/values.hpp"
#include "core/method_info.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

// The method whose parameters define how far a head looks; each rule takes some of them.
constexpr const char* kReachMethod = "duo_attention";
constexpr const char* kOfGates = "of gates, a line for each layer and a column for each kv head";

class Reader {
 public:
  Reader(Problems& problems, const Node& item, const Source& source)
      : problems_(problems), item_(item), source_(source) {}

  std::optional<OptionValue> read() {
    const size_t before = problems_.errors();
    const bool is_map = item_.kind == Node::Kind::map;
    const Node* name = name_of(item_);
    if (name == nullptr || name->kind != Node::Kind::scalar) return wrong(item_);
    if (!is_map && name->text.starts_with(kFilePrefix)) return budgets_file(*name);
    const auto word = read_word(problems_, *name, "allocator", option_words().at("allocator"));
    if (!word) return std::nullopt;
    value_.word = *word;
    if (*word == "windows") windows();
    else if (*word == "lu_kv") lu_kv();
    else if (*word == "duo") duo();
    else if (*word == "headkv") headkv();
    else if (*word == "zigzag") zigzag();
    else if (is_map) return wrong(*name);
    return problems_.errors() == before ? std::optional(value_) : std::nullopt;
  }

 private:
  std::optional<OptionValue> wrong(const Node& node) {
    must_be(problems_, node, "allocator",
            fmt::format(
                "a word (uniform, pyramid, windows, ada, cake, lu_kv, duo, headkv, zigzag, file:PATH), or {} of those "
                "that have parameters: {}",
                problems_.words().map(), problems_.words().literal(R"({"name": "lu_kv", "calibration": "others"})")));
    return std::nullopt;
  }

  std::optional<fs::path> file_in(const Node& node, const char* content) {
    return existing(node, node.text.substr(std::string_view(kFilePrefix).size()), content);
  }

  std::optional<fs::path> existing(const Node& node, const std::string& path, const char* content) {
    const fs::path file = source_.at(path);
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) return file;
    problems_.error(node.mark, fmt::format("no file {} {} (the path is relative to {})", file.string(), content,
                                           problems_.words().folder()));
    return std::nullopt;
  }

  std::optional<OptionValue> budgets_file(const Node& node) {
    const auto file = file_in(node, "of budgets, one row layer,kv_head,tokens for every head");
    return file ? std::optional(OptionValue{kFilePrefix + file->string()}) : std::nullopt;
  }

  Section section(std::vector<std::string> keys) {
    keys.emplace_back("name");
    return Section(item_.kind == Node::Kind::map ? &item_ : nullptr, "allocator", std::move(keys), problems_);
  }

  void windows() {
    const Section all = section({"share"});
    if (const Node* share = all.find("share"))
      if (const auto given = read_real(problems_, *share, "share", {0, 1})) value_.window_share = *given;
  }

  void lu_kv() {
    const Section all = section({"calibration", "weight", "lo"});
    LuKv& rule = value_.lu_kv;
    if (const Node* calibration = all.find("calibration")) read_calibration_source(*calibration);
    if (const Node* weight = all.find("weight"))
      if (const auto word = read_word(problems_, *weight, "weight", {"mass", "contrib"}))
        rule.weight = *word == "contrib" ? LuKv::Weight::contrib : LuKv::Weight::mass;
    if (const Node* lo = all.find("lo")) rule.lo = read_lo(*lo);
  }

  void read_calibration_source(const Node& node) {
    Calibration& from = value_.lu_kv.calibration;
    if (!parse_calibration(node.text, from) || from.source == Calibration::Source::file)
      must_be(
          problems_, node, "the calibration of lu_kv",
          "others (all other prompts of the trace), prompt:ID (one of them), or self, which makes it an oracle: it is "
          "calibrated on the rows that it is measured on");
  }

  void duo() {
    const Section all = looking({"rule", "stream_frac", "sinks", "recent", "length"}, {"gates"});
    const Node* gates = all.find("gates");
    if (gates == nullptr) return;
    if (const auto text = read_text(problems_, *gates, "gates"))
      if (const auto file = existing(*gates, *text, kOfGates)) value_.heads_file = file->string();
    leave_out(all, {"rule", "length"}, "heads that are ranked by their attention: leave it out with gates");
    for (const char* name : {"rule", "length"}) value_.looking.erase(name);
  }

  void headkv() {
    const Section all = looking({"sinks", "recent"}, {"beta", "temp", "importance"});
    if (const Node* beta = all.find("beta"))
      if (const auto given = read_real(problems_, *beta, "beta", {1, 1e6})) value_.headkv.beta = *given;
    if (const Node* temp = all.find("temp"))
      if (const auto given = read_real(problems_, *temp, "temp", {0, 100})) value_.headkv.temp = *given;
    const Node* importance = all.find("importance");
    if (importance == nullptr || importance->text == "mass") return;
    if (!importance->text.starts_with(kFilePrefix))
      return must_be(
          problems_, *importance, "the importance of headkv",
          "mass (attention of the prompt to its middle), or file:PATH, a JSON object {\"LAYER-HEAD\": score}");
    value_.looking.clear();
    if (const auto file = file_in(*importance, "of importance, a JSON object {\"LAYER-HEAD\": score}"))
      value_.heads_file = file->string();
    leave_out(all, {"sinks", "recent"}, "importance mass: leave it out with a file");
  }

  void zigzag() {
    const Section all = section({"mass", "lo"});
    ZigZag& rule = value_.zigzag;
    if (const Node* mass = all.find("mass"))
      if (const auto given = read_real(problems_, *mass, "mass", {1e-6, 1})) rule.mass = *given;
    if (const Node* lo = all.find("lo")) rule.lo = read_lo(*lo);
  }

  // Tokens that every head starts with; 0: those that its method protects.
  int32_t read_lo(const Node& lo) {
    if (lo.text == "protected") return 0;
    const auto tokens = read_integer(problems_, lo, "lo", {1, kManyTokens});
    return tokens ? int32_t(*tokens) : 0;
  }

  void leave_out(const Section& all, std::initializer_list<const char*> names, const char* whose) {
    for (const char* name : names)
      if (const Node* given = all.find(name))
        problems_.error(given->mark, fmt::format("{} is a parameter of {}", name, whose));
  }

  // Reads the parameters of the method that defines how far heads look (`names`), and allows those of the rule (`own`).
  Section looking(const std::vector<std::string>& names, std::vector<std::string> own) {
    own.insert(own.end(), names.begin(), names.end());
    const Section all = section(std::move(own));
    const Method* method = find_method(source_.methods, kReachMethod);
    if (method == nullptr) {
      problems_.error(item_.mark, fmt::format("allocator {} needs the method {}, which this program was built without",
                                              value_.word, kReachMethod));
      return all;
    }
    for (const std::string& name : names) {
      const ParameterSpec& spec = *method->parameter(name);
      const Node* given = all.find(name);
      const auto json = given != nullptr ? read_parameter(problems_, *given, spec) : std::nullopt;
      value_.looking[name] = json.value_or(spec.default_json);
    }
    return all;
  }

  Problems& problems_;
  const Node& item_;
  const Source& source_;
  OptionValue value_;
};

}  // namespace

std::optional<OptionValue> read_allocator(Problems& problems, const Node& item, const Source& source) {
  return Reader(problems, item, source).read();
}

}  // namespace kvreplay
