#pragma once
#include <string>
#include <vector>

#include "catalog/method.hpp"
#include "core/calibration.hpp"

namespace kvreplay {

// An entry of `methods:`: a method with a value for every parameter. Some values still depend on the budget or the
// variant.
class MethodValues {
 public:
  explicit MethodValues(const Method& method) : method_(&method), policy_(method.defaults) { take_traits(); }

  const Method& method() const { return *method_; }
  // json: as for assign_parameter(). A file is stored as its path.
  void set(const ParameterSpec& spec, const std::string& json);
  const std::string& file() const { return file_; }  // path of the method's own file; "" if it has none
  // The text whose queries the method may use, if it has such a parameter; a file is its path.
  const Calibration& calibration() const { return calibration_; }
  // Sinks and recent become this share of the budget, each rounded down (option protect_ends).
  void protect_ends(double share) { ends_ = share; }
  bool protects_ends() const { return ends_ != kUnset; }
  double protected_ends() const { return ends_; }
  // Passes the scores of all heads to the method (hook hear). Its parameters do not change.
  void hear(const std::vector<HeadScores>& heads);

  const Traits& traits() const { return traits_; }
  bool shares_budget() const;  // by the method's rule; a head's tokens then depend on its layer or on other heads
  bool heads_differ(const CommonOptions& options) const;  // query heads attend to different tokens
  bool observes(const CommonOptions& options) const;      // the probabilities of every decode row
  OracleNeeds oracle_needs() const;
  bool sees_later_rows() const;                             // its cut of the prompt depends on rows behind the prompt
  CommonOptions default_options() const;                    // used if the configuration sets none
  std::string warning(const CommonOptions& options) const;  // shown before a run; "" if there is none

  const std::byte* policy() const { return policy_.data(); }
  // Canonical JSON {name: value} of the parameters that differ from the method's defaults. A file is its name without
  // the folder, so the result does not depend on where the file is.
  std::string given_json() const;

 protected:
  const HostHooks& host() const { return method_->host; }
  void take_traits();  // call after every change of the policy's parameters
  const Method* method_;
  std::vector<std::byte> policy_;
  Traits traits_;
  std::string file_;
  Calibration calibration_;
  double ends_ = kUnset;  // protect_ends
};

// A method's values resolved for one context: a policy that the engine can run.
class BoundMethod : public MethodValues {
 public:
  // Throws ParameterError if parameters contradict each other or the context.
  BoundMethod(const MethodValues& values, const MethodContext& context);

  const MethodContext& context() const { return context_; }
  Layout layout() const;
  PromptNeeds needs() const;
  PromptNeeds needs_at(int32_t seen) const;  // for a cut when `seen` tokens are known
  // Whether every cut reads the text so far as a prompt: one-shot scorers that cut again and again, and methods whose
  // statistics grow from chunk to chunk.
  bool reads_at_cuts() const;
  CutPlan cut_plan() const;    // as core/cut.hpp makes it for a method without a rule of its own
  Protect protection() const;  // prompt tokens that no selection may evict
  // Most rows after a step that the method guarantees; Traits::kUnbounded if it guarantees none.
  int64_t max_rows(const CommonOptions& options) const;
  std::vector<RngArray> rng_arrays() const;
  ErrorBound error_bound() const;
  std::optional<double> missed_bound(int32_t head) const;  // in the step that was just computed
  std::optional<ScoreRule> score_rule() const;
  std::string failure_text(int32_t code, int32_t at) const;
  // Give the policy its memory and its random numbers, where it has members for them.
  void bind_state(std::span<double> state) {
    if (host().bind_state != nullptr) host().bind_state(self(), state);
  }
  void bind_rng(const Rng& rng) {
    if (host().bind_rng != nullptr) host().bind_rng(self(), rng);
  }
  // The policy's bytes, as its hooks expect them.
  std::byte* self() { return policy_.data(); }

 private:
  MethodContext context_;
};

// The row format in the layer of the method's context.
RowFormat row_format_at(const BoundMethod& method, const CommonOptions& options);
// Whether the method, the merge rule or the layer's row format draws random numbers.
bool draws(const BoundMethod& method, const CommonOptions& options);

// Canonical JSON of the common options, named as in configurations.
std::string options_json(const CommonOptions& options);
// Digests of files' contents, which replace their names where known. given: the method's own file, or its lists.
struct FileDigests {
  std::string given, allocator, uniforms, calibration;
};
// JSON of the values and options that differ from the method's defaults. It identifies an instance.
std::string given_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files = {},
                       const std::string& later = "");
// JSON of all values and options in one object, with `uniforms` if the instance has them, how its budget grows, and the
// JSON of the method that decides after the prompt.
std::string params_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files = {},
                        const Growth& growth = {}, const std::string& later = "");

}  // namespace kvreplay
