#include "formats/registry.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "formats/all.hpp"
#include "parameters/describe.hpp"

namespace kvreplay {
namespace {

template <class F>
CodedBytes bytes_of(const PartFormat& f, RowPart part, int32_t width) {
  return f.as<F>().bytes(part, width);
}
template <class F>
int64_t static_bytes_of(const PartFormat& f, RowPart part, int32_t width) {
  if constexpr (requires(const F& one) { one.static_bytes(part, width); }) return f.as<F>().static_bytes(part, width);
  return 0;
}
template <class F>
constexpr bool has_own_rotation = requires(const F& one) {
  one.rotation(RowPart::key);
};
template <class F>
RowRotation rotation_of_format(const PartFormat& f, RowPart part) {
  if constexpr (has_own_rotation<F>) return f.as<F>().rotation(part);
  // Keys that share a scale per channel must not be rotated: rotation mixes the channels.
  if (F::info.by_block && part == RowPart::key) return RowRotation::none;
  return f.rotate;
}
template <class F>
bool sketches_of(const PartFormat& f) {
  if constexpr (requires(const F& one) { one.sketches(); }) return f.as<F>().sketches();
  return false;
}
template <class F>
bool is_calibrated_of(const PartFormat& f) {
  if constexpr (requires(const F& one) { one.is_calibrated(); }) return f.as<F>().is_calibrated();
  return false;
}
template <class F>
double expected_outliers_of(const PartFormat& f, RowPart part, int32_t width) {
  if constexpr (requires(const F& one) { one.expected_outliers(part, width); })
    return f.as<F>().expected_outliers(part, width);
  return 0;
}
template <class F>
std::vector<double> tables_of(const PartFormat& f, RowPart part, int32_t width) {
  if constexpr (requires(const F& one) { one.tables(part, width); }) return f.as<F>().tables(part, width);
  return {};
}
template <class F>
std::vector<double> calibrate_of(const PartFormat& f, RowPart part, int32_t width, std::span<const double> rows) {
  if constexpr (requires(const F& one) { one.calibrate(part, width, rows); })
    return f.as<F>().calibrate(part, width, rows);
  return {};
}

template <class F>
int64_t model_numbers_of(const PartFormat& f, RowPart part, int32_t width) {
  if constexpr (requires(const F& one) { one.model_numbers(part, width); }) return f.as<F>().model_numbers(part, width);
  return 0;
}
// Sets the hooks that few formats have.
template <class F>
void set_rare_hooks(RowFormatEntry& e) {
  e.model_numbers = model_numbers_of<F>;
  if constexpr (requires(const F& one, const PromptRows& prompt) { one.calibrate(RowPart::key, prompt); })
    e.calibrate_jointly = [](const PartFormat& f, RowPart part, const PromptRows& prompt) {
      return f.as<F>().calibrate(part, prompt);
    };
  if constexpr (requires { &F::report; })
    e.report = [](const PartFormat& f, RowPart part, int32_t width, const double* constants,
                  std::map<std::string, double>& extras) { f.as<F>().report(part, width, constants, extras); };
}

template <class F>
RowFormatEntry entry() {
  RowFormatEntry e;
  e.info = F::info;
  e.defaults.set(F{});
  e.defaults.rotate = F::info.default_rotate;
  e.own_rotation = has_own_rotation<F>;
  if constexpr (requires { F::kSlot; }) e.slot = F::kSlot;
  if constexpr (requires { F::kOutlierBytes; }) e.outlier_bytes = F::kOutlierBytes;
  Describer describer(e.defaults.parameters);
  Describe<F> d(describer, e.defaults.as<F>(), e.defaults.parameters);
  F::declare(d);
  e.parameters = describer.take();
  e.expected_outliers = expected_outliers_of<F>;
  e.bytes = bytes_of<F>, e.static_bytes = static_bytes_of<F>, e.rotation = rotation_of_format<F>;
  e.sketches = sketches_of<F>, e.is_calibrated = is_calibrated_of<F>;
  e.tables = tables_of<F>, e.calibrate = calibrate_of<F>;
  set_rare_hooks<F>(e);
  return e;
}

template <class... F>
std::vector<RowFormatEntry> entries(FormatList<F...>) {
  std::vector<RowFormatEntry> all = {entry<F>()...};
  for (size_t i = 0; i < all.size(); ++i) all[i].which = all[i].defaults.which = int32_t(i);
  return all;
}

const char* word_of(RowRotation r) { return kRowRotationWords[int32_t(r)]; }

// The JSON object of one part. has_keys: the part has the option `keys`.
JsonObject part_object(const PartFormat& f, bool has_keys) {
  const RowFormatEntry& entry = entry_of(f);
  JsonObject all;
  for (const ParameterSpec& spec : entry.parameters) all.add_json(spec.name, parameter_json(spec, f.parameters));
  if (f.rotate != entry.defaults.rotate) all.add("rotate", word_of(f.rotate));
  if (f.rotate_block != PartFormat::kDerivedBlock) all.add("rotate_block", f.rotate_block);
  if (has_keys && f.pre_rope != entry.info.keys_pre_rope) all.add("keys", f.pre_rope ? "pre_rope" : "post_rope");
  if (!all.empty() || entry.info.quantises) all.add("name", entry.info.name);
  return all;
}
std::string text_of(const JsonObject& object, const PartFormat& f) {
  return object.empty() ? json_of(entry_of(f).info.name) : object.text();
}

void add_common(const RowFormat& f, JsonObject& to) {
  const auto& [sinks, recent] = f.full_precision;
  if (sinks != 0 || recent != 1)
    to.add_json("full_precision", JsonObject().add("sinks", sinks).add("recent", recent).text());
  if (f.own_row_coded) to.add("own_row", "coded");
  if (!f.skip_layers.empty()) to.add_json("skip_layers", json_of(f.skip_layers));
}

}  // namespace

const std::vector<RowFormatEntry>& row_formats() {
  static const std::vector<RowFormatEntry> all = entries(RowFormats{});
  return all;
}

const RowFormatEntry* find_row_format(const std::string& name) {
  const auto& all = row_formats();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& e) { return e.info.name == name; });
  return found == all.end() ? nullptr : &*found;
}

PartFormat part_format(const std::string& name) {
  const RowFormatEntry* entry = find_row_format(name);
  if (entry == nullptr) throw std::logic_error("no row format " + name);
  PartFormat format = entry->defaults;
  format.pre_rope = entry->info.keys_pre_rope;
  return format;
}

RowFormat row_format(const PartFormat& both) {
  RowFormat format;
  format.key = format.value = both;
  format.value.pre_rope = false;
  return format;
}
RowFormat row_format(const std::string& name) { return row_format(part_format(name)); }

void set_parameter(PartFormat& format, const std::string& name, const std::string& json) {
  for (const ParameterSpec& spec : entry_of(format).parameters)
    if (spec.name == name) return assign_parameter(spec, json, format.parameters);
  throw std::logic_error("no parameter " + name);
}

int32_t rotate_block_of(const PartFormat& f, int32_t width) {
  return f.rotate_block != PartFormat::kDerivedBlock ? f.rotate_block : width & -width;
}

bool is_random(const PartFormat& f, RowPart part) {
  const RowRotation r = rotation_of(f, part);
  return r == RowRotation::hadamard_signed || r == RowRotation::haar || entry_of(f).sketches(f);
}

namespace {

// Whether `holds` is true for a format that some row may have.
template <class P>
bool any_of_formats(const RowFormat& f, P holds) {
  bool found = f.rules.empty() && f.ages.empty() && holds(f);
  for (const FormatRule& rule : f.rules) found = found || any_of_formats(rule.format, holds);
  for (const RowFormat& entry : f.ages) found = found || any_of_formats(entry, holds);
  return found;
}
template <class P>
bool any_of_parts(const RowFormat& f, P holds) {
  return any_of_formats(f, [&](const RowFormat& one) { return holds(one.key) || holds(one.value); });
}

}  // namespace

bool is_random(const RowFormat& f) {
  return any_of_formats(
      f, [](const RowFormat& one) { return is_random(one.key, RowPart::key) || is_random(one.value, RowPart::value); });
}
bool may_draw(const RowFormat& f) {
  const auto may = [](const PartFormat& part) {
    const RowFormatEntry& entry = entry_of(part);
    return entry.own_rotation || entry.info.default_rotate != RowRotation::none;
  };
  return is_random(f) || any_of_parts(f, may);
}
bool is_calibrated(const RowFormat& f) {
  return any_of_parts(f, [](const PartFormat& part) { return entry_of(part).is_calibrated(part); });
}
bool has_blocks(const RowFormat& f) {
  return any_of_parts(f, [](const PartFormat& part) { return entry_of(part).info.by_block; });
}
bool codes_again(const RowFormat& f) {
  const auto by_age = [](const FormatRule& rule) { return codes_again(rule.format); };
  return !f.ages.empty() || std::any_of(f.rules.begin(), f.rules.end(), by_age);
}
bool waits(const RowFormat& f) {
  return has_blocks(f) || any_of_formats(f, [](const RowFormat& one) { return one.full_precision.recent > 1; });
}
bool has_outliers(const RowFormat& f) {
  return any_of_parts(f, [](const PartFormat& part) { return entry_of(part).outlier_bytes > 0; });
}
int32_t residual_of(const RowFormat& f) {
  int32_t most = 0;
  (void)any_of_parts(f, [&](const PartFormat& part) {
    if (entry_of(part).info.by_block) most = std::max(most, part.as<Kivi>().R);
    return false;
  });
  return most;
}
bool quantises(const RowFormat& f) {
  return any_of_parts(f, [](const PartFormat& part) { return entry_of(part).info.quantises; });
}

namespace {

bool names_layer(const std::vector<int32_t>& layers, int32_t layer, int32_t n_layers) {
  const auto is_it = [&](int32_t named) { return layer == (named < 0 ? n_layers + named : named); };
  return std::any_of(layers.begin(), layers.end(), is_it);
}

}  // namespace

RowFormat at_layer(const RowFormat& f, int32_t layer, int32_t n_layers) {
  if (names_layer(f.skip_layers, layer, n_layers)) return {};
  RowFormat here = f;
  here.skip_layers.clear();
  return here;
}

const RowFormat* at_head(const RowFormat& f, int32_t layer, int32_t n_layers, int32_t kv_head) {
  if (f.rules.empty()) return &f;
  const auto holds = [&](const FormatRule& rule) {
    const bool here = rule.layers.empty() || names_layer(rule.layers, layer, n_layers);
    return here && (rule.heads.empty() || std::count(rule.heads.begin(), rule.heads.end(), kv_head) > 0);
  };
  const auto found = std::find_if(f.rules.begin(), f.rules.end(), holds);
  return found == f.rules.end() ? nullptr : &found->format;
}

CodedBytes row_bytes_of(const RowFormat& f, int32_t dim, int32_t v_dim) {
  const RowFormatEntry &key = entry_of(f.key), &value = entry_of(f.value);
  const CodedBytes k = key.bytes(f.key, RowPart::key, dim),
                   v = v_dim > 0 ? value.bytes(f.value, RowPart::value, v_dim) : CodedBytes{};
  CodedBytes both{k.codes + v.codes, k.scales + v.scales};
  const int64_t slot = std::min(key.slot, value.slot), all = both.codes + both.scales;
  both.scales += (all + slot - 1) / slot * slot - all;
  return both;
}

double row_bytes(const RowFormat& f, int32_t dim, int32_t v_dim, int32_t source_bytes) {
  if (!f.ages.empty()) {
    double most = 0;
    for (const RowFormat& entry : f.ages) most = std::max(most, row_bytes(entry, dim, v_dim, source_bytes));
    return most;
  }
  const CodedBytes coded = row_bytes_of(f, dim, v_dim);
  double bytes = double(coded.codes + coded.scales);
  const auto add = [&](const PartFormat& part, RowPart which, int32_t width) {
    const RowFormatEntry& entry = entry_of(part);
    if (part.is_source()) bytes += double(width) * source_bytes;
    bytes += double(entry.outlier_bytes) * entry.expected_outliers(part, which, width);
    if (!entry.info.by_block) return;
    const Kivi& kivi = part.as<Kivi>();
    if (which == RowPart::key) bytes += 4.0 * width / kivi.g;
    if (std::string(entry.info.name) != Gear::info.name) return;
    const Gear& gear = part.as<Gear>();
    const auto both_ends = [&](int32_t line) { return 2 * std::floor(gear.outliers * line / 200); };
    const double outliers = gear.order == Gear::Order::residual ? gear.outliers / 100 * width
                            : which == RowPart::key             ? both_ends(gear.R) * width / gear.R
                                                                : both_ends(width);
    bytes += gear.rank * (1 + double(width) / gear.R) * source_bytes + outliers * (source_bytes + 4);
  };
  add(f.key, RowPart::key, dim);
  if (v_dim > 0) add(f.value, RowPart::value, v_dim);
  return bytes;
}

int64_t static_bytes(const RowFormat& f, int32_t dim, int32_t v_dim) {
  return entry_of(f.key).static_bytes(f.key, RowPart::key, dim) +
         (v_dim > 0 ? entry_of(f.value).static_bytes(f.value, RowPart::value, v_dim) : 0);
}

int64_t model_numbers(const RowFormat& f, int32_t dim, int32_t v_dim) {
  return entry_of(f.key).model_numbers(f.key, RowPart::key, dim) +
         (v_dim > 0 ? entry_of(f.value).model_numbers(f.value, RowPart::value, v_dim) : 0);
}

namespace {

std::string list_json(const std::vector<std::string>& items) { return "[" + join(items, ",") + "]"; }

std::string ages_json(const RowFormat& f) {
  std::vector<std::string> entries;
  for (size_t i = 0; i < f.ages.size(); ++i) {
    JsonObject entry;
    if (i < f.newer_than.size()) entry.add("newer_than", f.newer_than[i]);
    entries.push_back(entry.add_json("format", row_format_json(f.ages[i])).text());
  }
  JsonObject all;
  all.add_json("age", list_json(entries));
  add_common(f, all);
  return all.text();
}
std::string rules_json(const RowFormat& f) {
  std::vector<std::string> rules;
  for (const FormatRule& rule : f.rules) {
    JsonObject one;
    if (!rule.layers.empty()) one.add_json("layers", json_of(rule.layers));
    if (!rule.heads.empty()) one.add_json("heads", json_of(rule.heads));
    rules.push_back(one.add_json("format", row_format_json(rule.format)).text());
  }
  return JsonObject().add_json("by", list_json(rules)).text();
}

}  // namespace

std::string row_format_json(const RowFormat& f) {
  if (!f.rules.empty()) return rules_json(f);
  if (!f.ages.empty()) return ages_json(f);
  JsonObject all = part_object(f.key, true);
  PartFormat as_value = f.key;
  as_value.pre_rope = false;
  if (text_of(part_object(as_value, false), as_value) == text_of(part_object(f.value, false), f.value)) {
    JsonObject common;
    add_common(f, common);
    if (!common.empty()) all.add("name", entry_of(f.key).info.name);
    add_common(f, all);
    return text_of(all, f.key);
  }
  JsonObject parts;
  parts.add_json("key", text_of(all, f.key));
  parts.add_json("value", text_of(part_object(f.value, false), f.value));
  add_common(f, parts);
  return parts.text();
}

}  // namespace kvreplay
