#pragma once
#include <cmath>
#include <cstdint>

#include "core/team.hpp"

namespace kvreplay {

// Product quantisation of keys: the nearest centroid in each part of the channels (methods/pqcache.hpp).
struct ProductCodes {
  double* centroids;  // [count, dim]
  double* codes;      // [parts, tokens]
  double* sizes;      // [count] scratch
  int32_t count, dim, parts, tokens;

  KVR_FN int32_t width() const { return dim / parts; }
  KVR_FN double* centroid(int32_t part, int32_t which) const {
    return centroids + int64_t(which) * dim + int64_t(part) * width();
  }
  KVR_FN double& code(int32_t part, int32_t row) const { return codes[int64_t(part) * tokens + row]; }

  KVR_FN int32_t nearest(const auto& cache, int32_t part, int32_t row) const {
    const auto key = cache.key(row);
    int32_t best = 0;
    double least = INFINITY;
    for (int32_t c = 0; c < count; ++c) {
      const double* const at = centroid(part, c);
      double square = 0;
      for (int32_t i = 0; i < width(); ++i) {
        const double x = double(key[size_t(part * width() + i)]) - at[i];
        square += x * x;
      }
      if (square < least) least = square, best = c;
    }
    return best;
  }
  // Lloyd's k-means over rows first .. first + n - 1, starting from keys at equal distances; an empty cluster keeps its
  // centroid.
  KVR_FN void learn(const Team auto& team, const auto& cache, int32_t part, int32_t first, int32_t n,
                    int32_t rounds) const {
    const auto channel = [&](int32_t row, int32_t i) {
      return double(cache.key(first + row)[size_t(part * width() + i)]);
    };
    const auto assign = [&] {
      team.each(n, [&](int32_t i) { code(part, first + i) = nearest(cache, part, first + i); });
    };
    team.each(count * width(), [&](int32_t i) {
      const int32_t c = i / width();
      centroid(part, c)[i % width()] = channel(int32_t(int64_t(c) * n / count), i % width());
    });
    for (int32_t round = 0; round < rounds; ++round) {
      assign();
      team.each(count, [&](int32_t c) {
        sizes[c] = 0;
        for (int32_t i = 0; i < n; ++i) sizes[c] += code(part, first + i) == c ? 1 : 0;
      });
      team.each(count * width(), [&](int32_t i) {
        const int32_t c = i / width();
        if (sizes[c] == 0) return;
        double sum = 0;
        for (int32_t j = 0; j < n; ++j)
          if (code(part, first + j) == c) sum += channel(j, i % width());
        centroid(part, c)[i % width()] = sum / sizes[c];
      });
    }
    assign();
  }
  // Inner product of a query and the centroids that represent a row's key.
  KVR_FN double product(auto query, int32_t row) const {
    double s = 0;
    for (int32_t part = 0; part < parts; ++part) {
      const double* const at = centroid(part, int32_t(code(part, row)));
      for (int32_t i = 0; i < width(); ++i) s += double(query[size_t(part * width() + i)]) * at[i];
    }
    return s;
  }
};

}  // namespace kvreplay
