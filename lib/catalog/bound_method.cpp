#include "catalog/bound_method.hpp"

#include <algorithm>

#include "base/json_text.hpp"
#include "formats/registry.hpp"

namespace kvreplay {
namespace {

// JSON of a file's name without its folder, so that the result does not depend on where the file is.
std::string file_json(const std::string& path) {
  return path.empty() ? "null" : json_text(path.substr(path.rfind('/') + 1));
}

// Names a calibration file by its digest if that is known.
std::string calibration_json(Calibration c, const std::string& digest) {
  if (c.source == Calibration::Source::file) c.name = digest.empty() ? c.name.substr(c.name.rfind('/') + 1) : digest;
  return json_of(word(c));
}

std::string value_json(const ParameterSpec& spec, const MethodValues& values, const FileDigests& files) {
  if (spec.kind == ParameterSpec::Kind::calibration) return calibration_json(values.calibration(), files.calibration);
  if (spec.kind != ParameterSpec::Kind::file) return parameter_json(spec, values.policy());
  return files.given.empty() ? file_json(values.file()) : json_of(files.given);
}
JsonObject parameters_object(const MethodValues& values, const FileDigests& files) {
  JsonObject all;
  for (const ParameterSpec& spec : values.method().parameters) all.add_json(spec.name, value_json(spec, values, files));
  return all;
}
std::string changed_json(const ParameterSpec& spec, const MethodValues& values, const FileDigests& files) {
  if (spec.kind == ParameterSpec::Kind::calibration)
    return values.calibration().is_offline() ? value_json(spec, values, files) : "";
  if (spec.kind == ParameterSpec::Kind::file) return values.file().empty() ? "" : file_json(values.file());
  return given_json(spec, values.policy(), values.method().defaults.data());
}
JsonObject given_object(const MethodValues& values, const FileDigests& files = {}) {
  JsonObject given;
  for (const ParameterSpec& spec : values.method().parameters)
    if (const std::string json = changed_json(spec, values, files); !json.empty()) given.add_json(spec.name, json);
  return given;
}

JsonObject options_object(const CommonOptions& o) {
  JsonObject all;
  all.add("phase", word(o.phase)).add("gqa.level", word(o.gqa_level)).add("gqa.agg", word(o.gqa_aggregate));
  all.add("positions", word(o.positions)).add("order", word(o.order)).add("reweight", word(o.reweight));
  all.add_json("allocator", allocator_json(o));
  all.add_json("row_format", row_format_json(o.row_format));
  if (!o.wrapper.is_none()) all.add_json("wrapper", wrapper_json(o.wrapper));
  if (!o.merge.is_none()) all.add_json("merge", merge_json(o.merge));
  if (o.prompt != PromptMode::as_run) all.add("prompt", word(o.prompt));
  return all;
}

}  // namespace

void MethodValues::set(const ParameterSpec& spec, const std::string& json) {
  if (spec.kind == ParameterSpec::Kind::file) file_ = parse_json_string(json);
  else if (spec.kind == ParameterSpec::Kind::calibration)
    (void)parse_calibration(parse_json_string(json), calibration_);
  else assign_parameter(spec, json, policy_.data()), take_traits();
}

void MethodValues::hear(const std::vector<HeadScores>& heads) {
  if (host().hear != nullptr) host().hear(policy_.data(), heads), take_traits();
}

void MethodValues::take_traits() {
  const MethodInfo& info = method_->info;
  const Hooks hooks = method_->hooks;
  traits_ = {};
  traits_.takes_budget = info.takes_budget, traits_.holds_all = info.reads_full_cache;
  traits_.implied_layout = info.implied_layout, traits_.shared_over = info.shared_over, traits_.warning = info.warning;
  traits_.observes = hooks.has(Hook::observe), traits_.chooses = hooks.has(Hook::choose);
  traits_.changes_logits = hooks.has(Hook::logit_factor);
  if (host().traits != nullptr) host().traits(policy(), traits_);
}
bool MethodValues::shares_budget() const { return method_->shares_budget && traits_.shared_over != SharedOver::none; }
bool MethodValues::heads_differ(const CommonOptions& options) const {
  return options.gqa_level == GqaLevel::query || traits_.heads_differ;
}
bool MethodValues::observes(const CommonOptions& options) const {
  return options.phase == Phase::stream && traits_.observes;
}
OracleNeeds MethodValues::oracle_needs() const {
  return host().oracle_needs != nullptr ? host().oracle_needs(policy()) : OracleNeeds{};
}
CommonOptions MethodValues::default_options() const {
  CommonOptions options;
  options.phase = method_->info.default_phase;
  options.positions = method_->info.default_positions;
  if (host().set_options != nullptr) host().set_options(policy(), options);
  return options;
}
std::string MethodValues::warning(const CommonOptions& options) const {
  const bool streams = options.phase == Phase::stream && *traits_.warning_when_streaming != 0;
  return streams ? traits_.warning_when_streaming : traits_.warning;
}

std::string MethodValues::given_json() const { return given_object(*this).text(); }

BoundMethod::BoundMethod(const MethodValues& values, const MethodContext& context)
    : MethodValues(values), context_(context) {
  host().resolve(policy_.data(), context);
  take_traits();
}
Layout BoundMethod::layout() const { return host().layout != nullptr ? host().layout(policy(), context_) : Layout{}; }
PromptNeeds BoundMethod::needs() const {
  return host().needs != nullptr ? host().needs(policy(), context_) : PromptNeeds{};
}
Protect BoundMethod::protection() const {
  return host().protection != nullptr ? host().protection(policy()) : Protect{};
}
int64_t BoundMethod::max_rows(const CommonOptions& options) const {
  if (!method_->info.takes_budget || traits_.holds_all || options.phase != Phase::stream) return Traits::kUnbounded;
  return traits_.max_rows != Traits::kUnbounded ? traits_.max_rows : context_.budget.tokens;
}
std::vector<RngArray> BoundMethod::rng_arrays() const {
  return host().rng_arrays != nullptr ? host().rng_arrays(policy(), context_) : std::vector<RngArray>{};
}
ErrorBound BoundMethod::error_bound() const {
  return host().error_bound != nullptr ? host().error_bound(policy()) : ErrorBound{};
}
std::optional<ScoreRule> BoundMethod::score_rule() const {
  return host().score_rule != nullptr ? host().score_rule(policy()) : std::nullopt;
}
std::string BoundMethod::failure_text(int32_t code, int32_t at) const {
  if (host().failure_text != nullptr) return host().failure_text(code, at);
  return "the method failed at " + std::to_string(at);
}

RowFormat row_format_at(const BoundMethod& method, const CommonOptions& options) {
  return at_layer(options.row_format, method.context().layer, method.context().n_layers);
}
bool draws(const BoundMethod& method, const CommonOptions& options) {
  return method.traits().random || options.merge.random() || is_random(row_format_at(method, options));
}

std::string options_json(const CommonOptions& options) { return options_object(options).text(); }

std::string given_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files) {
  JsonObject given = given_object(values, files);
  CommonOptions named = options;
  if (!files.allocator.empty()) named.allocator_file = files.allocator;
  return given.add_all(options_object(named).without(options_object(values.default_options()))).text();
}

std::string params_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files) {
  JsonObject all = parameters_object(values, files);
  CommonOptions named = options;
  if (!files.allocator.empty()) named.allocator_file = files.allocator;
  if (!files.uniforms.empty()) all.add("uniforms", files.uniforms);
  return all.add_all(options_object(named)).text();
}

}  // namespace kvreplay
