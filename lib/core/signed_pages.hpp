#pragma once
#include <cmath>

#include "core/policy.hpp"

namespace kvreplay {

// Pages of neighbouring rows, scored by a few channels in the direction of a group's queries (methods/rocketkv.hpp,
// stage 2).
struct SignedPages {
  std::span<double> sign;  // [dim] sign of the group's sum; 0 for channels that are not used
  int32_t page;            // rows per page

  // Chooses the `count` channels with the largest sum of |q_c| over the group.
  template <class Real>
  KVR_FN void choose_channels(const Team auto& team, const StepQueries<Real>& queries, int32_t count) const {
    const auto sum = [&](int32_t c, bool lengths) {
      double s = 0;
      for (int32_t h = 0; h < queries.heads; ++h) {
        const double q = double(queries(h)[size_t(c)]);
        s += lengths ? std::abs(q) : q;
      }
      return s;
    };
    choose_top(
        team, queries.dim, count, [&](int32_t c) { return sum(c, true); },
        [&](int32_t c, bool yes) { sign[size_t(c)] = !yes                ? 0
                                                     : sum(c, false) > 0 ? 1
                                                                         : -1; });
  }
  // sqrt(d times the share of |q| in the chosen channels).
  template <class Real>
  KVR_FN double temperature(std::span<const Real> query) const {
    double counted = 0, all = 0;
    for (size_t c = 0; c < sign.size(); ++c) {
      const double length = std::abs(double(query[c]));
      all += length, counted += sign[c] != 0 ? length : 0;
    }
    return counted > 0 ? std::sqrt(double(sign.size()) * counted / all) : 1;
  }
  template <class Real>
  KVR_FN double score(const BasicCache<Real>& cache, std::span<const Real> query, int32_t of_page) const {
    const int32_t first = of_page * page, end = first + page < cache.size() ? first + page : cache.size();
    double s = 0;
    for (size_t c = 0; c < sign.size(); ++c) {
      if (sign[c] == 0) continue;
      double most = sign[c] * double(cache.key(first)[c]);
      for (int32_t i = first + 1; i < end; ++i) {
        const double x = sign[c] * double(cache.key(i)[c]);
        most = x > most ? x : most;
      }
      s += sign[c] * double(query[c]) * most;
    }
    return s;
  }
};

}  // namespace kvreplay
