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
  if (values.protects_ends()) all.add("protect_ends", values.protected_ends());
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
  if (values.protects_ends()) given.add("protect_ends", values.protected_ends());
  return given;
}

// The options of serving that are set.
void add_serving(const Serving& s, JsonObject& all) {
  if (s.cut_every > 0) all.add("cut_every", s.cut_every);
  if (s.recut) all.add("recut", "turns");
  if (s.cut_in_budget) all.add("cut_in_budget", true);
  if (s.keep_prompt) all.add("keep_prompt", true);
  if (s.prefill_chunk > 0) all.add("prefill_chunk", s.prefill_chunk);
  if (!s.pages.any()) return;
  all.add("page", s.pages.size).add("evict", word(s.pages.evict)).add("page_heads", word(s.pages.heads));
  if (s.pages.whole()) all.add("page_score", word(s.pages.score));
  if (s.pages.compact) all.add("compact", true);
  if (s.pages.in_budget) all.add("page_in_budget", true);
}

JsonObject options_object(const CommonOptions& o) {
  JsonObject all;
  all.add("phase", word(o.phase)).add("gqa.level", word(o.gqa_level)).add("gqa.agg", word(o.gqa_aggregate));
  all.add("positions", word(o.positions)).add("order", word(o.order)).add("reweight", word(o.reweight));
  all.add_json("allocator", allocator_json(o));
  all.add_json("row_format", row_format_json(o.row_format));
  if (!o.wrapper.is_none()) all.add_json("wrapper", wrapper_json(o.wrapper));
  if (!o.merge.is_none()) all.add_json("merge", merge_json(o.merge));
  if (!o.think.is_none()) all.add_json("think", think_json(o.think));
  if (o.prompt != PromptMode::as_run) all.add("prompt", word(o.prompt));
  add_serving(o.serving, all);
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
  return (options.phase == Phase::stream || options.serving.prefill_chunk > 0) && traits_.observes;
}
bool MethodValues::sees_later_rows() const {
  const PromptNeeds needs = host().needs != nullptr ? host().needs(policy(), MethodContext{}) : PromptNeeds{};
  return needs.future_sums || needs.rows_ahead > 0;
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
  constexpr int32_t kSmallestPage = 8;
  if (const Pages& pages = options.serving.pages; pages.any() && pages.size < kSmallestPage)
    return "engines store pages of 8 to 128 tokens: page " + std::to_string(pages.size) + " is smaller";
  const bool streams = options.phase == Phase::stream && *traits_.warning_when_streaming != 0;
  return streams ? traits_.warning_when_streaming : traits_.warning;
}

std::string MethodValues::given_json() const { return given_object(*this).text(); }

BoundMethod::BoundMethod(const MethodValues& values, const MethodContext& context)
    : MethodValues(values), context_(context) {
  if (protects_ends())
    for (const char* end : {"sinks", "recent"})
      assign_parameter(*method().parameter(end), std::to_string(int32_t(ends_ * context.budget.tokens + 1e-9)),
                       policy_.data());
  host().resolve(policy_.data(), context);
  take_traits();
}
Layout BoundMethod::layout() const {
  MethodContext context = context_;
  if (reads_at_cuts() && context.phase == Phase::stream) context.prompt_tokens = context.tokens;  // a later cut
  return host().layout != nullptr ? host().layout(policy(), context) : Layout{};
}
PromptNeeds BoundMethod::needs() const { return needs_at(context_.prompt_tokens); }
PromptNeeds BoundMethod::needs_at(int32_t seen) const {
  MethodContext context = context_;
  context.prompt_tokens = seen;
  return host().needs != nullptr ? host().needs(policy(), context) : PromptNeeds{};
}
bool BoundMethod::reads_at_cuts() const {
  const Serving& serving = context_.serving;
  if (!method_->hooks.has(Hook::read_prompt) || traits_.observes) return false;
  if (!method_->info.streams) return serving.prefill_chunk > 0 || context_.phase == Phase::stream;
  return serving.prefill_chunk > 0 && needs().known.any();
}
CutPlan BoundMethod::cut_plan() const { return plan_cuts(context_); }
Protect BoundMethod::protection() const {
  return host().protection != nullptr ? host().protection(policy()) : Protect{};
}
int64_t BoundMethod::max_rows(const CommonOptions& options) const {
  const bool chunked = context_.serving.prefill_chunk > 0;
  if (!method_->info.takes_budget || traits_.holds_all || options.phase != Phase::stream) return Traits::kUnbounded;
  if (const CutPlan plan = cut_plan(); method_->info.selects && (chunked || !plan.is_plain()))
    return std::max(plan.most_rows(context_.tokens), traits_.max_rows);
  return traits_.max_rows != Traits::kUnbounded ? traits_.max_rows : context_.budget.tokens;
}
std::vector<RngArray> BoundMethod::rng_arrays() const {
  return host().rng_arrays != nullptr ? host().rng_arrays(policy(), context_) : std::vector<RngArray>{};
}
ErrorBound BoundMethod::error_bound() const {
  return host().error_bound != nullptr ? host().error_bound(policy()) : ErrorBound{};
}
std::optional<double> BoundMethod::missed_bound(int32_t head) const {
  return host().missed_bound != nullptr ? std::optional(host().missed_bound(policy(), head)) : std::nullopt;
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

std::string given_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files,
                       const std::string& later) {
  JsonObject given = given_object(values, files);
  CommonOptions named = options;
  if (!files.allocator.empty()) named.allocator_file = files.allocator;
  if (!later.empty()) given.add_json("then", later);
  return given.add_all(options_object(named).without(options_object(values.default_options()))).text();
}

std::string params_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files,
                        const Growth& growth, const std::string& later) {
  JsonObject all = parameters_object(values, files);
  CommonOptions named = options;
  if (!files.allocator.empty()) named.allocator_file = files.allocator;
  if (!files.uniforms.empty()) all.add("uniforms", files.uniforms);
  if (growth.any()) all.add("ratio_of_seen", growth.ratio).add("floor", growth.floor);
  if (!later.empty()) all.add_json("then", later);
  return all.add_all(options_object(named)).text();
}

}  // namespace kvreplay
