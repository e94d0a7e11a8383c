#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocation/shared_budgets.hpp"

namespace kvreplay {

// The scores of a prompt's heads, for a budget that heads share.
struct Scoring {
  SharedOver over;
  Cell cell;  // its method scores the heads, on the prompt of its place
  std::vector<HeadScores> heads = {};
  std::string lost = {};  // why some head cannot be scored; "" if all can
  // Tokens that the common cuts found so far keep, by layer and kv head, for heads that cut together.
  std::map<std::pair<int32_t, int32_t>, TokenLists> cuts = {};

  // Whether a rule over the whole model reads every score. A rule over a layer always may.
  bool by_scores() const { return cell.variant->values.traits().share_reads_scores; }
  bool needs(int32_t layer) const { return lost.empty() && (over == SharedOver::model || layer == cell.place.layer); }
};

// The cells that wait for the heads' scores.
struct SharedScoring : Scoring {
  std::vector<Cell*> cells = {};
  void list_lost(WithoutBudget& without) const {
    if (lost.empty()) return;
    for (const Cell* cell : cells) without[cell->key] = lost;
  }
};

// Identifies the cells of one method instance and seed at a budget.
std::string scoring_name(const Cell& cell, int32_t budget);

// A method with its defaults, for use by an allocator of `like`. Throws ConfigError if the program was built without
// the method.
MethodValues values_of(const Cell& like, const char* name);

// Whether heads are compared by how far they look in the prompt.
bool by_reach(const Cell& cell);

// Whether heads are compared by what each further token gains.
bool by_curves(const Cell& cell);

// Whether layers are compared by the number of tokens that hold most of their scores.
bool by_masses(const Cell& cell);

// Number of last prompt tokens that a method protects with this budget: an observation window, or its recent tokens.
int32_t window_of(const Cell& cell, int32_t budget);

// The cell whose method scores the prompt when `like` shares a budget. The rules of CAKE and DuoAttention score by
// their own methods, whichever method uses the rule.
Cell scoring_cell(const Cell& like);

// Scores all heads of a prompt, including those that are not replayed: a share must not depend on the selection.
// `ready` is called for each scoring whose heads are all scored. layers: see HeadSource::layers.
template <class Real>
void score_prompt(const std::vector<Scoring*>& scorings, const std::vector<Place>& layers,
                  const SharingOptions& options, const HeadSource<Real>& heads,
                  const std::function<void(Scoring&)>& ready);

// The cells of one prompt whose heads cut together during decoding (hook cut_together). Their cuts are found before the
// replay, one after the other. For each cut, every head is replayed up to it with the cuts that are already known, and
// states its scores. Then every cell gets the lists of tokens that the cuts keep.
class CommonCutsOfPrompt {
 public:
  void add(Cell& cell);
  // layers: see HeadSource::layers.
  template <class Real>
  void find(const std::vector<Place>& layers, const SharingOptions& options, const HeadSource<Real>& heads);
  void list_lost(WithoutBudget& without) const;

 private:
  // Cells of one method instance, budget and seed.
  struct Together : SharedScoring {
    bool is_open = true;  // another cut may follow
    std::vector<std::vector<int32_t>> ask() const;
    void cut();
    void give() const;
  };
  std::map<std::string, Together> all_;
};

}  // namespace kvreplay
