#include "allocation/zigzag.hpp"

#include <algorithm>

namespace kvreplay {

void add_mass_tokens(const ZigZag& rule, HeadScores& head) {
  const int32_t lo = rule.lo > 0 ? rule.lo : protected_tokens(head);
  head.extras = {double(tokens_of_mass(head.scores, rule.mass)), double(lo)};
}

std::vector<int32_t> zigzag_tokens(const std::vector<HeadScores>& heads, int32_t budget, int32_t most) {
  std::vector<double> spread;
  std::vector<size_t> layer_of;
  std::vector<int32_t> heads_in;
  double starts_with = 0;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (i == 0 || heads[i].layer != heads[i - 1].layer) spread.push_back(0), heads_in.push_back(0);
    layer_of.push_back(spread.size() - 1);
    spread.back() += heads[i].extras.at(0), ++heads_in.back();
    starts_with = std::max(starts_with, heads[i].extras.at(1));
  }
  for (size_t l = 0; l < spread.size(); ++l) spread[l] /= heads_in[l];
  const int32_t lo = int32_t(std::min(starts_with, double(budget)));
  const std::vector<int32_t> more =
      proportional_tokens(spread, int64_t(budget - lo) * int64_t(spread.size()), most - lo);
  std::vector<int32_t> tokens;
  for (const size_t l : layer_of) tokens.push_back(lo + more[l]);
  return tokens;
}

}  // namespace kvreplay
