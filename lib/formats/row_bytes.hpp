#pragma once
#include <cstdint>

#include "core/method_info.hpp"

namespace kvreplay {

// Bytes of one stored row (key and value) in a format, with offsets, steps and what corrects them;
// source_bytes: of one number in the trace. Not a whole number where a group spans several rows. In gear it
// is a row's share of a block of R rows.
inline double row_bytes(const RowFormat& format, int32_t dim, int32_t v_dim, int32_t source_bytes) {
  const double numbers = dim + v_dim;
  const auto groups = [&](int32_t width) { return (width + format.group - 1) / format.group; };
  switch (format.kind) {
    case RowFormat::Kind::source:
      return numbers * source_bytes;
    case RowFormat::Kind::f32:
      return numbers * 4;
    case RowFormat::Kind::f16:
    case RowFormat::Kind::bf16:
      return numbers * 2;
    case RowFormat::Kind::int8:
    case RowFormat::Kind::int4: {
      const double bits = format.kind == RowFormat::Kind::int8 ? 8 : 4;
      return numbers * bits / 8 + 4.0 * (groups(dim) + groups(v_dim));
    }
    case RowFormat::Kind::kivi:
      return numbers * format.bits / 8 + 4.0 * dim / format.group + 4.0 * groups(v_dim);
    case RowFormat::Kind::gear: {
      RowFormat kivi = format;
      kivi.kind = RowFormat::Kind::kivi;
      const double factors = format.rank * (2 + numbers / format.residual) * source_bytes;
      return row_bytes(kivi, dim, v_dim, source_bytes) + factors + format.outliers / 100 * numbers * (source_bytes + 4);
    }
  }
  return numbers * source_bytes;
}

}  // namespace kvreplay
