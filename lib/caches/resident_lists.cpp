#include "caches/resident_lists.hpp"

#include <algorithm>
#include <map>

#include "formats/registry.hpp"

namespace kvreplay {

ListReading reading_of(const BoundMethod& method, const CommonOptions& options) {
  const Hooks hooks = method.method().hooks;
  const Layout own = method.layout();
  const bool appends = hooks.has(Hook::append), chooses = method.traits().chooses;
  // True if the cache after a step equals the set that the step attends to: no later eviction, no change of weights.
  const bool weighs_later = hooks.has(Hook::observe) && own.weights;
  const bool ends_as_attended = options.phase == Phase::stream && !weighs_later &&
                                (options.order == Order::evict_then_attend || (appends && !hooks.has(Hook::evict)));
  ListReading r;
  r.attends = !chooses && ends_as_attended;
  // A step's token joins with weight 1, unless the policy's append() gives it another weight.
  const bool joins_unknown = !chooses && !r.attends && appends && own.weights;
  // Rows of one token differ if they were coded in different blocks or at different times.
  const bool unlike_rows = own.extra_rows > 0 && waits(options.row_format);
  r.partial = method.traits().changes_logits || (chooses && own.weights) || method.method().single.samples ||
              joins_unknown || unlike_rows;
  return r;
}

template <class Real>
void ResidentLists::add(std::span<const int32_t> tokens, std::span<const Real> weights_num,
                        std::span<const Real> weights_den) {
  std::map<int32_t, std::pair<double, double>> weights;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= 0) {
      std::pair<double, double>& w = weights[tokens[i]];
      if (!weights_num.empty()) w.first += double(weights_num[i]), w.second += double(weights_den[i]);
    }
  for (const auto& [token, w] : weights) {
    kept.flat.push_back(token);
    if (!weights_num.empty()) num.push_back(w.first), den.push_back(w.second);
  }
  kept.close();
}

void ResidentLists::add_attended(size_t head, std::span<const int32_t> tokens, std::span<const uint8_t> chosen) {
  TokenLists& to = attended[head];
  to.flat.insert(to.flat.end(), tokens.begin(), tokens.end());
  to.close();
  if (std::find(chosen.begin(), chosen.end(), kWeighed) != chosen.end()) reading.partial = true;
}

template void ResidentLists::add(std::span<const int32_t>, std::span<const float>, std::span<const float>);
template void ResidentLists::add(std::span<const int32_t>, std::span<const double>, std::span<const double>);

}  // namespace kvreplay
