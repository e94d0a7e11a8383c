#include "allocation/common_cuts.hpp"

#include <algorithm>
#include <memory>

#include "base/errors.hpp"

namespace kvreplay {

void CommonCutsOfPrompt::add(Cell& cell) {
  const std::string name = scoring_name(cell, cell.budget.tokens);
  all_.try_emplace(name, Together{{{SharedOver::model, cell}}}).first->second.cells.push_back(&cell);
}

std::vector<std::vector<int32_t>> CommonCutsOfPrompt::Together::ask() const {
  try {
    return cell.method().host.cut_together(cell.variant->values.policy(), heads);
  } catch (const ParameterError& e) {
    throw ConfigError(std::string(cell.method().info.name) + ": " + e.what());
  }
}

// Adds one more list for each head, or closes the search if no head is to be cut any more.
void CommonCutsOfPrompt::Together::cut() {
  const auto asks = [](const HeadScores& head) { return !head.scores.empty(); };
  is_open = std::any_of(heads.begin(), heads.end(), asks);
  if (!is_open) return;
  const auto rows = ask();
  for (size_t h = 0; h < heads.size(); ++h) {
    TokenLists& of_head = cuts[{heads[h].layer, heads[h].kv_head}];
    for (const int32_t row : rows[h]) of_head.flat.push_back(heads[h].tokens[size_t(row)]);
    of_head.close();
  }
}

void CommonCutsOfPrompt::Together::give() const {
  for (Cell* one : cells)
    if (const auto own = cuts.find({one->place.layer, one->place.kv_head}); own != cuts.end())
      one->common_cuts = std::make_shared<const TokenLists>(own->second);
}

template <class Real>
void CommonCutsOfPrompt::find(const std::vector<Place>& layers, const SharingOptions& options,
                              const HeadSource<Real>& heads) {
  const auto open = [&] {
    std::vector<Scoring*> some;
    for (auto& [name, together] : all_)
      if (together.is_open && together.lost.empty()) some.push_back(&together);
    return some;
  };
  for (auto asked = open(); !asked.empty() && !(options.stop && options.stop()); asked = open())
    score_prompt<Real>(asked, layers, options, heads, [](Scoring& of) { static_cast<Together&>(of).cut(); });
  for (const auto& [name, together] : all_) together.give();
}

void CommonCutsOfPrompt::list_lost(WithoutBudget& without) const {
  for (const auto& [name, together] : all_) together.list_lost(without);
}

template void CommonCutsOfPrompt::find(const std::vector<Place>&, const SharingOptions&, const HeadSource<float>&);
template void CommonCutsOfPrompt::find(const std::vector<Place>&, const SharingOptions&, const HeadSource<double>&);

}  // namespace kvreplay
