#pragma once
#include <span>

#include "core/philox.hpp"
#include "exact/head_stream.hpp"

// Numbers computed from a whole trace that some methods take as parameters (OracleNeeds). They see the future.

namespace kvreplay {

// Median Euclidean distance between points [n, dim]: over all pairs if there are at most 2000, otherwise over 2000
// random pairs; 0 for a single point.
template <class Real>
double median_distance(std::span<const Real> points, int32_t dim, const Rng& rng);

// Median distance between the stored keys.
template <class Real>
double median_key_distance(const HeadStream<Real>& stream, const Rng& rng);

// The largest norm over all query heads and recorded rows.
template <class Real>
double largest_query_norm(const HeadStream<Real>& stream);
template <class Real>
double largest_key_norm(const HeadStream<Real>& stream);

}  // namespace kvreplay
