#pragma once
#include <span>

#include "core/philox.hpp"
#include "exact/head_stream.hpp"

// Numbers of a whole trace that some methods are parametrised by (OracleNeeds): they see the future.

namespace kvreplay {

// Median Euclidean distance of two of the points [n, dim]: over all pairs where there are at most 2000, else
// over 2000 drawn ones; 0 for a single point.
template <class Real>
double median_distance(std::span<const Real> points, int32_t dim, const Rng& rng);

// That of the keys as stored.
template <class Real>
double median_key_distance(const HeadStream<Real>& stream, const Rng& rng);

// The largest norm of a query of any head and row that the trace holds.
template <class Real>
double largest_query_norm(const HeadStream<Real>& stream);
template <class Real>
double largest_key_norm(const HeadStream<Real>& stream);

}  // namespace kvreplay
