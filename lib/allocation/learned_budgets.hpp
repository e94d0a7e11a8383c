#pragma once
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "allocation/head_scoring.hpp"

namespace kvreplay {

// Budgets that are learned from other prompts of the trace (calibration others or prompt:ID). By allocator lu_kv each
// of them is divided by its own curves, and a head gets the mean of the shares of the prompt that it had there; a
// method's own rule is told what a head says on all of them.
template <class Real>
class LearnedBudgets {
 public:
  // Both outlive it.
  LearnedBudgets(const SharingOptions& options, const HeadSource<Real>& heads) : options_(options), heads_(heads) {}

  bool is_for(const Cell& cell) const { return !cell.variant->calibration.empty(); }
  void add(const Cell& cell);
  void learn();  // from all that was added
  // layers: of the replayed prompt, as HeadSource::layers. Throws ConfigError.
  int32_t tokens(const Cell& cell, const std::vector<Place>& layers) const;

 private:
  // One budget on one calibration prompt, where a prompt of `replayed` tokens is to be cut.
  struct Lesson : Scoring {
    int32_t budget = 0, replayed = 0;
    std::vector<Place> at = {};                  // of each head
    std::vector<double> shares = {};             // of its prompt, by curves
    std::vector<std::vector<double>> said = {};  // to a method's rule
    void divide();
    void divide_by_curves();
  };
  using Name = std::tuple<std::string, size_t, int32_t, int32_t, uint32_t>;
  static Name name_of(const Cell& cell, const CalibrationPrompt& prompt) {
    return {prompt.id, cell.variant->instance, cell.budget.tokens, cell.extent.prompt_tokens, cell.seed.value_or(0)};
  }
  std::vector<int32_t> by_curves_of(const Cell& cell, const std::vector<const Lesson*>& lessons) const;
  std::vector<int32_t> by_rule_of(const Cell& cell, const std::vector<const Lesson*>& lessons) const;
  const SharingOptions& options_;
  const HeadSource<Real>& heads_;
  std::map<size_t, std::map<Name, Lesson>> lessons_;  // by trace
};

}  // namespace kvreplay
