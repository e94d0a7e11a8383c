#include "config/row_format.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.hpp"
#include "config/common_options.hpp"
#include "config/row_format_choice.hpp"
#include "config/values.hpp"
#include "formats/coders/fp8.hpp"
#include "formats/coders/kivi.hpp"

namespace kvreplay {
namespace {

constexpr int32_t kMostLayers = 4096, kMostWidth = 8191;
const std::vector<std::string> kBesideParts = {"rotate",         "rotate_block", "keys",
                                               "full_precision", "skip_layers",  "own_row"};
const std::vector<std::string> kRotations(std::begin(kRowRotationWords), std::end(kRowRotationWords));

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const RowFormatEntry& entry : row_formats()) all.emplace_back(entry.info.name);
  return all;
}

class Reader {
 public:
  Reader(Problems& problems, const FindFile& at) : problems_(problems), at_(at) {}

  std::optional<RowFormat> read(const Node& item) {
    const size_t before = problems_.errors();
    RowFormat format;
    if (item.kind == Node::Kind::scalar && item.text.starts_with(kFilePrefix)) {
      read_rules_file(problems_, item.mark, at_(item.text.substr(std::strlen(kFilePrefix))), own(), format);
    } else if (item.find("by") != nullptr) {
      if (const Node* list = Section(&item, "row_format", {"by"}, problems_).find("by"))
        read_rules(problems_, *list, own(), format);
    } else if (item.find("age") != nullptr) {
      read_by_age(item, format);
    } else if (item.kind != Node::Kind::map) {
      if (const auto both = named(item)) format = row_format(*both);
    } else if (item.find("key") != nullptr || item.find("value") != nullptr) {
      read_parts(item, format);
    } else {
      read_both(item, format);
    }
    if (problems_.errors() > before) return std::nullopt;
    const std::string why = combination_problem(format, words());
    if (why.empty()) return format;
    problems_.error(item.mark, why);
    return std::nullopt;
  }

 private:
  // Reads the formats among which an item chooses.
  ReadFormat own() {
    return [this](const Node& item) { return read(item); };
  }
  void read_by_age(const Node& item, RowFormat& format) {
    const Section section(&item, "row_format", {"age", "full_precision", "own_row", "skip_layers"}, problems_);
    if (const Node* list = section.find("age")) read_ages(problems_, *list, own(), format);
    read_beside(section, format);
    if (const Node* protection = section.find("full_precision");
        protection != nullptr && format.full_precision.recent > 1)
      problems_.error(protection->mark,
                      "age says how the newest rows are stored: leave out full_precision.recent, and begin age with "
                      "format source");
  }

  std::optional<PartFormat> named(const Node& name) {
    const bool scalar = name.kind == Node::Kind::scalar;
    if (scalar && find_row_format(name.text) != nullptr) return part_format(name.text);
    if (scalar)
      problems_.error(name.mark, fmt::format("unknown row format {}{}: see {}", in_quotes(name.text),
                                             did_you_mean(name.text, names()), words().list("formats")));
    else must_be(problems_, name, "row_format", "a word: see " + words().list("formats"));
    return std::nullopt;
  }

  void read_both(const Node& item, RowFormat& format) {
    const Node* name = item.find("name");
    if (name == nullptr)
      return (void)must_be(problems_, item, "row_format",
                           fmt::format("a word, {0} with a name: {1}, or {0} of key and value", words().map(),
                                       words().literal(R"({"name": "kivi", "bits": 2})")));
    const auto both = named(*name);
    if (!both) return;
    format = row_format(*both);
    std::vector<std::string> keys = kBesideParts;
    keys.emplace_back("name");
    const Section section = parameters(item, *both, keys, format.key);
    std::copy_n(format.key.parameters, PartFormat::kMostBytes, format.value.parameters);
    const Asked asked = asked_in(section);
    rotate(asked, format.key), rotate(asked, format.value);
    unrotate_keys(asked.keys, format.key);
    read_beside(section, format);
  }

  void read_parts(const Node& item, RowFormat& format) {
    std::vector<std::string> keys = kBesideParts;
    keys.insert(keys.end(), {"key", "value"});
    const Section section(&item, "row_format", keys, problems_);
    const Asked shared = asked_in(section);
    const bool keys_take = read_part(section.find("key"), RowPart::key, shared, format.key);
    const bool values_take = read_part(section.find("value"), RowPart::value, shared, format.value);
    if (shared.rotate != nullptr && is_rotation(*shared.rotate) && !keys_take && !values_take)
      problems_.error(shared.rotate->mark, "no part takes this rotation: leave out rotate");
    read_beside(section, format);
  }

  // Keys that are allowed inside a part, or beside the parts for both; null: absent.
  struct Asked {
    const Node *rotate = nullptr, *block = nullptr, *keys = nullptr;
  };
  static Asked asked_in(const Section& section) {
    return {section.find("rotate"), section.find("rotate_block"), section.find("keys")};
  }
  static bool is_rotation(const Node& node) { return node.text != kRotations.front(); }

  // item: null for a part that stays at source. A part's own keys override the shared ones. Returns whether the part
  // takes a shared rotation.
  bool read_part(const Node* item, RowPart part, const Asked& shared, PartFormat& format) {
    Asked asked = shared;
    if (item != nullptr) {
      const Node* name = name_of(*item);
      if (name == nullptr) {
        must_be(problems_, *item, "row_format",
                fmt::format("a word, or {} with a name: {}", words().map(),
                            words().literal(R"({"name": "int4", "group": 32})")));
        return true;
      }
      const auto read = named(*name);
      if (!read) return true;
      format = *read;
      if (item->kind == Node::Kind::map) asked = read_own(*item, part, shared, format);
    }
    const RowFormatEntry& entry = entry_of(format);
    const bool by_channel = part == RowPart::key && entry.info.by_block;
    const bool is_shared = asked.rotate == shared.rotate;
    const bool takes = !format.is_source() && !by_channel;
    if (takes || !is_shared) rotate(asked, format);
    if (by_channel && !is_shared && is_rotation(*asked.rotate))
      problems_.error(asked.rotate->mark,
                      fmt::format("keys of {} share a step by channel, which a rotation mixes: rotate values alone",
                                  entry.info.name));
    if (part == RowPart::key) unrotate_keys(asked.keys, format);
    else format.pre_rope = false;
    return takes;
  }
  Asked read_own(const Node& item, RowPart part, const Asked& shared, PartFormat& format) {
    std::vector<std::string> keys = {"name", "rotate", "rotate_block"};
    if (part == RowPart::key) keys.emplace_back("keys");
    const Section section = parameters(item, format, keys, format);
    const Asked own = asked_in(section);
    return {own.rotate != nullptr ? own.rotate : shared.rotate, own.block != nullptr ? own.block : shared.block,
            own.keys != nullptr ? own.keys : shared.keys};
  }

  // Reads the parameters of a format; `keys` are further allowed keys.
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

  void rotate(const Asked& asked, PartFormat& format) {
    const RowFormatEntry& entry = entry_of(format);
    if (asked.rotate != nullptr)
      if (const auto word = read_word(problems_, *asked.rotate, "rotate", kRotations)) {
        format.rotate = RowRotation(std::find(kRotations.begin(), kRotations.end(), *word) - kRotations.begin());
        if (format.rotate != RowRotation::none && entry.own_rotation)
          problems_.error(asked.rotate->mark,
                          fmt::format("{} has a rotation of its own: leave out rotate", entry.info.name));
        if (format.rotate != RowRotation::none && format.is_source())
          problems_.error(asked.rotate->mark, "rows that are stored as they are need no rotation: leave out rotate");
      }
    if (asked.block == nullptr) return;
    const auto size = read_integer(problems_, *asked.block, "rotate_block", {2, 1 << 16});
    const bool hadamard = format.rotate == RowRotation::hadamard || format.rotate == RowRotation::hadamard_signed;
    if (size && (*size & (*size - 1)) != 0) must_be(problems_, *asked.block, "rotate_block", "a power of two");
    else if (size && !hadamard)
      problems_.error(asked.block->mark,
                      fmt::format("rotate_block is the size of a Hadamard matrix: add {}, or leave it out",
                                  words().option("rotate", "hadamard")));
    else if (size) format.rotate_block = int32_t(*size);
  }
  void unrotate_keys(const Node* keys, PartFormat& format) {
    if (keys == nullptr) return;
    const auto word = read_word(problems_, *keys, "keys", {"post_rope", "pre_rope"});
    if (!word) return;
    format.pre_rope = *word == "pre_rope";
    if (format.pre_rope && format.is_source())
      problems_.error(keys->mark, "keys that are stored as they are keep their rotary embedding: leave out keys");
  }

  void read_beside(const Section& section, RowFormat& format) {
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
    auto& skipped = format.skip_layers;
    std::sort(skipped.begin(), skipped.end());
    skipped.erase(std::unique(skipped.begin(), skipped.end()), skipped.end());
  }

  static std::string combination_problem(const RowFormat& f, const Wording& words) {
    const std::string coded = words.option("own_row", "coded");
    for (const PartFormat* part : {&f.key, &f.value}) {
      if (!entry_of(*part).info.by_block) continue;
      const char* name = entry_of(*part).info.name;
      if (f.full_precision.recent > 1)
        return fmt::format("{} keeps its newest R rows exact: set R, and leave out full_precision.recent", name);
      if (f.own_row_coded) return fmt::format("{} codes rows in groups: leave out {}", name, coded);
    }
    if (f.own_row_coded && f.full_precision.recent > 1)
      return coded + " codes the newest row at once, and full_precision.recent keeps it exact: leave out one";
    return "";
  }

  const Wording& words() const { return problems_.words(); }
  Problems& problems_;
  const FindFile& at_;
};

// What to do where a Hadamard matrix does not fit rows of this width. A format's own rotation cannot be replaced.
std::string hadamard_remedy(const PartFormat& f, int32_t width, const Wording& words) {
  const RowFormatEntry& entry = entry_of(f);
  const int32_t largest = width & -width;
  const bool chosen_block = f.rotate_block != PartFormat::kDerivedBlock;
  if (chosen_block && largest > 1) return "write " + words.option("rotate_block", std::to_string(largest));
  if (chosen_block) return "leave out rotate_block, and write " + words.option("rotate", "haar");
  if (!entry.own_rotation) return "write " + words.option("rotate", "haar");
  const auto is_rotation = [](const ParameterSpec& spec) { return spec.name == "rotation"; };
  if (std::any_of(entry.parameters.begin(), entry.parameters.end(), is_rotation))
    return "write " + words.option("rotation", "haar");
  return "it takes heads of an even size; a format for any size is " +
         words.literal(R"({"name": "int4", "rotate": "haar"})");
}

Refusal hadamard_refusal(const PartFormat& f, const char* of, int32_t width, const Wording& words) {
  const bool chosen_block = f.rotate_block != PartFormat::kDerivedBlock;
  return {.rule = fmt::format("{} rotates rows by a Hadamard matrix, whose size ({}) must divide the {} numbers of {}",
                              entry_of(f).info.name, chosen_block ? std::to_string(f.rotate_block) : "2, 4, 8, ...",
                              width, of),
          .remedy = hadamard_remedy(f, width, words)};
}

Refusal part_refusal(const PartFormat& f, RowPart part, int32_t width, const Wording& words) {
  const RowFormatEntry& entry = entry_of(f);
  const char* of = part == RowPart::key ? "keys" : "values";
  if (!f.is_source() && width > kMostWidth)
    return {.rule =
                fmt::format("{} of {} numbers are more than the {} that a row format codes", of, width, kMostWidth)};
  if (entry.info.power_of_two && (width & (width - 1)) != 0)
    return {.rule = fmt::format("{} takes rows of 2, 4, 8, ... numbers, and {} have {}", entry.info.name, of, width),
            .remedy = "take another format, such as int2"};
  const bool any_width = entry.info.parts_differ && part == RowPart::key;
  if (!any_width && width % entry.info.multiple_of != 0)
    return {.rule = fmt::format("{} takes rows in blocks of {} numbers, and {} have {}", entry.info.name,
                                entry.info.multiple_of, of, width),
            .remedy = "take another format, such as int4"};
  const RowRotation rotation = rotation_of(f, part);
  const bool hadamard = rotation == RowRotation::hadamard || rotation == RowRotation::hadamard_signed;
  const int32_t block = rotate_block_of(f, width);
  if (hadamard && (block < 2 || width % block != 0)) return hadamard_refusal(f, of, width, words);
  return {};
}

// For a layer with keys and values.
Refusal heads_refusal(const RowFormat& format) {
  for (const PartFormat& part : {format.key, format.value})
    if (const FormatInfo& info = entry_of(part).info; info.of_latents)
      return {.rule = fmt::format("{} stores rows of latent attention, and the layer has keys and values", info.name),
              .remedy = "take another format, such as fp8_e4m3"};
  return {};
}

// A row of latent attention is coded by the key's format; its value is a part of it.
Refusal latent_refusal(const RowFormat& format, const LayerInfo& layer, const Wording& words) {
  if (entry_of(format.key).info.of_latents && format.key.as<Fp8DsMla>().rope != layer.latent.rope)
    return {.rule = fmt::format("{} keeps {} rotated numbers apart, and the layer has {}",
                                entry_of(format.key).info.name, format.key.as<Fp8DsMla>().rope, layer.latent.rope),
            .remedy = "write " + words.option("rope", std::to_string(layer.latent.rope))};
  RowFormat one = format;
  one.value = one.key, one.value.pre_rope = false;
  if (row_format_json(one) != row_format_json(format) || entry_of(format.key).info.parts_differ)
    return {.rule = "keys and values have formats of their own, and a row of latent attention is both",
            .remedy = "give one format, such as " + words.option("row_format", "fp8_e4m3")};
  if (entry_of(format.key).info.by_block)
    return {.rule = fmt::format("{} codes keys and values by blocks in different directions, and a row of latent "
                                "attention is both",
                                entry_of(format.key).info.name),
            .remedy = "take another format, such as int4"};
  return {};
}

}  // namespace

std::optional<RowFormat> read_row_format(Problems& problems, const Node& item, const FindFile& at) {
  return Reader(problems, at).read(item);
}

Refusal storage_refusal(const RowFormat& format, const LayerInfo& layer, int32_t n_layers, bool prompt_streams,
                        const Wording& words, const std::string& trace) {
  for (const int32_t skipped : format.skip_layers)
    if (skipped >= n_layers || skipped < -n_layers)
      return {.rule = fmt::format("skip_layers names layer {}, and the model has {}", skipped, n_layers)};
  const RowFormat here = at_layer(format, layer.layer, n_layers);
  for (const RowFormat& entry : here.ages)
    if (const Refusal why = storage_refusal(entry, layer, n_layers, prompt_streams, words, trace); !why.empty())
      return why;
  for (const Refusal& refusal :
       std::array{layer.is_latent() ? Refusal{} : heads_refusal(here),
                  part_refusal(here.key, RowPart::key, layer.head_dim, words),
                  layer.is_latent() ? latent_refusal(here, layer, words)
                                    : part_refusal(here.value, RowPart::value, layer.v_head_dim, words)})
    if (!refusal.empty()) return refusal;
  if (is_calibrated(here) && prompt_streams)
    return {.rule = "the row format takes its constants from the whole prompt, which does not come in one call",
            .remedy = "leave out " + words.option("prompt", "stream")};
  if (here.key.pre_rope && !layer.rope_recorded)
    return {.rule = words.option("keys", "pre_rope") + " takes the rotary embedding out of keys, which " +
                    words.trace(trace, "lack"),
            .remedy = layer.rope_unknown
                          ? fmt::format("write {}", words.option("keys", "post_rope"))
                          : fmt::format("{}, or write {}", words.rope(trace), words.option("keys", "post_rope"))};
  return {};
}

Refusal rules_refusal(const RowFormat& format, const LayerInfo& layer, int32_t n_layers,
                      const std::vector<int32_t>& heads, bool share_rows) {
  for (const FormatRule& rule : format.rules)
    for (const int32_t named : rule.layers)
      if (named >= n_layers || named < -n_layers)
        return {.rule = fmt::format("by names layer {}, and the model has {}", named, n_layers)};
  std::string first;
  for (const int32_t head : heads) {
    const RowFormat* own = at_head(format, layer.layer, n_layers, head);
    if (own == nullptr)
      return {.rule = fmt::format("row_format says nothing of layer {}, kv head {}", layer.layer, head),
              .remedy = "add a rule or a row for it"};
    const std::string json = row_format_json(*own);
    if (share_rows && !first.empty() && json != first)
      return {.rule = fmt::format("the kv heads of layer {} share one cache, and by gives them several formats",
                                  layer.layer),
              .remedy = "give them one"};
    first = json;
  }
  return {};
}

}  // namespace kvreplay
