#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocation/shared_budgets.hpp"

namespace kvreplay {

// What the heads of a prompt say where a budget is shared over them.
struct Scoring {
  SharedOver over;
  Cell cell;  // its method says what heads are worth, on the prompt of its place
  std::vector<HeadScores> heads = {};
  std::string lost = {};  // why they cannot all be scored
  // What common cuts have left so far, by layer and kv head, where heads cut together.
  std::map<std::pair<int32_t, int32_t>, TokenLists> cuts = {};

  // Where the rule of a model looks at every score: at those of each layer it always may.
  bool by_scores() const { return cell.method().host.shares != nullptr; }
  bool needs(int32_t layer) const { return lost.empty() && (over == SharedOver::model || layer == cell.place.layer); }
};

// The cells that wait for what the heads say.
struct SharedScoring : Scoring {
  std::vector<Cell*> cells = {};
  void list_lost(WithoutBudget& without) const {
    if (lost.empty()) return;
    for (const Cell* cell : cells) without[cell->key] = lost;
  }
};

// What tells the cells of one method instance and seed from others, at a budget.
std::string scoring_name(const Cell& cell, int32_t budget);

// A method with its defaults, which an allocator of `like` makes use of. Throws ConfigError where there is none.
MethodValues values_of(const Cell& like, const char* name);

// Whether heads are compared by how far they look in the prompt.
bool by_reach(const Cell& cell);

// Whether heads are compared by what their next token gains.
bool by_curves(const Cell& cell);

// The last prompt tokens that a method protects with this budget: an observation window, or its recent tokens.
int32_t window_of(const Cell& cell, int32_t budget);

// The cell whose method scores the prompt where `like` shares a budget. The rules of CAKE and DuoAttention
// stand in their own methods, which score for whoever uses the rule.
Cell scoring_cell(const Cell& like);

// Asks all heads of a prompt, whichever of them are to be replayed: a share does not depend on that. `ready` takes each
// whose heads have all spoken. layers: as HeadSource::layers.
template <class Real>
void score_prompt(const std::vector<Scoring*>& scorings, const std::vector<Place>& layers,
                  const SharingOptions& options, const HeadSource<Real>& heads,
                  const std::function<void(Scoring&)>& ready);

}  // namespace kvreplay
