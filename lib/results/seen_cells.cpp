#include "results/seen_cells.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/text.hpp"
#include "catalog/bound_method.hpp"
#include "formats/registry.hpp"

namespace kvreplay {
namespace {

using nlohmann::json;

// If a row has lost attention mass and its output did not change, the values of all tokens are equal. kNoError is above
// the rounding of single precision, and 1 - kMostMass is enough mass to show.
constexpr double kNoError = 1e-5, kMostMass = 0.99;

const std::string& at(const Fields& row, const char* name) { return row[column_index(name)]; }
double real_at(const Fields& row, const char* name) { return std::strtod(at(row, name).c_str(), nullptr); }
int32_t count_at(const Fields& row, const char* name) { return int32_t(real_at(row, name)); }

// FNV-1a.
uint64_t hash_of(std::string_view text, uint64_t hash = 0xcbf29ce484222325U) {
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3U;
  return hash;
}

// Columns in which two methods with one outcome agree. Bounds are left out: a theorem about the method gives them.
const std::vector<size_t>& measured_columns() {
  static const std::vector<size_t> measured = [] {
    std::vector<size_t> places;
    for (size_t i = 0; i < columns().size(); ++i) {
      const Column& column = columns()[i];
      const std::string_view name = column.name;
      if (column.measure && !column.timing && !name.starts_with("bound_") && name != "eps_additive_mean")
        places.push_back(i);
    }
    return places;
  }();
  return measured;
}

uint64_t numbers_of(const Fields& row) {
  uint64_t hash = hash_of("");
  for (const size_t column : measured_columns()) hash = hash_of(row[column], hash_of(",", hash));
  return hash;
}

std::string text_in(const json& object, const char* name) {
  const json value = object.value(name, json());
  return value.is_string() ? value.get<std::string>() : "";
}

// Whether a row format changes every row that it codes. Skipped layers store the trace's rows, and a row of the table
// does not contain the model's number of layers.
bool is_quantised(const json& params) {
  const json format = params.value("row_format", json());
  if (format.is_object() && format.contains("skip_layers")) return false;
  const auto quantises_by_name = [](const json& part) {
    const json& name = part.is_object() && part.contains("name") ? part.at("name") : part;
    const RowFormatEntry* entry = name.is_string() ? find_row_format(name.get<std::string>()) : nullptr;
    return entry != nullptr && entry->info.quantises;
  };
  const bool apart = format.is_object() && !format.contains("name");
  return apart ? quantises_by_name(format.value("key", json())) || quantises_by_name(format.value("value", json()))
               : quantises_by_name(format);
}

// Whether the prompt fills the layer's sliding window, so that the exact cache stops growing.
bool window_is_full(const Fields& row) {
  const std::string& prompt = at(row, "prompt_full_bytes");
  return !prompt.empty() && prompt == at(row, "full_bytes") && count_at(row, "n_tokens") > count_at(row, "n_prefill");
}

template <class Id>
Id place_of(std::unordered_map<std::string, Id>& known, const std::string& name, size_t next) {
  return known.emplace(name, Id(next)).first->second;
}

}  // namespace

uint32_t SeenCells::instance_of(const Fields& row) {
  const std::string &method = at(row, "method"), &given = at(row, "given");
  if (given.empty()) has_instances_ = false;
  const auto [found, is_new] = instance_of_.emplace(std::pair(method, given), uint32_t(instances_.size()));
  if (is_new) instances_.push_back({method, given});
  return found->second;
}

SeenCells::Declared SeenCells::declared_of(const std::string& name, const std::string& text) const {
  Declared said;
  const json params = json::parse(text, nullptr, false);
  if (!params.is_object()) return said;
  said.oneshot = text_in(params, "phase") == word(Phase::oneshot);
  said.quantises = is_quantised(params);
  const Method* method = find_method(methods_, name);
  if (method == nullptr) return said;
  MethodValues values(*method);
  for (const ParameterSpec& spec : method->parameters)
    if (spec.kind != ParameterSpec::Kind::file && params.contains(spec.name))
      values.set(spec, canonical(params.at(spec.name)));
  const auto rule = params.find("allocator");
  const bool has_parameters = rule != params.end() && rule->is_object();
  const std::string allocator = text_in(has_parameters ? *rule : params, has_parameters ? "name" : "allocator");
  const bool alone = allocator.empty() || allocator == word(Allocator::uniform);
  said.known = true, said.holds_all = values.traits().holds_all;
  if (const auto sinks = params.find("sinks"); sinks != params.end() && sinks->is_number_integer())
    said.sinks = sinks->get<int32_t>();
  const bool by_formula = alone ? values.traits().shared_over == SharedOver::head
                                : allocator == word(Allocator::pyramid) || allocator == word(Allocator::windows) ||
                                      allocator.starts_with(word(Allocator::file));
  said.sloped = by_formula && said.oneshot && text_in(params, "gqa.level") != word(GqaLevel::query);
  said.shares = !alone || values.shares_budget();
  if (method->host.protection == nullptr) return said;
  const Protect protect = method->host.protection(values.policy());
  said.protected_tokens = protect.sinks + protect.recent;
  return said;
}

// Rows of another version may have parameters that this version does not know: then nothing is declared.
const SeenCells::Declared& SeenCells::declared(const std::string& method, const std::string& params) {
  const std::string name = method + " " + params;
  const auto found = declared_.find(name);
  if (found != declared_.end()) return found->second;
  Declared said;
  try {
    said = declared_of(method, params);
  } catch (const std::exception&) {
    said = {};
  }
  return declared_.emplace(name, said).first->second;
}

uint32_t SeenCells::head_of(const Fields& row) {
  const std::string& trace = at(row, "trace_id");
  const uint32_t trace_place = place_of(trace_of_, trace, traces_.size());
  if (trace_place == traces_.size()) traces_.push_back(trace);
  const std::string place =
      fmt::format("prompt {}, layer {}, kv head {}", at(row, "prompt"), at(row, "layer"), at(row, "kv_head"));
  const uint32_t head = place_of(head_of_, trace + " " + place, heads_.size());
  if (head == heads_.size()) heads_.push_back({trace_place, place});
  return head;
}

void SeenCells::note_budget(const Fields& row, const Declared& said, SeenCell& cell) const {
  const int32_t prompt = count_at(row, "n_prefill"), tokens = count_at(row, "n_tokens");
  const int32_t evicted = count_at(row, "n_evictions");
  if (cell.budget >= tokens) return cell.set(NoteKind::budget_holds_all);
  if (said.oneshot && cell.budget >= prompt) return cell.set(NoteKind::budget_holds_prompt);
  if (!said.known || said.holds_all || at(row, "n_evictions").empty()) return;
  if (evicted == 0) return cell.set(NoteKind::nothing_evicted);
  // For a budget that follows from the layer, the cut shows its size, unless a sliding window dropped more.
  const int32_t cut_to = prompt - evicted;
  const bool shown = said.sloped && count_at(row, "peak_kept_tokens") == cut_to + tokens - prompt;
  const int32_t budget = shown ? cut_to : cell.budget;
  if (said.protected_tokens >= budget && said.protected_tokens > 0) cell.set(NoteKind::protection_fills_budget);
}

void SeenCells::add(const Fields& row) {
  if (at(row, "status") != "ok") return;
  SeenCell cell;
  cell.instance = instance_of(row);
  cell.head = head_of(row);
  cell.budget = count_at(row, "budget_tokens");
  cell.seed = at(row, "seed").empty() ? 0 : hash_of(at(row, "seed"));
  cell.numbers = numbers_of(row);
  const Declared& said = declared(at(row, "method"), at(row, "params"));
  cell.shares = said.shares;
  const std::string& error = at(row, "rel_err_out_mean");
  cell.has_error = !error.empty() && real_at(row, "rel_err_out_mean") > 0;
  cell.loses_mass = count_at(row, "n_evictions") > 0 && !at(row, "kept_mass_mean").empty() &&
                    real_at(row, "kept_mass_mean") < kMostMass;
  if (error.empty() && count_at(row, "rows_skipped") > 0) cell.set(NoteKind::outputs_zero);
  if (!error.empty() && real_at(row, "rel_err_out_mean") < kNoError) cell.set(NoteKind::outputs_constant);
  if (cell.budget > 0) note_budget(row, said, cell);
  if (said.sinks > 0 && window_is_full(row)) cell.set(NoteKind::sinks_leave_window);
  if (said.quantises && at(row, "n_quantised") == "0") cell.set(NoteKind::nothing_quantised);
  cells_.push_back(cell);
}

}  // namespace kvreplay
