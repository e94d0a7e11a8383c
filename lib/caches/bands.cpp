#include "caches/bands.hpp"

#include <algorithm>
#include <bit>

namespace kvreplay {
namespace {

using Run = Residency::Run;

bool stays(const Run& run) { return run.until == Residency::kStays; }

// Iterates over one member's runs that are not evicted within the residency.
class Walk {
 public:
  explicit Walk(const Residency* held)
      : at_(held ? held->runs.begin() : none().begin()), end_(held ? held->runs.end() : none().end()) {
    skip();
  }
  bool holds(int32_t token) const { return at_ != end_ && at_->first <= token; }
  const Run& run() const { return *at_; }
  // The next token after `token` at which a run begins or the current run ends; kStays if there is none.
  int32_t next(int32_t token) const {
    if (at_ == end_) return Residency::kStays;
    return at_->first > token ? at_->first : at_->last;
  }
  void pass(int32_t token) {
    if (at_ != end_ && at_->last <= token) ++at_, skip();
  }

 private:
  static const std::vector<Run>& none() {
    static const std::vector<Run> empty;
    return empty;
  }
  void skip() {
    while (at_ != end_ && !stays(*at_)) ++at_;
  }
  std::vector<Run>::const_iterator at_, end_;
};

class Collector {
 public:
  // Adds consecutive tokens first..last-1 that these members hold at these weights.
  void add(int32_t first, int32_t last, uint64_t members, const std::vector<Band::Weights>& weights) {
    const auto same = [&](const Band& b) { return b.members == members && b.weights == weights; };
    if (latest_ >= bands.size() || !same(bands[latest_])) {
      const auto found = std::find_if(bands.begin(), bands.end(), same);
      latest_ = size_t(found - bands.begin());
      if (found == bands.end()) bands.push_back({members, weights, {}, {}, {}});
    }
    std::vector<Band::Tokens>& tokens = bands[latest_].tokens;
    if (!tokens.empty() && tokens.back().last == first) tokens.back().last = last;
    else tokens.push_back({first, last});
  }
  std::vector<Band> bands;

 private:
  size_t latest_ = 0;
};

std::vector<Band> shared_bands(const std::vector<const Residency*>& members) {
  std::vector<Walk> walks;
  for (const Residency* held : members) walks.emplace_back(held);
  Collector collector;
  std::vector<Band::Weights> weights;
  const auto first_of = [&](int32_t after) {
    int32_t next = Residency::kStays;
    for (const Walk& walk : walks) next = std::min(next, walk.next(after));
    return next;
  };
  for (int32_t token = first_of(-1); token != Residency::kStays;) {
    const int32_t end = first_of(token);
    uint64_t in = 0;
    bool plain = true;
    weights.clear();
    for (size_t m = 0; m < walks.size(); ++m) {
      if (!walks[m].holds(token)) continue;
      in |= uint64_t{1} << m;
      weights.push_back({walks[m].run().num, walks[m].run().den});
      plain = plain && walks[m].run().plain();
    }
    if (plain) weights.clear();
    if (in != 0) collector.add(token, end, in, weights);
    for (Walk& walk : walks) walk.pass(end);
    token = end;
  }
  return std::move(collector.bands);
}

// One member's runs, either those that stay or those that do not.
Band own_band(const Residency& held, size_t member, bool what_stays) {
  Band band;
  band.members = uint64_t{1} << member;
  bool plain = true;
  for (const Run& run : held.runs) {
    if (stays(run) != what_stays) continue;
    band.tokens.push_back({run.first, run.last});
    band.weights_of.push_back({run.num, run.den});
    if (!what_stays) band.until.push_back(run.until);
    plain = plain && run.plain();
  }
  if (plain) band.weights_of.clear();
  return band;
}

int64_t cost_of(const std::vector<Band>& bands, int32_t band_cost) {
  int64_t cost = 0;
  for (const Band& band : bands) cost += band.size() + band_cost;
  return cost;
}

std::vector<Band> own_bands(const std::vector<const Residency*>& members, bool what_stays) {
  std::vector<Band> bands;
  for (size_t m = 0; m < members.size(); ++m) {
    if (members[m] == nullptr) continue;
    Band band = own_band(*members[m], m, what_stays);
    if (!band.tokens.empty()) bands.push_back(std::move(band));
  }
  return bands;
}

}  // namespace

Band::Weights Band::of(size_t member) const {
  if (weights.empty()) return {};
  return weights[size_t(std::popcount(members & ((uint64_t{1} << member) - 1)))];
}

std::vector<Band> find_bands(const std::vector<const Residency*>& members, int32_t band_cost) {
  std::vector<Band> bands = shared_bands(members);
  if (std::vector<Band> apart = own_bands(members, true); cost_of(apart, band_cost) < cost_of(bands, band_cost))
    bands = std::move(apart);
  for (Band& band : own_bands(members, false)) bands.push_back(std::move(band));
  return bands;
}

}  // namespace kvreplay
