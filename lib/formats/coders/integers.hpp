#pragma once
#include "formats/row_text.hpp"

namespace kvreplay {

// Integers of 8, 4, 3 or 2 bits over the range of each group of neighbouring numbers.
//  1. low, high = extremes of the group; step = (high - low) / (2^bits - 1), offset = low.
//  2. code = half_even((x - low) (2^bits - 1) / (high - low)), with the exact extremes.
//  3. Read back: code * float16(step) + float16(offset).
template <int kBits>
struct Integers {
  static constexpr FormatInfo info{.name = kBits == 8   ? "int8"
                                           : kBits == 4 ? "int4"
                                           : kBits == 3 ? "int3"
                                                        : "int2",
                                   .title = kBits == 8   ? "8-bit integers over the range of a group"
                                            : kBits == 4 ? "4-bit integers over the range of a group"
                                            : kBits == 3 ? "3-bit integers over the range of a group"
                                                         : "2-bit integers over the range of a group",
                                   .source = "asymmetric integers with float16 step and offset, as KIVI's values",
                                   .tier = 2};
  int32_t group = 64;

  static void declare(auto& d) {
    d.integer("group", &Integers::group, {1, 1 << 16}, "numbers of a row that share offset and step");
  }
  CodedBytes bytes(RowPart, int32_t width) const {
    return {bytes_of_bits(int64_t(width) * kBits), 4 * int64_t(groups_of(width, group))};
  }
  template <Team T>
  CodeTally code(const T& team, const CodedRow& row) const {
    return tally(team, groups_of(row.width(), group), [&](int32_t g) {
      const std::span<double> x = group_of(row.x, group, g);
      CodeTally t;
      const auto store = [&](int32_t i, double back) { t.note(x[size_t(i)], back), x[size_t(i)] = back; };
      const bool fits = quantise_group(
          int32_t(x.size()), levels_of(kBits), [&](int32_t i) { return x[size_t(i)]; }, store);
      t.misfits = fits ? 0 : 1;
      return t;
    });
  }
};
using Int8 = Integers<8>;
using Int4 = Integers<4>;
using Int3 = Integers<3>;
using Int2 = Integers<2>;

}  // namespace kvreplay
