#pragma once
#include <string>
#include <vector>

#include "catalog/method.hpp"
#include "core/calibration.hpp"

namespace kvreplay {

// A method with a value for every parameter, of which some still follow from the budget or a variant: what an
// entry of `methods:` comes to.
class MethodValues {
 public:
  explicit MethodValues(const Method& method) : method_(&method), policy_(method.defaults) {}

  const Method& method() const { return *method_; }
  // json: as assign_parameter() takes it. A file is remembered by its path.
  void set(const ParameterSpec& spec, const std::string& json);
  const std::string& file() const { return file_; }  // of the parameter that names one; "": none
  // Whose queries it knows, where it has a parameter for that; a file by its path.
  const Calibration& calibration() const { return calibration_; }
  // What the heads said by which each of them decides (hook hear). No parameter changes.
  void hear(const std::vector<HeadScores>& heads);

  // What the instance says of itself, or what follows from its method's hooks where it says nothing.
  bool takes_budget() const;
  SharedOver shared_over() const;  // by a rule of its own
  bool shares_budget() const;      // likewise: a head's tokens depend on its layer or on other heads
  bool learns_heads() const;       // by what heads say on the prompts of its calibration
  bool random() const;             // repeats over seeds
  bool streams_prompt() const;
  bool chooses() const;  // query-time: reads some rows of its cache only
  bool changes_logits() const;
  bool holds_all() const;
  bool implied_layout() const;
  bool heads_differ(const CommonOptions& options) const;  // each query head attends to tokens of its own choice
  bool observes(const CommonOptions& options) const;      // the probabilities of every decode row
  OracleNeeds oracle_needs() const;
  CommonOptions default_options() const;                    // where the configuration gives none
  std::string warning(const CommonOptions& options) const;  // worth saying before a run, or ""

  const std::byte* policy() const { return policy_.data(); }
  // Canonical JSON {name: value} of the parameters that are not the method's defaults; a file by its name alone, so
  // that it is the same wherever it lies.
  std::string given_json() const;

 protected:
  const HostHooks& host() const { return method_->host; }
  const Method* method_;
  std::vector<std::byte> policy_;
  std::string file_;
  Calibration calibration_;
};

// A method's values resolved for one context: a policy that the engine can run.
class BoundMethod : public MethodValues {
 public:
  // Throws ParameterError where parameters contradict each other or the context.
  BoundMethod(const MethodValues& values, const MethodContext& context);

  const MethodContext& context() const { return context_; }
  Layout layout() const;
  PromptNeeds needs() const;
  Protect protection() const;  // prompt tokens that no selection may drop
  // Rows that it may hold after a step, where somebody promises a bound.
  bool is_bounded(const CommonOptions& options) const;
  int64_t max_rows() const;
  std::vector<RngArray> rng_arrays() const;
  ErrorBound error_bound() const;
  std::optional<ScoreRule> score_rule() const;
  std::string failure_text(int32_t code, int32_t at) const;
  // Bytes of a policy, which its hooks take.
  std::byte* self() { return policy_.data(); }

 private:
  MethodContext context_;
};

// As the layer of the method's context stores its rows.
RowFormat row_format_at(const BoundMethod& method, const CommonOptions& options);
// Whether the method or the layer's row format draws random numbers.
bool draws(const BoundMethod& method, const CommonOptions& options);

// Canonical JSON of the common options, as configurations name them.
std::string options_json(const CommonOptions& options);
// What stands for the names of files, where it is known: digests of what they say.
struct FileDigests {
  std::string lists, allocator, uniforms, calibration;
};
// Of values and options together those that are not what the method takes by default: what tells an instance
// from others.
std::string given_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files = {});
// All values and options in one object, and `uniforms` if the instance has some.
std::string params_json(const MethodValues& values, const CommonOptions& options, const FileDigests& files = {});

}  // namespace kvreplay
