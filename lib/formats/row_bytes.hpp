#pragma once
#include <cstdint>

#include "core/method_info.hpp"

namespace kvreplay {

// Bytes of one stored row (key and value) in a format, offsets and steps included; source_bytes: of one number in
// the trace. Not a whole number where a group spans several rows.
inline double row_bytes(const RowFormat& format, int32_t dim, int32_t v_dim, int32_t source_bytes) {
  const double numbers = dim + v_dim;
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
      const auto groups = [&](int32_t width) { return (width + format.group - 1) / format.group; };
      return numbers * bits / 8 + 4.0 * (groups(dim) + groups(v_dim));
    }
    case RowFormat::Kind::kivi:
    case RowFormat::Kind::gear:
      return numbers * (format.bits + 32.0 / format.group) / 8;
  }
  return numbers * source_bytes;
}

}  // namespace kvreplay
