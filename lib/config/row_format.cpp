#include "config/row_format.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.hpp"
#include "config/values.hpp"
#include "formats/coders/kivi.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kMostLayers = 4096;
const std::vector<std::string> kBesideParts = {"rotate",         "rotate_block", "keys",
                                               "full_precision", "skip_layers",  "own_row"};
const std::vector<std::string> kRotations = {"none", "hadamard", "hadamard_signed", "haar"};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const RowFormatEntry& entry : row_formats()) all.emplace_back(entry.info.name);
  return all;
}

class Reader {
 public:
  explicit Reader(Problems& problems) : problems_(problems) {}

  std::optional<RowFormat> read(const Node& item) {
    const size_t before = problems_.errors();
    RowFormat format;
    if (item.kind != Node::Kind::map) {
      if (const auto both = named(item)) format = row_format(*both);
    } else if (item.find("key") != nullptr || item.find("value") != nullptr) {
      read_parts(item, format);
    } else {
      read_both(item, format);
    }
    if (problems_.errors() > before) return std::nullopt;
    const std::string why = senseless(format);
    if (why.empty()) return format;
    problems_.error(item.mark, why);
    return std::nullopt;
  }

 private:
  std::optional<PartFormat> named(const Node& name) {
    const bool scalar = name.kind == Node::Kind::scalar;
    if (scalar && find_row_format(name.text) != nullptr) return part_format(name.text);
    if (scalar)
      problems_.error(name.mark, fmt::format("unknown row format {}{}: see kvreplay list formats", in_quotes(name.text),
                                             did_you_mean(name.text, names())));
    else must_be(problems_, name, "row_format", "a word: see kvreplay list formats");
    return std::nullopt;
  }

  void read_both(const Node& item, RowFormat& format) {
    const Node* name = item.find("name");
    if (name == nullptr)
      return (void)must_be(problems_, item, "row_format",
                           "a word, a map with a name: {name: kivi, bits: 2}, or a map of key and value");
    const auto both = named(*name);
    if (!both) return;
    format = row_format(*both);
    std::vector<std::string> keys = kBesideParts;
    keys.emplace_back("name");
    const Section section = parameters(item, *both, keys, format.key);
    std::copy_n(format.key.parameters, PartFormat::kMostBytes, format.value.parameters);
    read_beside(section, format, true, true);
  }

  void read_parts(const Node& item, RowFormat& format) {
    std::vector<std::string> keys = kBesideParts;
    keys.insert(keys.end(), {"key", "value"});
    const Section section(&item, "row_format", keys, problems_);
    if (const Node* key = section.find("key")) format.key = read_part(*key, RowPart::key);
    if (const Node* value = section.find("value")) format.value = read_part(*value, RowPart::value);
    // What a part says itself holds for it.
    const auto says = [&](const char* part) {
      const Node* of = section.find(part);
      return of != nullptr && of->kind == Node::Kind::map && of->find("rotate") != nullptr;
    };
    read_beside(section, format, !says("key"), !says("value"));
  }

  PartFormat read_part(const Node& item, RowPart part) {
    const Node* name = item.kind == Node::Kind::map ? item.find("name") : &item;
    if (name == nullptr) {
      must_be(problems_, item, "row_format", "a word, or a map with a name: {name: int4, group: 32}");
      return {};
    }
    const auto read = named(*name);
    if (!read) return {};
    PartFormat format = *read;
    if (part == RowPart::value) format.pre_rope = false;
    if (item.kind != Node::Kind::map) return format;
    std::vector<std::string> keys = {"name", "rotate", "rotate_block"};
    if (part == RowPart::key) keys.emplace_back("keys");
    const Section section = parameters(item, format, keys, format);
    read_rotation(section, format);
    if (part == RowPart::key) read_keys(section, format);
    if (section.find("rotate") != nullptr && part == RowPart::key && entry_of(format).info.by_block)
      problems_.error(section.find("rotate")->mark,
                      fmt::format("keys of {} share a step by channel, which a rotation mixes: rotate values alone",
                                  entry_of(format).info.name));
    return format;
  }

  // The parameters of a format, beside other keys.
  Section parameters(const Node& item, const PartFormat& of, std::vector<std::string> keys, PartFormat& to) {
    for (const ParameterSpec& spec : entry_of(of).parameters) keys.push_back(spec.name);
    const Section section(&item, "row_format", keys, problems_);
    for (const ParameterSpec& spec : entry_of(of).parameters)
      if (const Node* given = section.find(spec.name))
        if (const auto json = read_parameter(problems_, *given, spec)) set_parameter(to, spec.name, *json);
    if (!entry_of(of).info.by_block) return section;
    const Kivi& kivi = to.as<Kivi>();
    if (const Node* bits = section.find("bits"); bits != nullptr && kivi.bits == 3)
      must_be(problems_, *bits, "bits", "2 or 4");
    if (kivi.R % kivi.g != 0)
      problems_.error((item.find("R") != nullptr ? item.find("R") : item.find("g"))->mark,
                      fmt::format("R is {} and must be a multiple of g, which is {}, so that full groups leave the "
                                  "residual",
                                  kivi.R, kivi.g));
    return section;
  }

  void read_rotation(const Section& section, PartFormat& format) {
    const Node* rotate = section.find("rotate");
    const char* name = entry_of(format).info.name;
    if (rotate != nullptr)
      if (const auto word = read_word(problems_, *rotate, "rotate", kRotations)) {
        format.rotate = RowRotation(std::find(kRotations.begin(), kRotations.end(), *word) - kRotations.begin());
        if (format.rotate != RowRotation::none && entry_of(format).own_rotation)
          problems_.error(rotate->mark, fmt::format("{} has a rotation of its own: leave out rotate", name));
        if (format.rotate != RowRotation::none && format.is_source())
          problems_.error(rotate->mark, "rows that are stored as they are need no rotation: leave out rotate");
      }
    const Node* block = section.find("rotate_block");
    if (block == nullptr) return;
    const auto size = read_integer(problems_, *block, "rotate_block", {2, 1 << 16});
    if (size && (*size & (*size - 1)) != 0) must_be(problems_, *block, "rotate_block", "a power of two");
    else if (size && format.rotate != RowRotation::hadamard && format.rotate != RowRotation::hadamard_signed)
      problems_.error(block->mark,
                      "rotate_block is the size of a Hadamard matrix: add rotate: hadamard, or leave it out");
    else if (size) format.rotate_block = int32_t(*size);
  }
  void read_keys(const Section& section, PartFormat& format) {
    if (const Node* keys = section.find("keys"))
      if (const auto word = read_word(problems_, *keys, "keys", {"post_rope", "pre_rope"}))
        format.pre_rope = *word == "pre_rope";
  }

  void read_beside(const Section& section, RowFormat& format, bool rotates_keys, bool rotates_values) {
    if (rotates_keys && !format.key.is_source()) read_rotation(section, format.key);
    if (rotates_values && !format.value.is_source()) read_rotation(section, format.value);
    read_keys(section, format.key);
    if (const Node* protection = section.find("full_precision")) {
      const Section of(protection, "full_precision", {"sinks", "recent"}, problems_);
      const auto whole = [&](const char* key, double least, int32_t& to) {
        if (const Node* node = of.find(key))
          if (const auto read = read_integer(problems_, *node, key, {least, kManyTokens})) to = int32_t(*read);
      };
      whole("sinks", 0, format.full_precision.sinks), whole("recent", 1, format.full_precision.recent);
    }
    if (const Node* own = section.find("own_row"))
      if (const auto word = read_word(problems_, *own, "own_row", {"exact", "coded"}))
        format.own_row_coded = *word == "coded";
    read_layers(section, format);
  }
  void read_layers(const Section& section, RowFormat& format) {
    const Node* layers = section.find("skip_layers");
    if (layers == nullptr) return;
    if (layers->kind != Node::Kind::list)
      return (void)must_be(problems_, *layers, "skip_layers",
                           "a list of layers, negative ones from the model's end: [0, 1, -2, -1]");
    for (const Node& item : layers->items)
      if (const auto layer = read_integer(problems_, item, "skip_layers", {-kMostLayers, kMostLayers}))
        format.skip_layers.push_back(int32_t(*layer));
    std::sort(format.skip_layers.begin(), format.skip_layers.end());
  }

  static std::string senseless(const RowFormat& f) {
    for (const PartFormat* part : {&f.key, &f.value}) {
      if (!entry_of(*part).info.by_block) continue;
      const char* name = entry_of(*part).info.name;
      if (f.full_precision.recent > 1)
        return fmt::format("{} keeps its newest R rows exact: set R, and leave out full_precision.recent", name);
      if (f.own_row_coded) return fmt::format("{} codes rows in groups: leave out own_row: coded", name);
    }
    if (f.own_row_coded && f.full_precision.recent > 1)
      return "own_row: coded codes the newest row at once, and full_precision.recent keeps it exact: leave out one";
    return "";
  }

  Problems& problems_;
};

std::string why_not_part(const PartFormat& f, RowPart part, int32_t width) {
  const RowFormatEntry& entry = entry_of(f);
  const char* of = part == RowPart::key ? "keys" : "values";
  if (width % entry.info.multiple_of != 0)
    return fmt::format("{} takes rows in blocks of {} numbers, and {} have {}: take another format", entry.info.name,
                       entry.info.multiple_of, of, width);
  const RowRotation rotation = rotation_of(f, part);
  const bool hadamard = rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed;
  const int32_t block = rotate_block_of(f, width);
  if (hadamard && (block < 2 || width % block != 0))
    return fmt::format(
        "a Hadamard matrix needs blocks of a power of two that divides the {} numbers of {}: rotate: haar", width, of);
  return "";
}

}  // namespace

std::optional<RowFormat> read_row_format(Problems& problems, const Node& item) { return Reader(problems).read(item); }

std::string why_not_stored(const RowFormat& format, const LayerInfo& layer, int32_t n_layers, bool prompt_streams) {
  for (const int32_t skipped : format.skip_layers)
    if (skipped >= n_layers || skipped < -n_layers)
      return fmt::format("skip_layers names layer {}, and the model has {}", skipped, n_layers);
  const RowFormat here = at_layer(format, layer.layer, n_layers);
  for (const std::string& why : {why_not_part(here.key, RowPart::key, layer.head_dim),
                                 why_not_part(here.value, RowPart::value, layer.v_head_dim)})
    if (!why.empty()) return why;
  if (is_calibrated(here) && prompt_streams)
    return "the row format takes its constants from the whole prompt, which does not come in one call: leave out "
           "prompt: stream";
  if (here.key.pre_rope && !layer.rope_recorded)
    return "keys: pre_rope takes the rotary embedding out of keys, and the trace does not say what it is: record it "
           "again with kvdump, or add keys: post_rope";
  return "";
}

}  // namespace kvreplay
