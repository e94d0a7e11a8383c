#pragma once
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "allocation/head_scoring.hpp"
#include "allocation/shared_budgets.hpp"
#include "core/share.hpp"

namespace kvreplay {

// Budgets that are calibrated on other prompts of the trace (calibration others or prompt:ID). With allocator lu_kv the
// budget of each calibration prompt is divided by that prompt's curves. A head then gets the mean of its shares, as
// fractions of the prompt. A method's own rule gets the extras of all calibration prompts, concatenated for each head.
template <class Real>
class CalibratedBudgets {
 public:
  // Keeps references to both arguments.
  CalibratedBudgets(const SharingOptions& options, const HeadSource<Real>& heads) : options_(options), heads_(heads) {}

  bool is_for(const Cell& cell) const { return !cell.variant->calibration.empty(); }
  void add(const Cell& cell);
  void learn();  // scores the calibration prompts of all added cells
  // layers: those of the replayed prompt, see HeadSource::layers. Throws ConfigError.
  int32_t tokens(const Cell& cell, const std::vector<Place>& layers) const;

 private:
  // One budget on one calibration prompt; `replayed` is the length of the prompt that will be cut, in tokens.
  struct Lesson : Scoring {
    int32_t budget = 0, replayed = 0;
    std::vector<Place> at = {};                  // place of each head
    std::vector<double> shares = {};             // [heads] fraction of its prompt, by curves
    std::vector<std::vector<double>> said = {};  // [heads] extras for the method's rule
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
  std::map<size_t, std::map<Name, Lesson>> scorings_by_trace_;  // by trace
};

// Divides the budget of `like` by how far its heads look, measured by their scores. Allocator duo makes the heads that
// look least far stream; headkv gives more tokens to heads that look far. looking: the method that scored the heads.
void share_by_reach(const Cell& like, const BoundMethod& looking, const std::vector<HeadScores>& heads,
                    const std::vector<Receiver>& to);

// Heads that stream hold `ends` at every step, and the others share the rest of the budget of `like` equally. streams:
// for each head that shares. Throws ConfigError if nothing is left for the others.
void share_with_streaming(const Cell& like, Protect ends, const std::vector<bool>& streams,
                          const std::vector<Receiver>& to);

// Allocator headkv with a file of head importance. layers: see HeadSource::layers.
void share_by_importance(Cell& cell, const std::vector<Place>& layers);

}  // namespace kvreplay
