#include "sizing/share_search.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr size_t kPatience = 6;  // sizes that are tried before bisection joins the line through two of them

}  // namespace

std::vector<int32_t> ShareSearch::next(double share, int32_t near) const {
  if (tried_.empty()) return first(share, near);
  const auto found = std::find_if(tried_.rbegin(), tried_.rend(), [&](const auto& one) { return fits(one, share); });
  if (found == tried_.rend()) return below(share);
  const auto fitting = std::prev(found.base()), beyond = found.base();
  if (fitting->first == most_) return {};
  if (beyond == tried_.end()) return above(fitting, share);
  return beyond->first == fitting->first + 1 ? ahead(fitting->first) : between(*fitting, *beyond, share);
}

std::optional<int32_t> ShareSearch::answer(double share) const {
  for (auto one = tried_.rbegin(); one != tried_.rend(); ++one)
    if (fits(*one, share)) return one->first;
  return std::nullopt;
}

std::optional<double> ShareSearch::floor() const {
  std::optional<double> least;
  for (const auto& [tokens, share] : tried_)
    if (share) least = std::min(*share, least.value_or(*share));
  return least;
}

std::vector<int32_t> ShareSearch::first(double share, int32_t near) const {
  if (near > 0 && near < most_)
    return untried({near, near + int64_t{1}});  // a budget found for a longer text may
                                                // exceed this one
  return untried({least_, guess(share)});
}

int32_t ShareSearch::guess(double share) const {
  return std::max(least_, int32_t(std::llround(std::floor(share * most_))));
}

// No size that exceeds the share is known: extrapolates the line through the known sizes.
std::vector<int32_t> ShareSearch::above(Tried::const_iterator fitting, double share) const {
  double slope = 0;
  for (auto other = tried_.begin(); other != fitting; ++other)
    if (other->second) slope = (*fitting->second - *other->second) / (fitting->first - other->first);
  const double more = slope > 0 ? std::floor((share - *fitting->second) / slope) : double(most_);
  const int64_t guess = fitting->first + int64_t(std::clamp(more, 1.0, double(most_)));
  return untried({std::min<int64_t>(guess, most_), std::min<int64_t>(guess + 1, most_)});
}

std::vector<int32_t> ShareSearch::between(const Tried::value_type& fitting, const Tried::value_type& beyond,
                                          double share) const {
  const int64_t middle = (int64_t(fitting.first) + beyond.first) / 2;
  std::vector<int64_t> budgets;
  if (beyond.second) {
    const double rise = *beyond.second - *fitting.second;  // above 0: one fits, the other does not
    const double part = (share - *fitting.second) / rise * double(beyond.first - fitting.first);
    const int64_t guess = fitting.first + int64_t(std::floor(part));
    budgets = {std::min<int64_t>(guess, beyond.first - 1), std::min<int64_t>(guess + 1, beyond.first - 1)};
  }
  if (!beyond.second || tried_.size() > kPatience) budgets.push_back(middle);
  return untried(budgets);
}

// No size that fits is known.
std::vector<int32_t> ShareSearch::below(double share) const {
  const auto sized = std::find_if(tried_.begin(), tried_.end(), [](const auto& one) { return one.second.has_value(); });
  if (sized == tried_.end()) {  // no tried budget can be replayed
    const int64_t larger = std::max<int64_t>(tried_.rbegin()->first * int64_t{2}, least_);
    return untried({least_, std::min<int64_t>(larger, most_)});
  }
  if (sized != tried_.begin()) {  // smaller budgets cannot be replayed
    const int64_t bottom = std::prev(sized)->first;
    return untried({(bottom + sized->first) / 2});
  }
  if (sized->first == least_) return {};
  const int64_t guess = int64_t(std::floor(double(sized->first) * share / *sized->second));
  return untried({least_, std::clamp<int64_t>(guess, least_, sized->first - 1), sized->first - int64_t{1}});
}

std::vector<int32_t> ShareSearch::ahead(int32_t fitting) const {
  if (block_ == 0) return {};
  std::vector<int64_t> budgets;
  for (int64_t edge = fitting / block_ + 1; edge <= fitting / block_ + 2; ++edge)
    for (int64_t beside = -1; beside <= 1; ++beside)
      if (edge * block_ + beside > fitting) budgets.push_back(edge * block_ + beside);
  return untried(budgets);
}

std::vector<int32_t> ShareSearch::untried(const std::vector<int64_t>& budgets) const {
  std::vector<int32_t> all;
  for (const int64_t tokens : budgets)
    if (tokens >= least_ && tokens <= most_ && tried_.count(int32_t(tokens)) == 0) all.push_back(int32_t(tokens));
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace kvreplay
